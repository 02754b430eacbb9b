//! Rows of output tasks, read from runs and put into the order in which the tasks give them.
//!
//! A piece of a run has some kibibytes at least. Where output tasks have fewer bytes of a run than that, each piece
//! belongs to many of them: then neighbours are read together, so that no piece is read again for each.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::common::{DataFusionError, Result, exec_err};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use super::router::inside;
use super::runs::{Piece, Runs};
use crate::block::sliced_bytes;
use crate::runtime::begun_on_io_thread;
use crate::store::WorkingSet;

/// What is ordered at once has about this many arrays at most: each takes some hundred bytes beside its values.
const MANY_ARRAYS: usize = 1 << 14;
/// Pieces are put together to about this many.
const GROUPS: usize = 8;
/// So many times are tasks read together for each thread, at least.
const READS_PER_THREAD: usize = 2;

/// In what order a task gives its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// By their codes.
    Codes,
    /// As they were in the input.
    Input,
}

/// Rows that were ordered but not yet copied.
#[derive(Debug)]
pub(super) struct Ordered {
    schema: SchemaRef,
    batch_rows: usize,
    pieces: Vec<RecordBatch>,
    places: Vec<(usize, usize)>,
    /// Where the rows of each task begin in `places`, and the last of them end.
    starts: Vec<usize>,
    _reserved: WorkingSet,
}

impl Ordered {
    /// Reads the rows with codes in `ranges`, which follow each other, a task each. They have about `bytes`. Blocks,
    /// and fails as soon as they are not `wanted` any more.
    pub(super) fn read(
        runs: &Runs,
        ranges: &[RangeInclusive<u64>],
        order: RowOrder,
        bytes: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let (mut reserved, mut taken) = (runs.store.working_set(&runs.owner, 2 * bytes)?, 0);
        let (low, high) = match (ranges.first(), ranges.last()) {
            (Some(first), Some(last)) => (*first.start(), *last.end()),
            _ => (1, 0),
        };
        let rank = |code: u64| match order {
            RowOrder::Codes => code,
            RowOrder::Input => ranges.partition_point(|range| *range.end() < code) as u64,
        };
        let mut gathering = Gathering::new(&runs.schema, bytes, &rank);
        for run in &runs.runs {
            for piece in runs.pieces(run, low, high) {
                if !wanted() {
                    return exec_err!("nobody waits for these rows any more");
                }
                let more = gathering.push(&inside(piece?, low, high)?)?;
                if more > 0 {
                    // Keys of many rows may be neighbours.
                    taken += more;
                    reserved.resize(2 * taken.max(bytes))?;
                }
            }
        }
        let ends: Vec<u64> = ranges.iter().map(|range| rank(*range.end())).collect();
        gathering.ordered(runs.batch_rows, &ends, reserved)
    }

    /// The rows of `batches` by their codes, which are in the last column: equal ones as they come.
    pub(super) fn of(
        batches: &[RecordBatch],
        schema: &SchemaRef,
        batch_rows: usize,
        reserved: WorkingSet,
    ) -> Result<Self> {
        let bytes = batches.iter().map(sliced_bytes).sum();
        let mut gathering = Gathering::new(schema, bytes, &|code| code);
        for batch in batches {
            gathering.push(batch)?;
        }
        gathering.ordered(batch_rows, &[u64::MAX], reserved)
    }

    /// The rows of one of the tasks.
    pub(super) fn batches(self: Arc<Self>, task: usize) -> impl Iterator<Item = Result<RecordBatch>> {
        let (from, to) = (self.starts[task], self.starts[task + 1]);
        let batch_rows = self.batch_rows;
        (from..to).step_by(batch_rows).map(move |start| self.batch(start..(start + batch_rows).min(to)))
    }

    fn batch(&self, places: Range<usize>) -> Result<RecordBatch> {
        let places = &self.places[places];
        if self.schema.fields().is_empty() {
            let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
            return Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), Vec::new(), &options)?);
        }
        let pieces: Vec<&RecordBatch> = self.pieces.iter().collect();
        let batch = interleave_record_batch(&pieces, places)?;
        Ok(batch.with_schema(Arc::clone(&self.schema))?)
    }
}

/// Rows with their codes on their way into an order.
struct Gathering<'a> {
    schema: SchemaRef,
    /// The place of a row by its code; equal ones stay as they come.
    rank: &'a dyn Fn(u64) -> u64,
    columns: Vec<usize>,
    /// Pieces that are put together have about so many bytes, and are so many at most: a few large ones take less
    /// memory beside their values, and less time.
    group_bytes: usize,
    most: usize,
    group: Piece,
    pieces: Vec<RecordBatch>,
    places: Vec<(u64, u32, u32)>,
}

impl<'a> Gathering<'a> {
    /// Of rows with these columns and a code behind them, which have about so many bytes.
    fn new(schema: &SchemaRef, bytes: usize, rank: &'a dyn Fn(u64) -> u64) -> Self {
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let most = (MANY_ARRAYS / 2 / columns.len().max(1)).max(1);
        let (group, pieces, places) = (Piece::default(), Vec::new(), Vec::new());
        Self { schema: Arc::clone(schema), rank, columns, group_bytes: bytes / GROUPS, most, group, pieces, places }
    }

    /// Takes some more; returns the bytes of pieces that it has put together.
    fn push(&mut self, piece: &RecordBatch) -> Result<usize> {
        let codes = piece.column(self.columns.len()).as_primitive::<UInt64Type>().values();
        let number = self.pieces.len() as u32;
        let ranked = codes.iter().zip(self.group.rows..).map(|(code, row)| ((self.rank)(*code), number, row));
        self.places.extend(ranked);
        self.group.push(piece.project(&self.columns)?);
        if self.group.bytes < self.group_bytes && self.group.pieces.len() < self.most {
            return Ok(0);
        }
        let bytes = self.group.bytes;
        self.pieces.push(std::mem::take(&mut self.group).put_together()?);
        Ok(bytes)
    }

    /// All of them in order; tasks end behind rows that are ranked so.
    fn ordered(mut self, batch_rows: usize, ends: &[u64], reserved: WorkingSet) -> Result<Ordered> {
        if !self.group.pieces.is_empty() {
            self.pieces.push(self.group.put_together()?);
        }
        // Equal codes keep the order of the input, which the tuple gives too.
        self.places.sort_unstable();
        let ends = ends.iter().map(|end| self.places.partition_point(|(of_row, ..)| of_row <= end));
        let starts = std::iter::once(0).chain(ends).collect();
        let places = self.places.into_iter().map(|(_, piece, row)| (piece as usize, row as usize)).collect();
        Ok(Ordered { schema: self.schema, batch_rows, pieces: self.pieces, places, starts, _reserved: reserved })
    }
}

/// Output tasks, some of which are read together.
#[derive(Debug)]
pub(super) struct SharedReads {
    num_tasks: usize,
    /// How many are read at once, and about how many bytes they have.
    at_once: usize,
    bytes: usize,
    /// There as long as anybody may ask.
    wanted: Arc<()>,
    readings: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    by_number: HashMap<usize, Reading>,
    /// How many have been begun.
    begun: usize,
}

#[derive(Debug)]
struct Reading {
    ordered: SharedRows,
    /// Tasks that have not asked for it.
    left: usize,
}

type SharedRows = Shared<BoxFuture<'static, Result<Arc<Ordered>, Arc<DataFusionError>>>>;

impl Readings {
    /// Number `number`, for one of its tasks. The next one is begun too: it is read while this one is given.
    fn ask(&mut self, number: usize, begin: impl Fn(usize) -> Reading, exists: impl Fn(usize) -> bool) -> SharedRows {
        while self.begun <= number + 1 && exists(self.begun) {
            self.by_number.insert(self.begun, begin(self.begun));
            self.begun += 1;
        }
        let reading = self.by_number.entry(number).or_insert_with(|| begin(number));
        reading.left = reading.left.saturating_sub(1);
        let ordered = reading.ordered.clone();
        if reading.left == 0 {
            self.by_number.remove(&number);
        }
        ordered
    }
}

impl SharedReads {
    /// As many of `num_tasks`, which have `bytes`, as have at most `max_bytes` together, and leave something to do for
    /// each of `threads`.
    pub(super) fn new(num_tasks: usize, bytes: usize, max_bytes: usize, threads: usize) -> Self {
        let by_size = max_bytes / (bytes / num_tasks.max(1)).max(1);
        let at_once = by_size.min(num_tasks / (READS_PER_THREAD * threads).max(1)).max(1);
        let bytes = bytes / num_tasks.max(1) * at_once;
        Self { num_tasks, at_once, bytes, wanted: Arc::default(), readings: Mutex::default() }
    }

    /// The same, but each task for itself where `bytes_of` says that some neighbours have far more than `max_bytes`.
    pub(super) fn if_even(
        num_tasks: usize,
        bytes: usize,
        max_bytes: usize,
        threads: usize,
        bytes_of: impl Fn(Range<usize>) -> usize,
    ) -> Self {
        let together = Self::new(num_tasks, bytes, max_bytes, threads);
        let mut numbers = 0..num_tasks.div_ceil(together.at_once);
        match numbers.all(|number| bytes_of(together.tasks(number)) <= 2 * max_bytes) {
            true => together,
            false => Self::new(num_tasks, bytes, 0, threads),
        }
    }

    /// Whether several tasks are read together.
    pub(super) fn is_of_use(&self) -> bool {
        self.at_once > 1
    }

    /// The rows of a task and its neighbours, and which of them it is. `range` gives the codes of a task. Each asks
    /// once.
    pub(super) async fn rows_of(
        &self,
        task: usize,
        runs: &Arc<Runs>,
        range: impl Fn(usize) -> RangeInclusive<u64>,
        order: RowOrder,
    ) -> Result<(Arc<Ordered>, usize)> {
        let number = task / self.at_once;
        let begin = |number| {
            let ranges: Vec<_> = self.tasks(number).map(&range).collect();
            let (runs, bytes, wanted) = (Arc::clone(runs), self.bytes, Arc::downgrade(&self.wanted));
            let left = ranges.len();
            let read = move || Ordered::read(&runs, &ranges, order, bytes, &|| wanted.strong_count() > 0);
            let ordered = begun_on_io_thread(read).map(|ordered| ordered.map(Arc::new).map_err(Arc::new));
            Reading { ordered: ordered.boxed().shared(), left }
        };
        let ordered = self.readings.lock().ask(number, begin, |number| !self.tasks(number).is_empty());
        Ok((ordered.await.map_err(DataFusionError::Shared)?, task - self.tasks(number).start))
    }

    fn tasks(&self, number: usize) -> Range<usize> {
        let end = |number: usize| (number * self.at_once).min(self.num_tasks);
        end(number)..end(number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_together_up_to_a_size_and_while_all_threads_have_some() {
        let at_once = |num_tasks, bytes, most| SharedReads::new(num_tasks, bytes, most, 2).at_once;
        assert_eq!(at_once(1000, 1000, 10), 10);
        assert_eq!(at_once(1000, 1000, 1000), 250);
        assert_eq!(at_once(4, 4, 1000), 1);
        assert_eq!(at_once(1000, 1000, 0), 1);
        assert_eq!(at_once(0, 0, 10), 1);
        let together = SharedReads::new(25, 25, 10, 1);
        assert_eq!([0, 1, 2, 3].map(|number| together.tasks(number)), [0..10, 10..20, 20..25, 25..25]);
    }

    #[test]
    fn tasks_of_uneven_sizes_are_read_for_themselves() {
        let of_use = |hot: usize| {
            let bytes_of = |tasks: Range<usize>| tasks.map(|task| if task < 5 { hot } else { 1 }).sum();
            SharedReads::if_even(100, 100, 10, 1, bytes_of).is_of_use()
        };
        assert!(of_use(3));
        assert!(!of_use(4));
    }
}
