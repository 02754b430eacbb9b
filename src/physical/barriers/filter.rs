//! Stops filters that are on their way down where their columns cannot be told apart by name, or are said to stop them.
//!
//! It stands in a plan only while filters are pushed (see `optimizer/physical/guard_filter_pushdown.rs`), and is never
//! run.

use crate::physical::operator::IntoPlan;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::filter_pushdown::{ChildFilterDescription, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr, PlanProperties};

use crate::physical::operator::Operator;

/// Lets filters pass to its input that name no column of which there are several, and none that stops them.
#[derive(Debug)]
pub(crate) struct FilterBarrierExec {
    input: Arc<dyn ExecutionPlan>,
    stopping: HashSet<usize>,
}

impl FilterBarrierExec {
    /// A barrier above `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self::against(input, HashSet::new())
    }

    /// A barrier above `input` also for filters that name some of its columns.
    pub(crate) fn against(input: Arc<dyn ExecutionPlan>, stopping: HashSet<usize>) -> Self {
        Self { input, stopping }
    }

    /// What it stands above.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }
}

/// The columns whose names no other has.
pub(crate) fn unambiguous(schema: &Schema) -> HashSet<usize> {
    let mut count = HashMap::new();
    schema.fields().iter().for_each(|field| *count.entry(field.name().as_str()).or_insert(0) += 1);
    let alone = |index: &usize| count.get(schema.field(*index).name().as_str()) == Some(&1);
    (0..schema.fields().len()).filter(alone).collect()
}

impl Operator for FilterBarrierExec {
    fn name(&self) -> &'static str {
        "FilterBarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::against(inputs.swap_remove(0), self.stopping.clone()).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn filters_for_inputs(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        _phase: FilterPushdownPhase,
        _config: &ConfigOptions,
    ) -> Result<Option<FilterDescription>> {
        let allowed = unambiguous(&self.schema()).difference(&self.stopping).copied().collect();
        let passing = ChildFilterDescription::from_child_with_allowed_indices(filters, allowed, &self.input)?;
        Ok(Some(FilterDescription::new().with_child(passing)))
    }
}
