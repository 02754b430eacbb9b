//! What an operator says of itself, and what one says that gives tasks.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, InputDistributionRequirements, PlanProperties};

use super::input_order::InputOrder;
use crate::block::TaskId;
use crate::functions::Compute;
use crate::physical::place::{Mark, Place};
use crate::physical::read::ReadFiles;
use crate::physical::tasks::{StageMetrics, TaskStream};
use crate::runtime::OpId;

/// In which order the inputs of an operator work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputsWork {
    /// All at the same time.
    InputOverlap,
    /// The first input gives all of its rows before the second one is asked for any, which then runs along with
    /// the operator.
    FirstBeforeSecond,
    /// One after the other, in whatever order.
    InTurn,
    /// So many of the one input at the same time.
    SeveralOfIt(usize),
}

/// When an operator starts to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    /// When one of its inputs does.
    AsInputs,
    /// When it is executed.
    WhenExecuted,
    /// When its first row is asked for.
    WhenAsked,
}

/// What waits in memory between the inputs of an operator and its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// The batches that pass.
    Batches,
    /// Few blocks, which leave memory when there is no room.
    Queue,
    /// Blocks that its tasks build, or sort.
    Blocks {
        /// Whether all rows go in before the first comes out.
        until_input_ends: bool,
    },
}

/// How the rows of several inputs come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputOverlap {
    /// There is one input, or it does not matter.
    AsTheyAre,
    /// Beside each other.
    SideBySide,
    /// After each other.
    AfterEachOther,
}

/// One of our operators. The defaults are those of one that keeps nothing and says nothing.
pub(crate) trait Operator: Any + fmt::Debug + Send + Sync {
    /// What plans show.
    fn name(&self) -> &'static str;

    /// What stands behind the name in a line of EXPLAIN.
    fn describe(&self) -> String {
        String::new()
    }

    /// What stands below the name where a plan is drawn as a tree.
    fn describe_in_tree(&self) -> String {
        String::new()
    }

    /// What it reads.
    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>>;

    /// The same operator over other inputs, as if it had never run.
    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>>;

    /// Streams, and what is known of their rows.
    fn properties(&self) -> &Arc<PlanProperties>;

    /// The rows of a partition, for operators of DataFusion.
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream>;

    /// The operator as one that gives tasks, if it does.
    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        None
    }

    /// The order that each input was planned with and has to have.
    fn input_orders(&self) -> Vec<&InputOrder> {
        Vec::new()
    }

    /// The orders that its inputs must have.
    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let orders = self.input_orders();
        match orders.is_empty() {
            true => vec![None; self.inputs().len()],
            false => orders.into_iter().flat_map(InputOrder::ordering).collect(),
        }
    }

    /// How the rows of its inputs must be spread over partitions.
    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let orders = self.input_orders();
        InputDistributionRequirements::new(match orders.is_empty() {
            true => vec![Distribution::UnspecifiedDistribution; self.inputs().len()],
            false => orders.into_iter().flat_map(|order| order.distribution().into_per_child()).collect(),
        })
    }

    /// Whether rows come in the order of the input, for each input.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false; self.inputs().len()]
    }

    /// Whether more partitions of an input would make it faster. Ours pull tasks from one place.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs().len()]
    }

    /// Shows what it computes for each row to `f`.
    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    /// What it has counted.
    fn metrics(&self) -> Option<MetricsSet> {
        self.as_task_plan().map(|plan| plan.stage().metrics())
    }

    /// The statistics that it needs of each input.
    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::Skip; self.inputs().len()]
    }

    /// What is known of its rows, by what is known of its inputs.
    fn statistics(&self, _inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::new(Statistics::new_unknown(&self.schema())))
    }

    /// Whether it gives more or fewer rows than it gets.
    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Unknown
    }

    /// Whether it is a read: what stands below is the scan of a source, and belongs to it.
    fn is_read(&self) -> bool {
        false
    }

    /// Whether its inputs run in other processes.
    fn inputs_are_elsewhere(&self) -> bool {
        false
    }

    /// Whether it keeps or writes the rows of its input, and gives their number.
    fn stores_rows(&self) -> bool {
        false
    }

    /// Bytes that it cannot do without, beside what its inputs need, with batches of `batch_bytes`.
    fn min_bytes(&self, _batch_bytes: usize) -> Option<usize> {
        None
    }

    /// The last plans that it made and ran while it ran, each with its name, where it does that: its inputs only show
    /// how such a plan looks.
    fn plans_that_ran(&self) -> Option<Vec<(String, Arc<dyn ExecutionPlan>)>> {
        None
    }

    /// What there is to say of it before it runs, line by line, within a limit of so many bytes and on so many threads.
    fn warnings(&self, _limit: usize, _threads: usize) -> Vec<String> {
        Vec::new()
    }

    /// What else it has to tell of its run, line by line.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// In which order its inputs work.
    fn inputs_work(&self) -> InputsWork {
        InputsWork::InputOverlap
    }

    /// When it starts to work.
    fn starts(&self) -> Starts {
        Starts::AsInputs
    }

    /// What waits in memory between its inputs and its output.
    fn keeps(&self) -> Retention {
        Retention::Batches
    }

    /// How the rows of its inputs come together.
    fn brings_together(&self) -> InputOverlap {
        InputOverlap::AsTheyAre
    }

    /// Bytes of one of its rows, if it knows better than their types say.
    fn row_bytes(&self) -> Option<usize> {
        None
    }

    /// How many rows are enough.
    fn fetch(&self) -> Option<usize> {
        None
    }

    /// The same operator, of which so many rows are enough, if it can make use of that.
    fn with_fetch(&self, _fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        None
    }

    /// Which filters on its rows may go to its inputs, and which of its own, in a `phase` of pushing them; none if it
    /// does not say.
    fn filters_for_inputs(
        &self,
        _filters: &[Arc<dyn PhysicalExpr>],
        _phase: FilterPushdownPhase,
        _config: &ConfigOptions,
    ) -> Result<Option<FilterDescription>> {
        Ok(None)
    }

    /// The same operator, when it was told what became of these filters, if that changes it.
    fn with_filters_taken(&self, _taken: &ChildPushdownResult) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        Ok(None)
    }

    /// The columns of its rows.
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.properties().equivalence_properties().schema())
    }
}

/// An operator that yields tasks.
pub(crate) trait TaskPlan: Operator {
    /// The tasks that partition `partition` pulls. Their time is not yet measured.
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream>;

    /// All tasks, in order, for one that starts them: the operator `consumer`, if the scheduler knows it.
    fn all_tasks(&self, context: Arc<TaskContext>, consumer: Option<OpId>) -> Result<TaskStream> {
        // The streams of all partitions pull from one place, or there is one.
        let _unknown = consumer;
        self.tasks(0, context)
    }

    /// Names of the operators that one task runs from end to end, like `ReadParquet->MapBatches(f)`.
    fn stage_name(&self) -> String;

    /// What the tasks of this stage did.
    fn stage(&self) -> &StageMetrics;

    /// Whether ids give the order of the dataset. Otherwise rows come as they come.
    fn is_ordered(&self) -> bool {
        true
    }

    /// What of its tasks follows from the data.
    fn identity(&self) -> TaskIdentity<'_>;

    /// Number of blocks that it will give, if every task gives one and their number is known before running.
    fn planned_blocks(&self) -> Option<usize> {
        None
    }

    /// What helps, where its rows may come otherwise when it runs again: because their order depends on how much memory
    /// there is, or a function says so.
    fn unsteady_order(&self) -> Option<&'static str> {
        None
    }

    /// The files that its tasks read, where each is a task of a read.
    fn files(&self) -> Option<ReadFiles> {
        None
    }

    /// How the user says that it runs.
    fn compute(&self) -> Option<&Compute> {
        None
    }

    /// What an actor has to do before its first task.
    fn preparation(&self) -> Preparation {
        Arc::new(|| Ok(()))
    }

    /// Whether the stage below belongs to this one.
    fn is_fused(&self) -> bool {
        false
    }

    /// The stage that feeds it, which it runs itself.
    fn map_side(&self) -> Option<MapSide<'_>> {
        None
    }

    /// The plan whose blocks are those of this one, which only brings partitions together: blocks have ids, so there is
    /// no need to.
    fn gathers(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        None
    }

    /// Whether its rows are those of its input, as many of them in each task and in their order.
    fn keeps_row_numbers(&self) -> bool {
        false
    }

    /// Whether it can begin at any of its rows.
    fn begins_anywhere(&self) -> bool {
        false
    }

    /// Whether it begins where its inputs begin, which have to be able to, or finds the place itself.
    fn begins_with_inputs(&self) -> bool {
        true
    }

    /// Whether it reads all of its input again wherever it begins, since any of it may be of the rows that are left.
    fn reads_all_again(&self) -> bool {
        false
    }

    /// How many of its inputs, from the first on, give the rows that it gives. Others only say something of them.
    fn inputs_with_rows(&self) -> usize {
        usize::MAX
    }

    /// The task that a place is in, where it may have no more rows.
    fn task_of(&self, _place: &Place) -> Option<TaskId> {
        None
    }

    /// Where it would begin to give this row next; `None` where it has to begin anew. Only tasks that follow from the
    /// data have places, and only operators that have tasks of their own are asked. With the first row of a task, the
    /// place is exact: nothing comes before it.
    fn place_of(&self, _mark: &Mark) -> Option<Place> {
        None
    }

    /// The same operator from a place on that it has said.
    fn begun_at(&self, _place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        exec_err!("{} begins at its first row", self.stage_name())
    }

    /// Whether it works on rows. Otherwise it hands on what others made.
    fn works(&self) -> bool {
        true
    }
}

/// What an actor does before its first task.
pub(crate) type Preparation = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The stage before an exchange.
pub(crate) struct MapSide<'a> {
    /// Names of the operators that one of its tasks runs.
    pub(crate) name: String,
    /// What its tasks did.
    pub(crate) stage: &'a StageMetrics,
    /// What it reads.
    pub(crate) input: &'a Arc<dyn ExecutionPlan>,
    /// Whether the stage of the input is part of it.
    pub(crate) is_fused: bool,
}

/// What of the ids and the tasks of an operator follows from data and settings alone, neither from the memory limit nor
/// from threads (see `steady.rs`).
pub(crate) enum TaskIdentity<'a> {
    /// Its first number says which rows a task has. Whether the task has all of them, or they are cut as memory allows.
    Own { is_whole: bool },
    /// The same, where the tasks of the input are such.
    OwnIfInput { input: &'a Arc<dyn ExecutionPlan> },
    /// Tasks are those of the input, or blocks of them.
    OfInput { input: &'a Arc<dyn ExecutionPlan>, is_whole: bool },
    /// Those of the inputs, with the number of the input before theirs.
    OfInputs,
    /// The first two numbers say which rows a task has: the epoch, and the window in it.
    Windows,
    /// There is one task.
    OneTask,
    /// Nothing.
    Unsteady,
}
