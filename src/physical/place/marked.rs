//! Rows with where they stand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{Mutex, oneshot};

use super::seek::{begun_at, first_task, seeks};
use super::value::Mark;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::gather::{PIECE_BYTES, first_blocks_in_order, gather};
use crate::physical::tasks::{
    RowBalance, Task, TaskStream, block_batches, is_ordered, measured_task_stream, steady_parts, stream_of, ungathered,
};
use crate::store::Owner;
use crate::token::Place;

/// Rows of one task, one after the other.
#[derive(Debug)]
pub(crate) struct Marked {
    /// Where the first one stands.
    pub(crate) mark: Mark,
    /// The rows.
    pub(crate) batch: RecordBatch,
}

/// Rows in the order of the dataset.
pub(crate) type MarkedStream = BoxStream<'static, Result<Marked>>;

/// All rows of a plan from a place on, as [`gather`] brings them together, with where they stand. Nobody takes more
/// than the first `fetch`.
pub(crate) fn marked_rows(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    place: &Place,
    fetch: Option<usize>,
) -> Result<MarkedStream> {
    begun_rows(plan, &begun_at(plan, place)?, context, owner, place, fetch)
}

/// The same of a plan that has been made to begin there.
pub(crate) fn begun_rows(
    plan: &Arc<dyn ExecutionPlan>,
    begun: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    place: &Place,
    fetch: Option<usize>,
) -> Result<MarkedStream> {
    let parts = seeks(plan).ok().and_then(|()| steady_parts(ungathered(plan)));
    let first = first_task(plan, place);
    // Those that are passed over are taken too.
    let fetch = fetch.map(|rows| rows.saturating_add(place.skip as usize));
    let keeps_order = BlockyardOptions::from_task(context).preserve_order && is_ordered(begun.as_ref());
    let identified = match (parts, begun.output_partitioning().partition_count()) {
        (None, _) => {
            let rows = gather(begun, Arc::clone(context), owner)?;
            rows.map_ok(|batch| (TaskId::root(0), batch)).boxed()
        }
        (Some(parts), 1) => batches_of_tasks(begun, context, parts)?,
        (Some(parts), _) if keeps_order => batches_in_order(begun, context, owner, fetch, parts)?,
        (Some(_), _) => gather(begun, Arc::clone(context), owner)?.map_ok(|b| (TaskId::root(0), b)).boxed(),
    };
    Ok(numbered(identified, (first, place.first_row), place.skip))
}

/// Batches, each with the steady part of the id of its task.
type Identified = BoxStream<'static, Result<(TaskId, RecordBatch)>>;

fn batches_of_tasks(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, parts: usize) -> Result<Identified> {
    let tasks = measured_task_stream(plan, 0, Arc::clone(context))?;
    let batches = move |task: Task| {
        let id = task.id.first_parts(parts);
        task.batches.map_ok(move |batch| (id.clone(), batch))
    };
    Ok(tasks.map_ok(batches).try_flatten().boxed())
}

fn batches_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    fetch: Option<usize>,
    parts: usize,
) -> Result<Identified> {
    let balance = RowBalance::new(format!("gathering the rows of {}", plan.name()), context);
    let blocks = first_blocks_in_order(plan, context, owner, PIECE_BYTES, fetch, &balance)?;
    let output = balance.output();
    let given = Arc::clone(&balance);
    let batches = blocks.map_ok(move |(id, handle)| {
        let (id, given) = (id.first_parts(parts), Arc::clone(&given));
        block_batches(handle).map_ok(move |batch| {
            given.give(batch.num_rows());
            (id.clone(), batch)
        })
    });
    let ended = stream::once(async move {
        let mut output = output;
        output.end()?;
        balance.all_begun()?;
        Ok(None)
    });
    let batches = batches.try_flatten().map_ok(Some).chain(ended);
    Ok(batches.try_filter_map(|batch| std::future::ready(Ok(batch))).boxed())
}

/// Counts the rows of each task, the first one from `first_row` on, and passes over `skip` rows. Where it is known
/// which task is the first, and it has no more rows, the next one is counted as others are.
fn numbered(batches: Identified, (first, first_row): (Option<TaskId>, u64), skip: u64) -> MarkedStream {
    let mut next: Option<Mark> = None;
    let left = Arc::new(AtomicU64::new(skip));
    let (unpassed, mut skip) = (Arc::clone(&left), skip);
    let mark = move |(id, batch): (TaskId, RecordBatch)| {
        let mark = match next.take() {
            Some(mark) if mark.id == id => mark,
            Some(_) => Mark { id, row: 0 },
            None if first.as_ref().is_some_and(|first| !id.is_within(first)) => Mark { id, row: 0 },
            None => Mark { id, row: first_row },
        };
        next = Some(mark.behind(batch.num_rows()));
        let passed = skip.min(batch.num_rows() as u64) as usize;
        skip -= passed as u64;
        let batch = if passed == 0 { batch } else { batch.slice(passed, batch.num_rows() - passed) };
        left.store(skip, Relaxed);
        std::future::ready(Ok((batch.num_rows() > 0).then(|| Marked { mark: mark.behind(passed), batch })))
    };
    let ended = stream::once(async move {
        match unpassed.load(Relaxed) {
            0 => Ok(None),
            rows => exec_err!("the place is behind the last row: there are {rows} rows too few"),
        }
    });
    let marked = batches.try_filter_map(mark).map_ok(Some).chain(ended);
    marked.try_filter_map(|marked| std::future::ready(Ok(marked))).boxed()
}

/// The rows without where they stand.
pub(crate) fn rows_of_marked(schema: SchemaRef, rows: MarkedStream) -> SendableRecordBatchStream {
    stream_of(schema, rows.map_ok(|marked| marked.batch).boxed())
}

/// Cuts a stream, whose first row is the row of number `first` of all, into tasks of so many rows. They share the
/// stream, so each begins when the one before has ended, also for those who run several tasks at once.
pub(crate) fn tasks_of_rows(batches: SendableRecordBatchStream, task_rows: u64, first: u64) -> TaskStream {
    let schema = batches.schema();
    let rest = Arc::new(Mutex::new(Rest { batches: Some(batches), pending: None, next: first }));
    let before: Option<oneshot::Receiver<()>> = None;
    let tasks = stream::try_unfold((rest, first, before), move |(rest, first, before)| {
        let schema = Arc::clone(&schema);
        async move {
            // There is always one task, and one for all rows that follow.
            if let Some(before) = before {
                let _ended = before.await;
                if !rest.lock().await.skip_to(first).await? {
                    return Ok(None);
                }
            }
            let number = first / task_rows;
            let end = (number + 1) * task_rows;
            let (ends, ended) = oneshot::channel::<()>();
            let rows = stream::try_unfold((Arc::clone(&rest), ends), move |(rest, ends)| async move {
                let batch = rest.lock().await.take_before(end).await?;
                Ok(batch.map(|batch| (batch, (rest, ends))))
            });
            let task = Task::of_plan(TaskId::root(number as usize), stream_of(schema, rows.boxed()));
            Ok(Some((task, (rest, end, Some(ended)))))
        }
    });
    tasks.boxed()
}

/// What of a stream has not been given.
struct Rest {
    batches: Option<SendableRecordBatchStream>,
    pending: Option<RecordBatch>,
    /// The number of the next row.
    next: u64,
}

impl Rest {
    /// Whether there are more rows.
    async fn fill(&mut self) -> Result<bool> {
        while self.pending.is_none() {
            let Some(batches) = &mut self.batches else { return Ok(false) };
            match batches.try_next().await? {
                Some(batch) => self.pending = Some(batch).filter(|batch| batch.num_rows() > 0),
                None => self.batches = None,
            }
        }
        Ok(true)
    }

    /// Passes over rows that nobody took, up to one. Whether it is there.
    async fn skip_to(&mut self, number: u64) -> Result<bool> {
        while self.take_before(number).await?.is_some() {}
        Ok(self.fill().await? && self.next == number)
    }

    /// The next rows, before the one of a number.
    async fn take_before(&mut self, end: u64) -> Result<Option<RecordBatch>> {
        let left = usize::try_from(end.saturating_sub(self.next)).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(None);
        }
        self.fill().await?;
        let Some(batch) = self.pending.take() else { return Ok(None) };
        let rows = batch.num_rows().min(left);
        self.next += rows as u64;
        if batch.num_rows() > rows {
            self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        Ok(Some(batch.slice(0, rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Array, Int64Array};
    use futures::FutureExt;

    async fn sizes(rows: &[usize], first: u64) -> Vec<(usize, usize)> {
        let batch =
            |rows: usize| RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![0; rows])) as _)]).unwrap();
        let batches: Vec<_> = rows.iter().map(|rows| Ok(batch(*rows))).collect();
        let stream = stream_of(batch(0).schema(), stream::iter(batches).boxed());
        let tasks = tasks_of_rows(stream, 10, first).and_then(|task| async move {
            let rows = task.batches.try_fold(0, |sum, batch| async move { Ok(sum + batch.num_rows()) }).await?;
            Ok((task.id.task_of_source(), rows))
        });
        tasks.try_collect().await.unwrap()
    }

    #[tokio::test]
    async fn tasks_have_so_many_rows_and_the_last_one_the_rest() {
        assert_eq!(sizes(&[4, 0, 30, 1], 0).await, [(0, 10), (1, 10), (2, 10), (3, 5)]);
        assert_eq!(sizes(&[10, 10], 0).await, [(0, 10), (1, 10)]);
        assert_eq!(sizes(&[], 0).await, [(0, 0)]);
        assert_eq!(sizes(&[12], 27).await, [(2, 3), (3, 9)]);
    }

    #[tokio::test]
    async fn a_task_begins_when_the_one_before_has_ended() {
        let batch = |first: i64| {
            let numbers = Int64Array::from_iter_values(first..first + 4);
            RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).unwrap()
        };
        let batches: Vec<_> = (0..5).map(|k| Ok(batch(k * 4))).collect();
        let mut tasks = tasks_of_rows(stream_of(batch(0).schema(), stream::iter(batches).boxed()), 10, 0);
        let mut first = tasks.try_next().await.unwrap().unwrap();
        assert_eq!(first.batches.try_next().await.unwrap().unwrap().num_rows(), 4);
        assert!(tasks.try_next().now_or_never().is_none(), "the first task goes on");
        // Nobody takes the rest of it, and the next one has its own rows.
        drop(first);
        let mut second = tasks.try_next().await.unwrap().unwrap();
        let rows = second.batches.try_next().await.unwrap().unwrap();
        assert_eq!(rows.column(0).to_data(), batch(8).slice(2, 2).column(0).to_data());
    }
}
