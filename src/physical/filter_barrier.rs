//! Stops filters that are on their way down where their columns cannot be told apart by name.
//!
//! It stands in a plan only while filters are pushed (see `optimizer/physical/guard_filter_pushdown.rs`), and is never run.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties, ReplaceChildrenOptions,
};

/// Lets filters pass to its input that name no column of which there are several.
#[derive(Debug)]
pub(crate) struct FilterBarrierExec {
    input: Arc<dyn ExecutionPlan>,
}

impl FilterBarrierExec {
    /// A barrier above `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input }
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

impl DisplayAs for FilterBarrierExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilterBarrierExec")
    }
}

impl ExecutionPlan for FilterBarrierExec {
    fn name(&self) -> &str {
        "FilterBarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0))))
    }

    without_expressions!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let allowed = unambiguous(&self.schema());
        let passing = ChildFilterDescription::from_child_with_allowed_indices(&parent_filters, allowed, &self.input)?;
        Ok(FilterDescription::new().with_child(passing))
    }

    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::if_all(child_pushdown_result))
    }
}
