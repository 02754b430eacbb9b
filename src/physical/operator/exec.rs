//! The one `ExecutionPlan` of ours.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
    ReplaceChildrenOptions,
};

use super::contract::Operator;

/// An operator of ours as a plan of DataFusion.
#[derive(Debug)]
struct OperatorExec(Box<dyn Operator>);

/// How operators become plans.
pub(crate) trait IntoPlan {
    /// The operator as a plan of DataFusion.
    fn into_plan(self) -> Arc<dyn ExecutionPlan>;
}

impl<T: Operator> IntoPlan for T {
    fn into_plan(self) -> Arc<dyn ExecutionPlan> {
        Arc::new(OperatorExec(Box::new(self)))
    }
}

/// How plans tell which of our operators they are.
pub(crate) trait PlanExt {
    /// The operator at the root, if it is one of ours.
    fn as_operator(&self) -> Option<&dyn Operator>;

    /// The operator at the root, if it is of type `T`.
    fn operator<T: Operator>(&self) -> Option<&T>;

    /// Whether the operator at the root is of type `T`.
    fn is_operator<T: Operator>(&self) -> bool {
        self.operator::<T>().is_some()
    }
}

impl PlanExt for dyn ExecutionPlan {
    fn as_operator(&self) -> Option<&dyn Operator> {
        self.downcast_ref::<OperatorExec>().map(|plan| plan.0.as_ref())
    }

    fn operator<T: Operator>(&self) -> Option<&T> {
        self.as_operator().and_then(|operator| (operator as &dyn Any).downcast_ref())
    }
}

/// The inputs of a plan that run beside it: not what a read scans, which belongs to it, nor what runs elsewhere.
pub(crate) fn stages_below(plan: &dyn ExecutionPlan) -> Vec<&Arc<dyn ExecutionPlan>> {
    match plan.as_operator().is_some_and(|operator| operator.is_read() || operator.inputs_are_elsewhere()) {
        true => Vec::new(),
        false => plan.children(),
    }
}

/// The plans below a plan that ran, each with its name where it has one: its inputs, or what it planned itself.
pub(crate) fn ran_below(plan: &dyn ExecutionPlan) -> Vec<(Option<String>, Arc<dyn ExecutionPlan>)> {
    match plan.as_operator().and_then(Operator::plans_that_ran) {
        Some(plans) => plans.into_iter().map(|(name, plan)| (Some(name), plan)).collect(),
        None => stages_below(plan).into_iter().map(|child| (None, Arc::clone(child))).collect(),
    }
}

impl DisplayAs for OperatorExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, details, in_tree) = match t {
            DisplayFormatType::TreeRender => ("", self.0.describe_in_tree(), true),
            DisplayFormatType::Default | DisplayFormatType::Verbose => (self.0.name(), self.0.describe(), false),
        };
        match (details.is_empty(), in_tree) {
            (true, _) => f.write_str(name),
            (false, true) => writeln!(f, "{details}"),
            (false, false) => write!(f, "{name}: {details}"),
        }
    }
}

impl ExecutionPlan for OperatorExec {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.0.required_input_ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.0.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.0.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.0.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.0.inputs()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.with_inputs(children)
    }

    // DataFusion still requires it.
    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.0.metrics()
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.0.input_statistics(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.0.statistics(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.0.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.0.fetch()
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        self.0.with_fetch(fetch)
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        match self.0.filters_for_inputs(&parent_filters, phase, config)? {
            Some(filters) => Ok(filters),
            None => Ok(FilterDescription::all_unsupported(&parent_filters, &self.children())),
        }
    }

    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let updated = self.0.with_filters_taken(&result)?;
        // With several inputs, that of the filtered column takes it.
        let taken = match self.children().len() {
            1 => FilterPushdownPropagation::if_all(result),
            _ => FilterPushdownPropagation::if_any(result),
        };
        Ok(FilterPushdownPropagation { updated_node: updated, ..taken })
    }
}
