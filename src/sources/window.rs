//! What the window of a pipeline reads: some tasks of a table, or blocks that were cut for it.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::datasource::TableType;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::TryStreamExt;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{Datasource, ReadPlan, ReadRequest, ReadTask};
use crate::block::BlockMetadata;
use crate::boxed::scan_by;
use crate::physical::{IntoPlan, PlanExt, ReadExec, block_batches, stream_of};
use crate::store::BlockHandle;
use futures::FutureExt;
use futures::future::BoxFuture;

/// The tasks of a table, which is scanned once for all of its windows. Clones have the same scan.
#[derive(Debug, Clone)]
pub(crate) struct WindowedTable {
    table: Arc<dyn TableProvider>,
    scan: Arc<OnceCell<Arc<dyn ExecutionPlan>>>,
    tasks: Option<Range<usize>>,
}

impl WindowedTable {
    /// All tasks of a table.
    pub(crate) fn new(table: Arc<dyn TableProvider>) -> Self {
        Self { table, scan: Arc::default(), tasks: None }
    }

    /// These of its tasks.
    pub(crate) fn of_tasks(&self, tasks: Range<usize>) -> Self {
        Self { tasks: Some(tasks), ..self.clone() }
    }

    /// The scan, when a plan has been made that reads it: nothing, where it has no tasks.
    pub(crate) fn read(&self) -> Option<&ReadExec> {
        self.scan.get().and_then(|scan| scan.operator::<ReadExec>())
    }
}

impl WindowedTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        session: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            let scan = self.scan.get_or_try_init(|| self.table.scan(session, projection, filters, limit)).await?;
            match (self.read(), &self.tasks) {
                (Some(read), tasks) => Ok(read.of_tasks(tasks.clone().unwrap_or(0..read.num_tasks())).into_plan()),
                (None, None) => Ok(Arc::clone(scan)),
                (None, Some(_)) => internal_err!("a window of a table without tasks"),
            }
        }
        .boxed()
    }
}

impl TableProvider for WindowedTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    scan_by!(Self::scan_rows);
}

/// Blocks in pieces, one task each.
#[derive(Debug)]
pub(crate) struct WindowBlocks {
    schema: SchemaRef,
    tasks: Vec<Arc<WindowBlock>>,
}

#[derive(Debug)]
struct WindowBlock {
    schema: SchemaRef,
    total: BlockMetadata,
    pieces: Mutex<Option<Vec<BlockHandle>>>,
    /// Whether it is read once, and given back piece by piece.
    once: bool,
}

impl WindowBlocks {
    /// Those of a window, which its plan reads `once`, or several times.
    pub(crate) fn new(schema: SchemaRef, blocks: Vec<Vec<BlockHandle>>, once: bool) -> Self {
        let task = |pieces: Vec<BlockHandle>| {
            let all = || pieces.iter().map(BlockHandle::metadata);
            let num_rows = all().map(|block| block.num_rows).sum();
            let total = BlockMetadata { num_rows, size_bytes: all().map(|block| block.size_bytes).sum() };
            Arc::new(WindowBlock { schema: Arc::clone(&schema), total, pieces: Mutex::new(Some(pieces)), once })
        };
        let tasks = blocks.into_iter().map(task).collect();
        Self { schema, tasks }
    }
}

#[async_trait]
impl Datasource for WindowBlocks {
    fn name(&self) -> &str {
        "InputDataBuffer"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn num_rows(&self) -> Option<usize> {
        Some(self.tasks.iter().map(|block| block.total.num_rows).sum())
    }

    /// One task per block, whatever the parallelism.
    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        let task = |block: &Arc<WindowBlock>| ReadTask {
            rows: Some(block.total.num_rows),
            bytes: Some(block.total.size_bytes),
            ..Arc::new(WindowTask(Arc::clone(block))).into()
        };
        Ok(self.tasks.iter().map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct WindowTask(Arc<WindowBlock>);

impl PartitionStream for WindowTask {
    fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut pieces = self.0.pieces.lock();
        let taken = if self.0.once { pieces.take() } else { pieces.clone() };
        let size = context.session_config().batch_size();
        let batches = match taken {
            Some(pieces) => stream::iter(pieces).map(block_batches).flatten().boxed(),
            None => stream::iter([exec_err!("a block of a window was read a second time")]).boxed(),
        };
        // Operators expect batches of at most this many rows.
        let cut = batches.map_ok(move |batch| {
            let starts = (0..batch.num_rows()).step_by(size);
            stream::iter(starts.map(move |at| Ok(batch.slice(at, size.min(batch.num_rows() - at)))))
        });
        stream_of(Arc::clone(&self.0.schema), cut.try_flatten().boxed())
    }
}
