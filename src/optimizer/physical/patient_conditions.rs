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
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};

use super::exact_arithmetic::is_checked;
use crate::physical::patient;

#[derive(Debug)]
pub(super) struct PatientConditions;

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
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let filter = of_join(join.filter())?;
        return filter.map(|filter| join.builder().with_filter(Some(filter)).build_exec()).transpose();
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let Some(filter) = of_join(join.filter())? else { return Ok(None) };
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let patient = NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
        return Ok(Some(Arc::new(patient)));
    }
    Ok(None)
}

fn of_join(filter: Option<&JoinFilter>) -> Result<Option<JoinFilter>> {
    let Some(filter) = filter else { return Ok(None) };
    let expression = patient(Arc::clone(filter.expression()), is_checked)?;
    if Arc::ptr_eq(filter.expression(), &expression) {
        return Ok(None);
    }
    Ok(Some(JoinFilter::new(expression, filter.column_indices().to_vec(), Arc::clone(filter.schema()))))
}
