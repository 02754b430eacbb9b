//! Sorted rows of a unit of tasks, which a process keeps until others ask for those between two places.
//!
//! Places are said by keys, and where these are equal by the number of the unit and the number of the row in it. So
//! they mean the same rows however the unit was cut into runs, also when it is made again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::arrow::array::{RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::buckets::Batches;
use super::distributed::{Extent, KnownKey};
use super::router::codes_of_keys;
use super::runs::Piece;
use super::sort_keys::{RowPlace, compare};
use super::sorted::{SortedRun, Sorting};
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::tasks::task_stream;
use crate::runtime::{Drivers, begun_on_io_thread};

/// Of so many rows the keys are told.
const KNOWN_KEYS: usize = 4096;
/// And of each so many bytes: they come in a line.
const KNOWN_BYTES: usize = 512;

/// Rows of a unit in order, as runs whose last column has the number of each row in the unit.
#[derive(Debug)]
pub(crate) struct SortedUnit {
    unit: usize,
    runs: Vec<SortedRun>,
    sum_of_codes: u64,
    schema: SchemaRef,
    sorting: Sorting,
}

impl SortedUnit {
    /// The rows of `input`, which are unit number `unit`.
    pub(crate) async fn collect(
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        stage: &StageMetrics,
        by: &LexOrdering,
        unit: usize,
    ) -> Result<Self> {
        let number = Arc::new(Field::new("__blockyard_row", DataType::UInt64, false));
        let fields: Vec<_> = input.schema().fields().iter().cloned().chain([number]).collect();
        let (threads, numbered) = (context.session_config().target_partitions(), Arc::new(Schema::new(fields)));
        let sorting =
            Sorting::new(by.iter().cloned().collect(), Arc::clone(&numbered), context, threads, stage.owner())?
                .of_numbered();
        let numbering = Numbering { schema: numbered, keys: by.iter().map(|key| Arc::clone(&key.expr)).collect() };
        let (input, context, stage) = (Arc::clone(input), Arc::clone(context), stage.clone());
        let (own, schema, sum) = (sorting.clone(), input.schema(), Arc::new(AtomicU64::new(0)));
        let sum_of_codes = Arc::clone(&sum);
        let sorted = async move {
            let mut before = 0;
            let numbered = all_rows(&input, &context, &stage)?.map(move |batch| {
                let (batch, codes) = numbering.numbered(&batch?, before)?;
                before += batch.num_rows() as u64;
                sum.fetch_add(codes, Relaxed);
                Ok(batch)
            });
            own.runs(&TaskId::root(unit), numbered.boxed()).await
        };
        let runs = Drivers::start([sorted]).finish().await?.into_iter().flatten().collect();
        Ok(Self { unit, runs, sum_of_codes: sum_of_codes.load(Relaxed), schema, sorting })
    }

    /// What is known of the rows.
    pub(crate) fn extent(&self) -> Extent {
        let metadata = self.runs.iter().map(|run| run.handle.metadata());
        let (rows, bytes) = metadata.fold((0, 0), |(rows, bytes), run| (rows + run.num_rows, bytes + run.size_bytes));
        let mut keys = Vec::new();
        for run in &self.runs {
            let bytes = run.handle.metadata().size_bytes / run.firsts.len().max(1);
            // The beginning of a key is a place, too.
            let known = |key: &[u8]| key[..key.len().min(KNOWN_BYTES)].into();
            keys.extend(run.firsts.iter().map(|first| KnownKey { key: known(&first.key), row: first.row, bytes }));
        }
        keys.sort_unstable_by(|a, b| (&a.key, a.row).cmp(&(&b.key, b.row)));
        let together = keys.len().div_ceil(KNOWN_KEYS).max(1);
        let thinned = keys.chunks(together).filter_map(|some| {
            let bytes = some.iter().map(|key| key.bytes).sum();
            some.first().map(|first| KnownKey { bytes, ..first.clone() })
        });
        let keys = thinned.collect();
        Extent { rows: rows as u64, bytes, sum_of_codes: self.sum_of_codes, bins: Vec::new(), keys }
    }

    /// Columns of the rows, without their numbers.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows of each run between two places, in order, read on IO threads as they are asked for.
    pub(crate) fn stream(
        self: &Arc<Self>,
        from: Option<RowPlace>,
        to: Option<RowPlace>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let (all, places) = (Arc::clone(self), Arc::new((from, to)));
        stream::iter(0..self.runs.len())
            .then(move |run| {
                let (all, places) = (Arc::clone(&all), Arc::clone(&places));
                begun_on_io_thread(move || all.part(run, places.0.as_ref(), places.1.as_ref()))
            })
            .map_ok(|rows| stream::iter(rows.map(Ok)))
            .try_flatten()
            .boxed()
    }

    /// The rows of a run between two places.
    fn part(&self, run: usize, from: Option<&RowPlace>, to: Option<&RowPlace>) -> Result<Option<RecordBatch>> {
        let run = &self.runs[run];
        let Some(pieces) = run.pieces_between(self.unit, from, to) else { return Ok(None) };
        let mut read: VecDeque<RecordBatch> = run.handle.batches(pieces).collect::<Result<_>>()?;
        // Of long keys pieces know the beginning alone, so that several may be before the one place, or behind the
        // other.
        if let Some(place) = from {
            while let Some(first) = read.pop_front() {
                let before = self.rows_before(&first, place)?;
                if before < first.num_rows() {
                    read.push_front(first.slice(before, first.num_rows() - before));
                    break;
                }
            }
        }
        if let Some(place) = to {
            while let Some(last) = read.pop_back() {
                let before = self.rows_before(&last, place)?;
                if before > 0 {
                    read.push_back(last.slice(0, before));
                    break;
                }
            }
        }
        let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
        let mut group = Piece::default();
        for piece in read.iter().filter(|piece| piece.num_rows() > 0) {
            group.push(piece.project(&columns)?);
        }
        if group.pieces.is_empty() {
            return Ok(None);
        }
        Ok(Some(group.copied()?.with_schema(Arc::clone(&self.schema))?))
    }

    /// How many rows of a piece are before a place.
    fn rows_before(&self, piece: &RecordBatch, place: &RowPlace) -> Result<usize> {
        let keys = self.sorting.order.keys(piece)?;
        let is_before =
            |row: usize| compare(keys.row(row).as_ref(), self.unit, self.sorting.number_of(piece, row), place).is_lt();
        let rows: Vec<usize> = (0..piece.num_rows()).collect();
        Ok(rows.partition_point(|row| is_before(*row)))
    }
}

/// The rows of all tasks, one after the other.
fn all_rows(input: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, stage: &StageMetrics) -> Result<Batches> {
    let partitions = 0..input.output_partitioning().partition_count();
    let tasks = partitions.map(|partition| task_stream(input, partition, Arc::clone(context)));
    let (tasks, stage) = (tasks.collect::<Result<Vec<_>>>()?, stage.clone());
    let rows = stream::iter(tasks).flatten().map_ok(move |task| stage.measure(task).batches);
    Ok(rows.try_flatten().boxed())
}

/// Adds the numbers of rows.
struct Numbering {
    schema: SchemaRef,
    keys: Vec<Arc<dyn PhysicalExpr>>,
}

impl Numbering {
    /// A batch behind so many rows, and the sum of the codes of its keys.
    fn numbered(&self, batch: &RecordBatch, before: u64) -> Result<(RecordBatch, u64)> {
        let (codes, _) = codes_of_keys(&self.keys, batch)?;
        let sum = codes.into_iter().fold(0, u64::wrapping_add);
        let numbers = UInt64Array::from_iter_values(before..before + batch.num_rows() as u64);
        let columns = batch.columns().iter().cloned().chain([Arc::new(numbers) as _]).collect();
        Ok((RecordBatch::try_new(Arc::clone(&self.schema), columns)?, sum))
    }
}
