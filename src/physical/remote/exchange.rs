//! [`RemoteExchangeExec`], and what else is an exchange between executors.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, apply_expression_roots};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties};

use crate::physical::exchange::{Distributed, ExchangeExec, KeptBy, KeyEncoding, Scheme, with_code};
use crate::physical::operator::{IntoPlan, Operator, PlanExt, claims};
use crate::physical::rows_of_input;

/// Where rows of a stage change executors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StageExchange<'a> {
    /// Those with equal keys come to one, or all of them to each, as they come.
    AsTheyCome(&'a RemoteExchangeExec),
    /// They come as an exchange of one process gives them.
    InOrder(&'a ExchangeExec),
}

impl<'a> StageExchange<'a> {
    /// That of a plan, if it is one.
    pub(crate) fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let in_order = || plan.operator::<ExchangeExec>().filter(|exchange| exchange.as_distributed().is_some());
        let as_they_come = plan.operator::<RemoteExchangeExec>().map(Self::AsTheyCome);
        as_they_come.or_else(|| in_order().map(Self::InOrder))
    }

    /// What is exchanged.
    pub(crate) fn input(self) -> &'a Arc<dyn ExecutionPlan> {
        match self {
            Self::AsTheyCome(exchange) => exchange.input(),
            Self::InOrder(exchange) => exchange.input(),
        }
    }

    /// Columns of the rows, and perhaps of their codes behind them.
    pub(crate) fn schema(self, with_codes: bool) -> SchemaRef {
        let schema = self.input().schema();
        if with_codes { with_code(&schema) } else { schema }
    }

    /// Whether all rows go to each executor.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::AsTheyCome(exchange) if exchange.is_whole())
    }

    /// How rows are distributed that come in an order.
    pub(crate) fn scheme(self) -> Option<SchemeInOrder> {
        match self {
            Self::AsTheyCome(_) => None,
            Self::InOrder(exchange) => Some(SchemeInOrder(Arc::clone(exchange.scheme()))),
        }
    }

    /// By what the rows are found that somebody keeps.
    pub(super) fn kept_by(self) -> Result<KeptBy> {
        match self {
            Self::AsTheyCome(exchange) => Ok(KeptBy::Codes(KeyEncoding::Hash { keys: exchange.keys().to_vec() })),
            Self::InOrder(exchange) => match exchange.as_distributed() {
                Some(distributed) => Ok(distributed.kept_by()),
                None => internal_err!("an exchange is one of this process"),
            },
        }
    }
}

/// How rows are distributed that come in an order.
#[derive(Clone)]
pub(crate) struct SchemeInOrder(Arc<dyn Scheme>);

impl SchemeInOrder {
    /// What several processes do.
    pub(crate) fn distributed(&self) -> Result<&dyn Distributed> {
        self.0.distributed().ok_or_else(|| internal_datafusion_err!("{} is one of this process", self.0))
    }
}

// As plans show it: that is part of fingerprints.
impl fmt::Debug for SchemeInOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where rows of a stage change executors: by the hash of their keys, so that what is above runs for some of the hashes
/// at a time, with all rows that have them; or all rows to each. Where the stage runs in one process, rows just pass.
#[derive(Debug)]
pub(crate) struct RemoteExchangeExec {
    input: Arc<dyn ExecutionPlan>,
    /// None where all rows go to each.
    keys: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl RemoteExchangeExec {
    /// Rows of `input`, those with equal keys at one executor; without keys, all of them at each that asks.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let (known, partitioning) = (claims::of_rows(input.as_ref()), input.output_partitioning().clone());
        let properties = PlanProperties::new(known, partitioning, input.pipeline_behavior(), input.boundedness());
        Self { input, keys, properties: Arc::new(properties) }
    }

    /// What is exchanged.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Whether all rows go to each executor.
    pub(crate) fn is_whole(&self) -> bool {
        self.keys.is_empty()
    }

    /// What rows are told apart by.
    pub(crate) fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }
}

impl Operator for RemoteExchangeExec {
    fn name(&self) -> &'static str {
        "RemoteExchangeExec"
    }

    fn describe(&self) -> String {
        if self.is_whole() {
            return "whole".to_owned();
        }
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        format!("keys=[{}]", keys.join(", "))
    }

    fn describe_in_tree(&self) -> String {
        self.describe()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.keys.clone()).into_plan())
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.keys, f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
