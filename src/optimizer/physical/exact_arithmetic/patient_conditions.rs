//! Conditions of filters and joins that DataFusion evaluates have patience with arithmetic.
//!
//! The steps of stages have it by themselves. Until here, rules that move conditions have seen them one by one. See
//! [`patient`]; plans read the same.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

use super::exprs::is_checked;
use super::joins::with_condition;
use crate::physical::patient;

#[derive(Debug)]
pub(in crate::optimizer::physical) struct PatientConditions;

impl PhysicalOptimizerRule for PatientConditions {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            Ok(with_patience(&node)?.map_or_else(|| Transformed::no(node), Transformed::yes))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "patient_conditions"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn with_patience(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let given = filter.predicate();
        let predicate = patient(Arc::clone(given), is_checked)?;
        if Arc::ptr_eq(given, &predicate) {
            return Ok(None);
        }
        return Ok(Some(Arc::new(FilterExecBuilder::from(filter).with_predicate(predicate).build()?)));
    }
    with_condition(node, |condition, _| patient(Arc::clone(condition), is_checked))
}
