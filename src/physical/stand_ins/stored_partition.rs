//! A partition of windows that say the same of all of its rows (`sum(x) OVER ()`), with its rows in the store.
//!
//! Rows are taken in as they come: the windows have seen them all when the last has come, and then the rows are read
//! back. They spill meanwhile, so that the partition may be larger than memory.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{Accumulator, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, WindowExpr};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::block::{Block, sliced_bytes};
use crate::physical::tasks::block_batches;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Rows are stored in blocks of about this many bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// How the text of a window ends that has no `FILTER`. DataFusion has no other way to ask.
const WITHOUT_FILTER: &str = "filter: None }";

/// The aggregate of a window over the whole partition, whatever the row.
fn aggregate_of(window: &dyn WindowExpr) -> Option<&PlainAggregateWindowExpr> {
    let aggregate = window.as_any().downcast_ref::<PlainAggregateWindowExpr>()?;
    let frame = window.get_window_frame();
    let whole = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => frame.units == WindowFrameUnits::Range && window.order_by().is_empty(),
        bound => bound.is_unbounded(),
    };
    let unfiltered = format!("{aggregate:?}").ends_with(WITHOUT_FILTER);
    (whole(&frame.start_bound) && whole(&frame.end_bound) && unfiltered).then_some(aggregate)
}

/// Whether windows say the same of all rows of a partition.
pub(crate) fn are_of_partition(windows: &[Arc<dyn WindowExpr>]) -> bool {
    windows.iter().all(|window| aggregate_of(window.as_ref()).is_some())
}

/// One of the windows.
struct WindowAggregate {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    accumulator: Box<dyn Accumulator>,
}

/// A partition of which more rows may come.
pub(crate) struct StoredPartition {
    schema: SchemaRef,
    windows: Vec<WindowAggregate>,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
    stored: Vec<BlockHandle>,
    waiting: Vec<RecordBatch>,
    waiting_bytes: usize,
    /// The last row, whose keys are those of the partition.
    last: Option<RecordBatch>,
}

impl StoredPartition {
    /// A partition without rows yet, whose columns are those of `schema`.
    pub(crate) fn new(
        windows: &[Arc<dyn WindowExpr>],
        schema: SchemaRef,
        store: &Arc<BlockStore>,
        owner: &Arc<Owner>,
    ) -> Result<Self> {
        let window = |window: &Arc<dyn WindowExpr>| match aggregate_of(window.as_ref()) {
            Some(aggregate) => {
                let accumulator = aggregate.get_aggregate_expr().create_accumulator()?;
                Ok(WindowAggregate { arguments: window.expressions(), accumulator })
            }
            None => exec_err!("window {} depends on the row", window.name()),
        };
        let windows = windows.iter().map(window).collect::<Result<_>>()?;
        let (store, owner) = (Arc::clone(store), Arc::clone(owner));
        Ok(Self { schema, windows, store, owner, stored: vec![], waiting: vec![], waiting_bytes: 0, last: None })
    }

    /// The last row that came.
    pub(crate) fn last(&self) -> Option<&RecordBatch> {
        self.last.as_ref()
    }

    /// Bytes that it keeps beside its blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.waiting_bytes + self.windows.iter().map(|window| window.accumulator.size()).sum::<usize>()
    }

    /// Adds rows.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        for WindowAggregate { arguments, accumulator } in &mut self.windows {
            let values = arguments.iter().map(|argument| argument.evaluate(&batch)?.into_array(rows));
            accumulator.update_batch(&values.collect::<Result<Vec<_>>>()?)?;
        }
        self.last = Some(batch.slice(rows - 1, 1));
        self.waiting_bytes += sliced_bytes(&batch);
        self.waiting.push(batch);
        if self.waiting_bytes >= BLOCK_BYTES { self.keep() } else { Ok(()) }
    }

    fn keep(&mut self) -> Result<()> {
        let block = Block::new(Arc::clone(&self.schema), std::mem::take(&mut self.waiting));
        self.waiting_bytes = 0;
        self.stored.push(self.store.put(block, NextUse::AfterInput, &self.owner)?);
        Ok(())
    }

    /// All rows, and behind them what the windows say. `schema` is that of both.
    pub(crate) fn finish(mut self, schema: &SchemaRef) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        if !self.waiting.is_empty() {
            self.keep()?;
        }
        let values = self.windows.iter_mut().map(|window| window.accumulator.evaluate());
        let values = values.collect::<Result<Vec<ScalarValue>>>()?;
        let schema = Arc::clone(schema);
        let with_values = move |batch: RecordBatch| {
            let mut columns = batch.columns().to_vec();
            for value in &values {
                columns.push(value.to_array_of_size(batch.num_rows())?);
            }
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
        };
        let batches = stream::iter(self.stored).map(block_batches).flatten();
        Ok(batches.map(move |batch| batch.and_then(&with_values)).boxed())
    }
}
