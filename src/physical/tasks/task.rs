//! A task, and the streams of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::block::{Block, TaskId};

/// One unit of work: its rows must be drained before the next task of the same stream is asked for.
pub(crate) struct Task {
    /// Where its rows stand in the order of the dataset.
    pub(crate) id: TaskId,
    /// Its rows, in order.
    pub(crate) batches: SendableRecordBatchStream,
    /// Whether its rows come from other stages while it runs.
    pub(crate) input: TaskInput,
}

/// Where the rows of a task come from. Those of a block, a bucket or a file are there when the task begins, or will be
/// whatever others do. Those of a plan, like a sort or a join, may have to be made by other stages first.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskInput(Option<Arc<AtomicBool>>);

impl TaskInput {
    /// Whether the task waits for other stages, as of the last time that somebody asked for its rows.
    pub(crate) fn awaits_others(&self) -> bool {
        self.0.as_ref().is_some_and(|waits| waits.load(Relaxed))
    }
}

impl Task {
    /// A task whose rows do not depend on what other stages do while it runs.
    pub(crate) fn new(id: TaskId, batches: SendableRecordBatchStream) -> Self {
        Self { id, batches, input: TaskInput::default() }
    }

    /// A task over a plan, which may wait for other stages.
    pub(crate) fn of_plan(id: TaskId, mut batches: SendableRecordBatchStream) -> Self {
        let (schema, waits) = (batches.schema(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&waits);
        let watched = stream::poll_fn(move |context| {
            let polled = batches.poll_next_unpin(context);
            told.store(polled.is_pending(), Relaxed);
            polled
        });
        Self { id, batches: stream_of(schema, watched.boxed()), input: TaskInput(Some(waits)) }
    }

    /// The same task, which keeps something until its stream drops.
    pub(crate) fn holding(self, held: impl Send + 'static) -> Self {
        let schema = self.batches.schema();
        let batches = self.batches.inspect(move |_| {
            let _held = &held;
        });
        Self { batches: stream_of(schema, batches.boxed()), ..self }
    }
}

/// The tasks that one partition gets to do. Ids increase.
pub(crate) type TaskStream = BoxStream<'static, Result<Task>>;

/// The blocks that one partition emits. Ids increase.
pub(crate) type BlockStream = BoxStream<'static, Result<(TaskId, Block)>>;

/// A batch stream of a schema.
pub(crate) fn stream_of(
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
) -> SendableRecordBatchStream {
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}
