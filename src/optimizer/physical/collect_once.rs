//! Lets aggregates that keep all of their values run in one phase instead of two.
//!
//! A first phase makes nothing smaller for them: its few rows are lists of everything, which the second phase copies
//! into lists of its own. In one phase every value is kept once, and the aggregate can spill.
//!
//! ```text
//! AggregateExec: mode=FinalPartitioned, aggr=[array_agg(x)]        AggregateExec: mode=SinglePartitioned, ...
//!   AggregateExec: mode=Partial, aggr=[array_agg(x)]          ->     ReadExec
//!     ReadExec
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};

use crate::physical::collects;

#[derive(Debug)]
pub(super) struct CollectOnce;

impl PhysicalOptimizerRule for CollectOnce {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| match in_one_phase(node.as_ref())? {
            Some(aggregate) => Ok(Transformed::yes(Arc::new(aggregate) as _)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "collect_once"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The aggregate as one operator, if it is the second of two phases that collect values.
fn in_one_phase(node: &dyn ExecutionPlan) -> Result<Option<AggregateExec>> {
    let Some(last) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let mode = match last.mode() {
        AggregateMode::Final => AggregateMode::Single,
        AggregateMode::FinalPartitioned => AggregateMode::SinglePartitioned,
        _ => return Ok(None),
    };
    let Some(first) = last.input().downcast_ref::<AggregateExec>() else { return Ok(None) };
    // With grouping sets the phases have different groups.
    let two_phases = *first.mode() == AggregateMode::Partial && first.group_expr().is_single();
    if !two_phases || !first.aggr_expr().iter().any(|f| collects(f)) {
        return Ok(None);
    }
    let one = AggregateExec::try_new(
        mode,
        first.group_expr().clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        Arc::clone(first.input()),
        first.input_schema(),
    )?;
    Ok(Some(one.with_limit_options(last.limit_options())))
}
