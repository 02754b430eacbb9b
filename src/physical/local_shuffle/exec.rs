//! [`LocalShuffleExec`].

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::held_rows::{Delay, HeldRows, Leaving, Room};
use crate::block::pieces;
use crate::physical::StageMetrics;
use crate::physical::memory::block_bytes;
use crate::physical::operator::{InputOrder, IntoPlan, Operator, Retention, Starts, TaskIdentity, TaskPlan, claims};
use crate::physical::place::{Mark, MarkLog, MarkedStream, Place, marked_rows, tasks_of_rows};
use crate::physical::rows_of_input;
use crate::physical::tasks::{RowBalance, TaskStream, execute_tasks, owner_of, properties, stream_of};
use crate::runtime::Drivers;
use crate::store::BlockStore;

/// Rows of a task, which are cut out of the one stream of rows.
const TASK_ROWS: u64 = 1 << 18;

/// Holds each row back for a random number of places.
#[derive(Debug)]
pub(crate) struct LocalShuffleExec {
    input: Arc<dyn ExecutionPlan>,
    rows: u64,
    seed: u64,
    input_order: InputOrder,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    begin: Begin,
    /// Where the rows of the input came from.
    log: MarkLog,
    /// How many rows left before each bucket.
    left: BucketLog,
}

/// Where it begins.
#[derive(Debug, Clone, Default)]
struct Begin {
    /// Rows that were given before.
    given: u64,
    /// The bucket that they end in, and the rows that leave before it.
    bucket: u64,
    before_bucket: u64,
    /// The first row of the input that comes, and where the input begins.
    first_row: u64,
    input: Place,
}

/// How many rows left before a bucket.
#[derive(Debug, Clone, Default)]
struct BucketLog(Arc<Mutex<Vec<(u64, u64)>>>);

/// So many buckets are known; of more, every second one is forgotten.
const KNOWN_BUCKETS: usize = 1 << 16;

impl BucketLog {
    fn note(&self, left: u64, bucket: u64) {
        let mut known = self.0.lock();
        if known.len() == KNOWN_BUCKETS {
            let mut number = 0;
            known.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        known.push((left, bucket));
    }

    /// The last bucket known to begin before row `number` leaves, and the rows that leave before it.
    fn before(&self, number: u64) -> Option<(u64, u64)> {
        let known = self.0.lock();
        let behind = known.partition_point(|(left, _)| *left <= number);
        known.get(behind.checked_sub(1)?).copied()
    }
}

impl LocalShuffleExec {
    /// Holds the rows of `input` back for `rows` places in the mean, as `seed` says.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, rows: u64, seed: u64) -> Self {
        let properties = properties(claims::of_rows(input.as_ref()), 1, EmissionType::Incremental);
        let input_order = InputOrder::of(input.as_ref());
        let (stage, begin) = (StageMetrics::default(), Begin::default());
        let (log, left) = (MarkLog::default(), BucketLog::default());
        Self { input, rows, seed, input_order, properties, stage, begin, log, left }
    }

    fn delay(&self) -> Delay {
        Delay::new(self.rows, self.seed)
    }
}

impl Operator for LocalShuffleExec {
    fn name(&self) -> &'static str {
        "LocalShuffleExec"
    }

    fn describe(&self) -> String {
        format!("rows={}, seed={}", self.rows, self.seed)
    }

    fn describe_in_tree(&self) -> String {
        self.describe().replace(", ", "\n")
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let anew = Self::new(inputs.swap_remove(0), self.rows, self.seed);
        Ok(Self { input_order: self.input_order.clone(), begin: self.begin.clone(), ..anew }.into_plan())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.input_order]
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
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

    fn starts(&self) -> Starts {
        Starts::WhenExecuted
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: false }
    }
}

impl TaskPlan for LocalShuffleExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let owner = owner_of(self, &context);
        let store = BlockStore::of_task(&context)?;
        let working_set = store.working_set(&owner, 0)?;
        let room = Room { store, owner: Arc::clone(&owner), max_bytes: block_bytes(&context)?, working_set };
        let rows = marked_rows(&self.input, &context, &owner, &self.begin.input, None)?;
        let shuffling = Shuffling {
            rows: Some(self.log.noting(self.begin.first_row, &self.begin.input, rows)),
            held: HeldRows::new(self.delay(), self.schema(), room, self.begin.first_row, self.begin.bucket),
            batch_rows: context.session_config().batch_size(),
            left: self.begin.before_bucket,
            log: self.left.clone(),
            balance: RowBalance::new("LocalShuffleExec", &context),
            skip: (self.begin.given - self.begin.before_bucket) as usize,
        };
        let balance = Arc::clone(&shuffling.balance);
        let leaving = stream::try_unfold(shuffling, |mut shuffling| async move {
            Ok(shuffling.next().await?.map(|leaving| (leaving, shuffling)))
        });
        // Copying takes longer than finding out what to copy.
        let (schema, threads) = (self.schema(), context.session_config().target_partitions());
        let batches = leaving.map_ok(move |leaving| copied(leaving, Arc::clone(&schema))).try_buffered(threads);
        let rows = context.session_config().batch_size();
        let batches = batches.map_ok(move |batch| stream::iter(pieces(batch, rows)).map(Ok)).try_flatten();
        let batches = balance.giving(stream_of(self.schema(), batches.boxed()));
        balance.all_begun()?;
        Ok(tasks_of_rows(batches, TASK_ROWS, self.begin.given))
    }

    fn stage_name(&self) -> String {
        "LocalShuffle".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::Own { is_whole: true }
    }

    fn begins_anywhere(&self) -> bool {
        true
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let given = mark.id.task_of_source() as u64 * TASK_ROWS + mark.row;
        let (before_bucket, bucket) = self.left.before(given)?;
        let first_row = self.delay().first_row_of(bucket);
        let numbers = vec![given, before_bucket, bucket, first_row];
        let inputs = vec![self.log.place_of(&self.input, first_row)?];
        // Behind the last row of a task is the first one of the next.
        Some(Place { numbers, inputs, first_row: given % TASK_ROWS, skip: 0 })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let (&[given, before_bucket, bucket, first_row], [input]) = (place.numbers.as_slice(), place.inputs.as_slice())
        else {
            return Ok(Self::new(Arc::clone(&self.input), self.rows, self.seed).into_plan());
        };
        let begin = Begin { given, bucket, before_bucket, first_row, input: input.clone() };
        let anew = Self::new(Arc::clone(&self.input), self.rows, self.seed);
        let (log, left) = (self.log.clone(), self.left.clone());
        Ok(Self { begin, log, left, input_order: self.input_order.clone(), ..anew }.into_plan())
    }
}

/// The rows as a batch, which one of the session's threads makes.
async fn copied(leaving: Leaving, schema: SchemaRef) -> Result<RecordBatch> {
    match Drivers::start([async move { leaving.into_batch(&schema) }]).next().await {
        Some(batch) => batch,
        None => internal_err!("rows of a local shuffle vanished"),
    }
}

/// A shuffle that runs.
struct Shuffling {
    /// The rows that come, until they end.
    rows: Option<MarkedStream>,
    held: HeldRows,
    batch_rows: usize,
    /// Rows that have left.
    left: u64,
    log: BucketLog,
    balance: Arc<RowBalance>,
    /// Rows of the first bucket that were given before.
    skip: usize,
}

impl Shuffling {
    async fn next(&mut self) -> Result<Option<Leaving>> {
        loop {
            let (left, log, has_ended) = (self.left, &self.log, self.rows.is_none());
            let begins = |bucket, before| log.note(left + before as u64, bucket);
            if let Some(mut leaving) = self.held.pop(has_ended, self.batch_rows, begins)? {
                self.left += leaving.num_rows() as u64;
                // What was given before is not given again, and has left all the same.
                let skipped = self.skip.min(leaving.num_rows());
                self.skip -= skipped;
                self.balance.give(skipped);
                leaving.skip(skipped);
                if leaving.num_rows() > 0 {
                    return Ok(Some(leaving));
                }
                continue;
            }
            let Some(rows) = &mut self.rows else { return Ok(None) };
            match rows.try_next().await? {
                Some(marked) => {
                    self.balance.take(marked.batch.num_rows());
                    let dropped = self.held.push(marked.batch)?;
                    self.balance.give(dropped);
                }
                None => self.rows = None,
            }
        }
    }
}
