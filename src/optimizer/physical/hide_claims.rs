//! Hides what DataFusion takes to hold of columns, and does not.
//!
//! It keeps what is known of an input where rows are no longer so:
//!
//! - `k` is 3 in all rows of `SELECT * FROM b WHERE k = 3`, and not where an outer join pads it with nulls;
//! - a grouping set has null in place of a column that is constant, equal to another, or sorted.
//!
//! What is wrongly constant is left out of ORDER BY, and groups are given as complete before all of their rows were
//! there. Sorts that are missing then are added by `restore_orders`.
//!
//! ```text
//! HashJoinExec: join_type=Left            HashJoinExec: join_type=Left
//!   ReadExec: ReadParquet           ->      ReadExec: ReadParquet
//!   FilterExec: k = 3                       HideClaimsExec
//!                                             FilterExec: k = 3
//! ```

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::physical::{BucketJoinExec, Claims, HideClaimsExec, IntoPlan, LoopJoinExec, PlanExt};

#[derive(Debug)]
pub(super) struct HideClaims;

impl PhysicalOptimizerRule for HideClaims {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(without_wrong_claims).data()
    }

    fn name(&self) -> &str {
        "hide_claims"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The operator over inputs of which it can rely on what is known of them.
pub(super) fn without_wrong_claims(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let mut hides_any = false;
    let inputs = plan.children().into_iter().zip(wrong_claims(plan.as_ref())).map(|(input, wrong)| match wrong {
        Some(wrong) if HideClaimsExec::hides(input.as_ref(), wrong) => {
            hides_any = true;
            HideClaimsExec::new(Arc::clone(input), wrong).into_plan()
        }
        _ => Arc::clone(input),
    });
    let inputs = inputs.collect();
    match hides_any {
        true => Ok(Transformed::yes(replace_children_if_necessary(plan, inputs)?)),
        false => Ok(Transformed::no(plan)),
    }
}

/// What is known of each input of an operator, and does not hold of what it gives.
fn wrong_claims(plan: &dyn ExecutionPlan) -> Vec<Option<Claims>> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return vec![(aggregate.group_expr().groups().len() > 1).then_some(Claims::All)];
    }
    let hash = plan.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let merge = plan.downcast_ref::<SortMergeJoinExec>().map(|join| join.join_type());
    let nested = plan.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    let bucket = plan.operator::<BucketJoinExec>().map(|join| join.join_type());
    let looped = plan.operator::<LoopJoinExec>().map(|join| join.join_type());
    let padded = Some(Claims::Constants);
    match hash.or(merge).or(nested).or(bucket).or(looped) {
        Some(JoinType::Left) => vec![None, padded],
        Some(JoinType::Right) => vec![padded, None],
        Some(JoinType::Full) => vec![padded, padded],
        _ => vec![None; plan.children().len()],
    }
}
