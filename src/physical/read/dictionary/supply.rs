//! Columns of a scan that dictionaries give, instead of the decoder.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::filter::batch_filter;
use futures::{StreamExt, TryStreamExt, stream};

use super::chunk::{CodedChunk, CodedRows, FileReader};
use crate::physical::tasks::stream_of;

/// What tasks of a scan have found out for those behind them.
#[derive(Debug, Default)]
pub(in crate::physical::read) struct Refusals {
    /// Columns that have no codes, by what the scan gives.
    columns: Vec<AtomicBool>,
    /// Whether filters are left to the decoder: what it gives of them has other rows.
    filters: AtomicBool,
}

impl Refusals {
    pub(in crate::physical::read) fn of(columns: usize) -> Self {
        Self { columns: (0..columns).map(|_| AtomicBool::new(false)).collect(), ..Self::default() }
    }
}

/// The rows of a task, column by column.
pub(super) struct Supply<'a> {
    refusals: &'a Refusals,
    columns: Vec<SuppliedColumn>,
    /// Rows that there are.
    pub(super) rows: usize,
    bytes: usize,
    max_bytes: usize,
}

struct SuppliedColumn {
    /// Its number among those of the scan, and of the table.
    output: usize,
    table: usize,
    parts: Vec<CodedRows>,
}

impl<'a> Supply<'a> {
    /// Of a scan that gives columns of the table, unless it gives what it computes of them.
    pub(super) fn of(projection: &ProjectionExprs, refusals: &'a Refusals, max_bytes: usize) -> Option<Self> {
        let table_columns = projection.iter().map(|given| Some(given.expr.downcast_ref::<Column>()?.index()));
        let table_columns = table_columns.collect::<Option<Vec<usize>>>()?;
        let is_refused = |output: usize| refusals.columns.get(output).is_none_or(|refused| refused.load(Relaxed));
        let are_all_wanted = (0..table_columns.len()).all(|output| !is_refused(output));
        if refusals.filters.load(Relaxed) && !are_all_wanted {
            return None;
        }
        let columns = table_columns.into_iter().enumerate().filter(|(output, _)| !is_refused(*output));
        let columns = columns.map(|(output, table)| SuppliedColumn { output, table, parts: Vec::new() });
        let columns: Vec<_> = columns.collect();
        (!columns.is_empty()).then_some(Self { refusals, columns, rows: 0, bytes: 0, max_bytes })
    }

    /// The columns of the table that it gives.
    pub(super) fn table_columns(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|column| column.table)
    }

    /// Whether pages of a column of the table stay until its rows are looked up, so that so many bytes of pages do.
    pub(super) fn keeps(&self, table_column: usize, bytes: usize) -> bool {
        bytes <= self.max_bytes && self.columns.iter().any(|column| column.table == table_column)
    }

    /// Whether it can be used: where filters are left to the decoder, only without it.
    pub(super) fn fits(&self, are_filters_done: bool, scan: &Schema) -> bool {
        let fits = are_filters_done || self.columns.len() == scan.fields().len();
        if !fits {
            self.refusals.filters.store(true, Relaxed);
        }
        fits
    }

    /// Whether so many rows of so many columns may be looked up beside what was taken in: by their codes alone.
    pub(super) fn may_look_up(&self, rows: usize, columns: usize) -> bool {
        self.bytes + rows * columns * size_of::<u32>() <= self.max_bytes
    }

    /// Takes the `wanted` rows of a row group in, of which some columns were looked up already. `None` when there is no
    /// room for them, or nothing is left to give.
    pub(super) async fn take_in(
        mut self,
        file: &mut FileReader<'_>,
        group: usize,
        mut opened: HashMap<usize, CodedChunk>,
        mut looked_up: HashMap<usize, CodedRows>,
        wanted: &BooleanBuffer,
    ) -> Option<Self> {
        if !self.may_look_up(wanted.count_set_bits(), self.columns.len()) {
            return None;
        }
        let mut columns = Vec::with_capacity(self.columns.len());
        for mut column in std::mem::take(&mut self.columns) {
            let rows = match looked_up.remove(&column.table) {
                Some(rows) => Some(rows),
                None => file.rows(group, column.table, &mut opened, wanted).await,
            };
            let Some(rows) = rows else {
                self.refusals.columns[column.output].store(true, Relaxed);
                continue;
            };
            self.bytes += rows.bytes();
            if self.bytes > self.max_bytes {
                return None;
            }
            column.parts.push(rows);
            columns.push(column);
        }
        self.rows += wanted.count_set_bits();
        (!columns.is_empty()).then_some(Self { columns, ..self })
    }

    /// All rows, as columns of `scan`.
    pub(super) fn finish(self, scan: &SchemaRef) -> Supplied {
        let columns = self.columns.into_iter().map(|column| (column.output, column.parts)).collect();
        Supplied { scan: Arc::clone(scan), columns, rows: self.rows }
    }
}

/// The columns that dictionaries give, of all rows of a task.
pub(super) struct Supplied {
    scan: SchemaRef,
    /// By their numbers among those of the scan.
    columns: HashMap<usize, Vec<CodedRows>>,
    rows: usize,
}

impl Supplied {
    /// The columns of the scan that are left to the decoder.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.scan.fields().len()).filter(|column| !self.columns.contains_key(column)).collect()
    }

    /// The rows, where no column is missing, in batches of so many, without those for which `filter` does not hold.
    pub(super) fn alone(self, filter: Option<Arc<dyn PhysicalExpr>>, batch_rows: usize) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.scan);
        let rows = self.rows;
        let first_rows = (0..rows).step_by(batch_rows.max(1));
        let batches = first_rows.map(move |first| {
            let batch = self.rows(first, batch_rows.min(rows - first), &[])?;
            // What fails is evaluated again above, and told there.
            Ok(filter.as_ref().and_then(|filter| batch_filter(&batch, filter).ok()).unwrap_or(batch))
        });
        stream_of(schema, stream::iter(batches).boxed())
    }

    /// The rows with the columns that are missing, which come in the same order.
    pub(super) fn beside(self, decoded: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.scan);
        let batches = stream::try_unfold((self, decoded, 0), |(supplied, mut decoded, first)| async move {
            match decoded.try_next().await? {
                Some(batch) if first + batch.num_rows() <= supplied.rows => {
                    let behind = first + batch.num_rows();
                    let rows = supplied.rows(first, batch.num_rows(), batch.columns())?;
                    Ok(Some((rows, (supplied, decoded, behind))))
                }
                None if first == supplied.rows => Ok(None),
                _ => internal_err!("of {} rows that were chosen others were decoded", supplied.rows),
            }
        });
        stream_of(schema, batches.boxed())
    }

    fn rows(&self, first: usize, rows: usize, decoded: &[ArrayRef]) -> Result<RecordBatch> {
        if rows == 0 {
            return Ok(RecordBatch::new_empty(Arc::clone(&self.scan)));
        }
        let mut decoded = decoded.iter();
        let column = |number: usize| match self.columns.get(&number) {
            Some(parts) => part_of(parts, first, rows),
            None => match decoded.next() {
                Some(column) => Ok(Arc::clone(column)),
                None => internal_err!("column {number} was not decoded"),
            },
        };
        let columns = (0..self.scan.fields().len()).map(column).collect::<Result<_>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&self.scan), columns)?)
    }
}

/// Some rows of those of the parts.
fn part_of(parts: &[CodedRows], first: usize, rows: usize) -> Result<ArrayRef> {
    let (mut found, mut before) = (Vec::new(), 0);
    for part in parts {
        let (start, end) = (first.max(before), (first + rows).min(before + part.len()));
        if start < end {
            found.push(part.get(start - before..end - before)?);
        }
        before += part.len();
    }
    match found.as_slice() {
        [only] => Ok(Arc::clone(only)),
        _ => Ok(concat(&found.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>())?),
    }
}
