//! Where partitions and peers begin.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::compute::{SortColumn, concat};
use datafusion::common::Result;
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;

/// Rows that are equal in some columns and follow each other.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// All rows of the batch, group by group.
    pub(super) ranges: Vec<Range<usize>>,
    /// Whether the first of them began in a batch before.
    pub(super) continues: bool,
}

/// The rows of a batch, of which there is at least one.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    pub(super) batch: &'a RecordBatch,
    pub(super) partitions: Groups,
    /// Rows of a partition that are equal in its order. None if nobody asks.
    pub(super) peers: Groups,
}

/// Finds groups in batches that follow each other.
pub(super) struct Borders {
    partition: Keys,
    peers: Option<Keys>,
}

impl Borders {
    /// Those of the partitions of a window, and, if `with_peers`, of its peers.
    pub(super) fn new(window: &dyn WindowExpr, with_peers: bool) -> Self {
        let partition = window.partition_by().to_vec();
        let order = window.order_by().iter().map(|order| Arc::clone(&order.expr));
        let peers = with_peers.then(|| Keys::new(partition.iter().cloned().chain(order).collect()));
        Self { partition: Keys::new(partition), peers }
    }

    /// The groups of the next rows.
    pub(super) fn rows<'a>(&mut self, batch: &'a RecordBatch) -> Result<Rows<'a>> {
        let partitions = self.partition.groups(batch)?;
        let peers = self.peers.as_mut().map(|keys| keys.groups(batch)).transpose()?.unwrap_or_default();
        Ok(Rows { batch, partitions, peers })
    }
}

struct Keys {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Those of the last row.
    last: Option<Vec<ArrayRef>>,
}

impl Keys {
    fn new(keys: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        Self { keys, last: None }
    }

    fn groups(&mut self, batch: &RecordBatch) -> Result<Groups> {
        let rows = batch.num_rows();
        let values = self.keys.iter().map(|key| key.evaluate(batch)?.into_array(rows)).collect::<Result<Vec<_>>>()?;
        let continues = match &self.last {
            Some(last) => {
                let border = last.iter().zip(&values).map(|(last, next)| concat(&[last, &next.slice(0, 1)]));
                ranges(2, border.collect::<Result<_, _>>()?)?.len() == 1
            }
            None => false,
        };
        // A copy, which does not hold the whole batch.
        let last = values.iter().map(|values| concat(&[&values.slice(rows - 1, 1)]));
        self.last = Some(last.collect::<Result<_, _>>()?);
        Ok(Groups { ranges: ranges(rows, values)?, continues })
    }
}

fn ranges(rows: usize, values: Vec<ArrayRef>) -> Result<Vec<Range<usize>>> {
    let columns: Vec<_> = values.into_iter().map(|values| SortColumn { values, options: None }).collect();
    evaluate_partition_ranges(rows, &columns)
}
