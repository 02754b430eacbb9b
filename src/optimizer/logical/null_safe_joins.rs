//! Joins in which null equals null.
//!
//! A join has one law for all of its keys. DataFusion makes keys of `IS NOT DISTINCT FROM` with the law that null
//! equals null, and later adds keys of `=` to such a join; and where it puts inner joins together it takes the law of
//! one of them for all. Here a key of `=` that comes to the other law says besides that it is not null, and inner
//! joins of that law are put together by their conditions.
//!
//! ```text
//! Filter: a.y = b.y                                     Join: a.x = b.x, a.y = b.y  null equals null
//!   Join: a.x = b.x  null equals null          ->         Filter: a.y IS NOT NULL
//! ```

use datafusion::common::tree_node::Transformed;
use datafusion::common::{NullEquality, Result};
use datafusion::logical_expr::{Expr, Join, JoinType, LogicalPlan, Operator, binary_expr};
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::has_node;

/// In the place of DataFusion's rule of its name, or besides it under another one.
#[derive(Debug)]
pub(super) struct ExtractKeys {
    name: &'static str,
    rule: ExtractEquijoinPredicate,
}

impl ExtractKeys {
    pub(super) fn named(name: &'static str) -> Self {
        Self { name, rule: ExtractEquijoinPredicate::new() }
    }
}

impl OptimizerRule for ExtractKeys {
    fn name(&self) -> &str {
        self.name
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let keys = match &plan {
            LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNull => join.on.len(),
            _ => return self.rule.rewrite(plan, config),
        };
        let rewritten = self.rule.rewrite(plan, config)?;
        Ok(rewritten.update_data(|plan| match plan {
            LogicalPlan::Join(join) => {
                let added = join.on[keys..].iter().map(|(left, _)| left.clone().is_not_null());
                let filter = added.chain(join.filter.clone()).reduce(Expr::and);
                LogicalPlan::Join(Join { filter, ..join })
            }
            plan => plan,
        }))
    }
}

/// In the place of DataFusion's rule of its name.
#[derive(Debug)]
pub(super) struct PutJoinsTogether(EliminateCrossJoin);

impl PutJoinsTogether {
    pub(super) fn new() -> Self {
        Self(EliminateCrossJoin::new())
    }
}

impl OptimizerRule for PutJoinsTogether {
    fn name(&self) -> &str {
        "eliminate_cross_join"
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_of_nulls = |node: &LogicalPlan| matches!(node, LogicalPlan::Join(join) if is_inner_of_nulls(join));
        let by_conditions = match has_node(&plan, is_of_nulls) {
            true => plan.transform_up_with_subqueries(|plan| Ok(by_conditions(plan)))?,
            false => Transformed::no(plan),
        };
        let put_together = self.0.rewrite(by_conditions.data, config)?;
        let transformed = by_conditions.transformed || put_together.transformed;
        Ok(Transformed { transformed, ..put_together })
    }
}

/// An inner join in which null equals null as one of all pairs of rows for which that holds.
fn by_conditions(plan: LogicalPlan) -> Transformed<LogicalPlan> {
    match plan {
        LogicalPlan::Join(join) if is_inner_of_nulls(&join) => {
            let keys = join.on.into_iter();
            let keys = keys.map(|(left, right)| binary_expr(left, Operator::IsNotDistinctFrom, right));
            let filter = keys.chain(join.filter).reduce(Expr::and);
            let null_equality = NullEquality::NullEqualsNothing;
            Transformed::yes(LogicalPlan::Join(Join { on: Vec::new(), filter, null_equality, ..join }))
        }
        plan => Transformed::no(plan),
    }
}

fn is_inner_of_nulls(join: &Join) -> bool {
    join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty()
}
