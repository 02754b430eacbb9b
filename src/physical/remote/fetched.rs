//! The rows that an exchange gives some tasks of a stage, as a plan.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use super::SchemeInOrder;
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::exchange::{FetchRows, Fetching, TaskRows};
use crate::physical::operator::{IntoPlan, Operator, Retention, TaskIdentity, TaskPlan};
use crate::physical::tasks::{Task, TaskStream, execute_tasks, owner_of, properties, stream_of};

/// Gives the rows anew each time it is called.
type Fetch = Arc<dyn Fn() -> SendableRecordBatchStream + Send + Sync>;

/// What `fetch` gives, rows with columns of `schema`, as a plan with one partition.
pub(crate) fn fetched(schema: SchemaRef, fetch: Fetch) -> Result<Arc<dyn ExecutionPlan>> {
    let rows = Arc::new(Fetched { schema: Arc::clone(&schema), fetch });
    Ok(Arc::new(StreamingTableExec::try_new(schema, vec![rows], None, None, false, None)?))
}

struct Fetched {
    schema: SchemaRef,
    fetch: Fetch,
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetched")
    }
}

impl PartitionStream for Fetched {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        (self.fetch)()
    }
}

/// Is told how many rows all tasks gave.
type Ended = Arc<dyn Fn(u64) -> Result<()> + Send + Sync>;

/// Tasks of an exchange whose rows come in an order, fetched from all that keep some.
pub(crate) struct FetchedTasksExec {
    scheme: SchemeInOrder,
    /// The number of the first task.
    first: usize,
    tasks: Arc<[TaskRows]>,
    fetch: FetchRows,
    ended: Ended,
    /// Whether somebody has all of them.
    is_taken: AtomicBool,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl fmt::Debug for FetchedTasksExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FetchedTasksExec({} from {})", self.tasks.len(), self.first)
    }
}

/// What the tasks have given.
struct Given {
    /// Tasks that have not come to their end.
    left: AtomicUsize,
    rows: AtomicU64,
    ended: Ended,
}

impl Given {
    /// Notes what comes next of a task: nothing at its end.
    fn note(&self, batch: Option<&RecordBatch>) -> Result<()> {
        if let Some(batch) = batch {
            self.rows.fetch_add(batch.num_rows() as u64, AcqRel);
        } else if self.left.fetch_sub(1, AcqRel) == 1 {
            (self.ended)(self.rows.load(Acquire))?;
        }
        Ok(())
    }
}

impl FetchedTasksExec {
    /// Tasks from number `first` on, of rows with columns of `schema`, which `fetch` gets as the scheme wants them.
    /// When all have come to their end, `ended` is told how many rows they gave.
    pub(crate) fn new(
        scheme: SchemeInOrder,
        schema: SchemaRef,
        first: usize,
        tasks: Arc<[TaskRows]>,
        fetch: FetchRows,
        ended: Ended,
    ) -> Self {
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Incremental);
        let (is_taken, stage) = (AtomicBool::new(false), StageMetrics::default());
        Self { scheme, first, tasks, fetch, ended, is_taken, properties, stage }
    }
}

impl Operator for FetchedTasksExec {
    fn name(&self) -> &'static str {
        "FetchedTasksExec"
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_inputs(&self, _inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (scheme, tasks, fetch) = (self.scheme.clone(), Arc::clone(&self.tasks), Arc::clone(&self.fetch));
        Ok(Self::new(scheme, self.schema(), self.first, tasks, fetch, Arc::clone(&self.ended)).into_plan())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: false }
    }
}

impl TaskPlan for FetchedTasksExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        if self.is_taken.swap(true, AcqRel) {
            return internal_err!("tasks of an exchange are asked for twice");
        }
        let (scheme, schema, tasks) = (self.scheme.clone(), self.schema(), Arc::clone(&self.tasks));
        let fetching = Fetching {
            fetch: Arc::clone(&self.fetch),
            schema: Arc::clone(&schema),
            owner: owner_of(self, &context),
            context,
        };
        let (left, rows, ended) = (AtomicUsize::new(tasks.len()), AtomicU64::new(0), Arc::clone(&self.ended));
        let (first, given) = (self.first, Arc::new(Given { left, rows, ended }));
        let task = move |index: usize| {
            let id = TaskId::root(first + index);
            let rows = scheme.distributed()?.rows(id.clone(), tasks[index].clone(), fetching.clone())?;
            let counted = stream::try_unfold((rows, Arc::clone(&given)), |(mut rows, given)| async move {
                let next = rows.try_next().await?;
                given.note(next.as_ref())?;
                Ok(next.map(|batch| (batch, (rows, given))))
            });
            Ok(Task::new(id, stream_of(Arc::clone(&schema), counted.boxed())))
        };
        Ok(stream::iter(0..self.tasks.len()).map(task).boxed())
    }

    fn stage_name(&self) -> String {
        "FetchedTasks".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::Own { is_whole: true }
    }
}
