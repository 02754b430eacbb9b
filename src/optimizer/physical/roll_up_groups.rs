//! Makes groups of coarser grouping sets from those of finer ones.
//!
//! ```text
//! AggregateExec: final                          AggregateExec: final
//!   AggregateExec: partial, rollup(a, b)   ->     RollUpExec: (a, b), (a), ()
//!                                                   AggregateExec: partial, by a, b
//! ```
//!
//! Correct because functions merge states: of rows in any groups, and so of the groups of a finer set. Sums of
//! floating-point numbers add in another order, as they do with more threads.
//!
//! Only where one of the sets has all keys, so that no groups are made that nobody asked for: then no row is taken more
//! often than before. Not where a coarser set has a key that is unique, and so as many groups. Not for functions whose
//! state is a list of their rows (`DISTINCT`, `array_agg`), which would be copied from set to set, or depends on their
//! order (`last_value`, `string_agg`), and not for few rows. Off with `optimize_rolled_up_groups`.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::estimate::estimate;
use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, RollUpExec};

/// Fewer rows are not worth several tables.
const MANY_ROWS: f64 = 10_000.0;

#[derive(Debug)]
pub(super) struct RollUpGroups;

impl PhysicalOptimizerRule for RollUpGroups {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_rolled_up_groups {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| match below_final(&node).map(RollUpExec::instead_of).transpose()? {
            Some(Some(rolled_up)) => {
                let above = replace_children_if_necessary(node, vec![rolled_up.into_plan()])?;
                Ok(Transformed::yes(above))
            }
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "roll_up_groups"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The first phase of an aggregate of many rows by grouping sets, whose states are merged by the last phase.
fn below_final(plan: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    let last = plan.downcast_ref::<AggregateExec>()?;
    let first = last.input().downcast_ref::<AggregateExec>()?;
    let phases = (first.mode(), last.mode());
    let (AggregateMode::Partial, AggregateMode::Final | AggregateMode::FinalPartitioned) = phases else { return None };
    let has_sets = first.group_expr().has_grouping_set() && first.limit_options().is_none();
    let is_sound = has_sets && first.aggr_expr().iter().all(|function| has_short_state(function));
    (is_sound && leaves_fewer_groups(first)).then_some(first)
}

/// Whether rows are many, and no set but the finest is expected to have as many groups.
fn leaves_fewer_groups(aggregate: &AggregateExec) -> bool {
    let Some(expected) = estimate(aggregate.input()).filter(|expected| expected.rows >= MANY_ROWS) else {
        return false;
    };
    let is_unique = |(key, _): &(Arc<dyn PhysicalExpr>, String)| {
        key.downcast_ref::<Column>().is_some_and(|column| expected.is_unique(column.index()))
    };
    let groups = aggregate.group_expr();
    let unique: Vec<bool> = groups.expr().iter().map(is_unique).collect();
    let has_unique = |nulls: &Vec<bool>| nulls.iter().zip(&unique).any(|(is_null, is_unique)| *is_unique && !is_null);
    let is_finest = |nulls: &Vec<bool>| nulls.iter().all(|is_null| !is_null);
    !groups.groups().iter().any(|nulls| has_unique(nulls) && !is_finest(nulls))
}

/// Whether the state of a function does not grow with its rows, nor depend on their order: groups of a finer set are in
/// another one.
fn has_short_state(function: &AggregateFunctionExpr) -> bool {
    let may_be_text = match function.fun().order_sensitivity() {
        AggregateOrderSensitivity::Insensitive => true,
        AggregateOrderSensitivity::Beneficial | AggregateOrderSensitivity::SoftRequirement => return false,
        // What functions say that say nothing. A text is that of all rows, as in `string_agg`.
        AggregateOrderSensitivity::HardRequirement => false,
    };
    let is_short = |kind: &DataType| !kind.is_nested() && (may_be_text || !kind.is_string());
    let are_short = |fields: Vec<_>| fields.iter().all(|field: &FieldRef| is_short(field.data_type()));
    !function.is_distinct() && function.order_bys().is_empty() && function.state_fields().is_ok_and(are_short)
}
