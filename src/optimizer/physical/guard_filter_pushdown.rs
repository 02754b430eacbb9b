//! Keeps filters on the side of a join that they are about.
//!
//! DataFusion's `FilterPushdown` takes columns for those of the same name. Where both sides of a join have a `key`, and
//! a projection has put the sides in another order, a filter on one `key` is pushed to the other, and rows are lost.
//! This rule stands in its place, and calls it with barriers above every operator with two columns of one name: they
//! let pass what names other columns only.
//!
//! ```text
//! FilterExec: key@0 IS NULL                  FilterExec: key@0 IS NULL
//!   ProjectionExec: key@1, key@0               FilterBarrierExec
//!     HashJoinExec: Left              ->         ProjectionExec: key@1, key@0
//!       ReadExec: d (key)                          FilterBarrierExec
//!       ReadExec: e (key)                            HashJoinExec: Left ..
//! ```
//!
//! A join tells its probe side the keys that it has seen, among which values are looked up by their bits: 0.0 is not
//! -0.0 there, and a list with a null is in no list. Where keys are of such types, a barrier keeps it from that.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::physical::{FilterBarrierExec, IntoPlan, PlanExt, unambiguous};

#[derive(Debug)]
pub(super) struct GuardFilterPushdown {
    rule: FilterPushdown,
    /// Whether filters are those that operators make while they run.
    is_of_operators: bool,
}

impl GuardFilterPushdown {
    /// In place of the rule that pushes filters of the query.
    pub(super) fn new() -> Self {
        Self { rule: FilterPushdown::new(), is_of_operators: false }
    }

    /// In place of the rule that pushes filters which operators make while they run.
    pub(super) fn post_optimization() -> Self {
        Self { rule: FilterPushdown::new_post_optimization(), is_of_operators: true }
    }
}

impl PhysicalOptimizerRule for GuardFilterPushdown {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let guarded = Arc::clone(&plan).transform_up(|node| {
            let node = match self.is_of_operators {
                true => of_columns(node)?.transform_data(without_inexact_keys)?,
                false => Transformed::no(node),
            };
            Ok(match is_ambiguous(node.data.as_ref()) {
                true => Transformed::yes(FilterBarrierExec::new(node.data).into_plan()),
                false => node,
            })
        })?;
        if !guarded.transformed {
            return self.rule.optimize(plan, config);
        }
        let pushed = self.rule.optimize(guarded.data, config)?;
        let without_barrier = |node: Arc<dyn ExecutionPlan>| {
            Ok(match node.operator::<FilterBarrierExec>() {
                Some(barrier) => Transformed::yes(Arc::clone(barrier.input())),
                None => Transformed::no(node),
            })
        };
        pushed.transform_up(without_barrier).data()
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

/// First rows whose filter is one of columns. By itself it is one of keys, and where one of these is within another, as
/// in `ORDER BY a - c, a`, projections below give it the column of the one and not those of the other.
fn of_columns(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(sort) = plan.downcast_ref::<SortExec>().filter(|sort| !sort.dynamic_expressions_produced().is_empty())
    else {
        return Ok(Transformed::no(plan));
    };
    let columns = sort.expr().iter().flat_map(|key| collect_columns(&key.expr));
    let columns: BTreeMap<usize, Column> = columns.map(|column| (column.index(), column)).collect();
    if columns.is_empty() || sort.expr().iter().all(|key| key.expr.is::<Column>()) {
        return Ok(Transformed::no(plan));
    }
    let columns = columns.into_values().map(|column| Arc::new(column) as _).collect();
    let filter = DynamicFilterPhysicalExpr::new(columns, lit(true));
    let sort = sort.clone().with_dynamic_filter_expr(Arc::new(filter))?;
    Ok(Transformed::yes(Arc::new(sort)))
}

/// A join that does not tell its probe side keys among which it would look up values by their bits.
fn without_inexact_keys(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(join) = plan.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(plan)) };
    let mut inexact = HashSet::new();
    for (_, key) in join.on() {
        let kind = key.data_type(&join.right().schema())?;
        if kind.is_floating() || kind.is_nested() {
            inexact.extend(collect_columns(key).iter().map(Column::index));
        }
    }
    if inexact.is_empty() {
        return Ok(Transformed::no(plan));
    }
    let probed = FilterBarrierExec::against(Arc::clone(join.right()), inexact).into_plan();
    let inputs = vec![Arc::clone(join.left()), probed];
    Ok(Transformed::yes(replace_children_if_necessary(plan, inputs)?))
}

fn is_ambiguous(plan: &dyn ExecutionPlan) -> bool {
    let schema = plan.schema();
    unambiguous(&schema).len() < schema.fields().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::{BinaryExpr, col};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::filter::FilterExec;
    use datafusion::physical_plan::projection::ProjectionExec;

    fn compared(column: Arc<dyn PhysicalExpr>, op: Operator, value: i64) -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(column, op, lit(value)))
    }

    /// A filter on the first column of a projection that calls its columns `names`: the second and the first below.
    fn filter_over(names: [&str; 2]) -> Arc<dyn ExecutionPlan> {
        let field = |name| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("a"), field("b")]));
        let below = compared(col("a", &schema).unwrap(), Operator::Gt, 50);
        let below = FilterExec::try_new(below, Arc::new(EmptyExec::new(Arc::clone(&schema)))).unwrap();
        let column = |place: usize, name: &str| (col(name, &schema).unwrap(), names[place].to_owned());
        let swapped = ProjectionExec::try_new(vec![column(0, "b"), column(1, "a")], Arc::new(below)).unwrap();
        let first = Arc::new(Column::new(names[0], 0));
        Arc::new(FilterExec::try_new(compared(first, Operator::Eq, 1), Arc::new(swapped)).unwrap())
    }

    fn pushed(rule: &dyn PhysicalOptimizerRule, names: [&str; 2]) -> String {
        let plan = rule.optimize(filter_over(names), &ConfigOptions::default()).unwrap();
        displayable(plan.as_ref()).indent(false).to_string()
    }

    /// When this fails after an upgrade, the guard may have become unnecessary.
    #[test]
    fn datafusion_still_takes_columns_for_those_of_the_same_name() {
        let plan = pushed(&FilterPushdown::new(), ["key", "key"]);
        assert!(plan.contains("a@0 = 1"), "{plan}");
    }

    #[test]
    fn a_filter_on_a_column_of_two_stays_above() {
        let plan = pushed(&GuardFilterPushdown::new(), ["key", "key"]);
        assert!(plan.starts_with("FilterExec: key@0 = 1") && !plan.contains("FilterBarrierExec"), "{plan}");
        assert!(plan.contains("FilterExec: a@0 > 50"), "{plan}");
    }

    #[test]
    fn other_filters_are_pushed_as_ever() {
        let plan = pushed(&GuardFilterPushdown::new(), ["k", "l"]);
        assert!(plan.starts_with("ProjectionExec") && plan.contains("b@1 = 1"), "{plan}");
        assert_eq!(plan, pushed(&FilterPushdown::new(), ["k", "l"]));
    }
}
