//! Lets the sub-plans that `share_subplans` has found run once: whoever is asked first runs it, and the others read its
//! rows.
//!
//! Correct where their operators give the same columns in the same streams and orders, which is compared: rules may
//! have planned them in different ways. Where one is left, it is as if it had not been found. It comes after all rules
//! that change operators, since a sub-plan over another input is another one, and those that copy operators would have
//! copies that share the state of one.
//!
//! ```text
//! HashJoinExec                                HashJoinExec
//!   SharedExec: plan=0                          SharedExec: plan=0, reader=1
//!     AggregateExec                               AggregateExec
//!   SharedExec: plan=0                  ->      SharedExec: plan=0, reader=2
//!     AggregateExec                               AggregateExec
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::physical::linked;

#[derive(Debug)]
pub(super) struct LinkShared;

impl PhysicalOptimizerRule for LinkShared {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        linked(plan)
    }

    fn name(&self) -> &str {
        "link_shared"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
