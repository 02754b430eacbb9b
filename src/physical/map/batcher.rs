//! Batches of the size that a function asks for.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::make_comparator;
use datafusion::arrow::compute::{SortOptions, concat_batches, partition};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, resources_err};

use crate::block::{Block, OutputBuffer, sliced_bytes};
use crate::config::ByteSize;
use crate::functions::BatchSize;
use crate::store::WorkingSet;

/// Cuts and joins batches; rows are copied only where a batch is put together from several.
pub(super) enum Batcher {
    AsTheyCome(VecDeque<RecordBatch>),
    Rows {
        size: usize,
        schema: SchemaRef,
        pending: VecDeque<RecordBatch>,
        rows: usize,
    },
    WholeBlocks(OutputBuffer),
    /// Each group of neighbouring rows with equal keys, or pieces of it.
    Groups {
        keys: Arc<[usize]>,
        max_rows: usize,
        schema: SchemaRef,
        incoming: VecDeque<RecordBatch>,
        /// The group or piece that has begun, and its rows.
        open: Vec<RecordBatch>,
        rows: usize,
        /// Bytes of the batches of which it has all rows, and what is reserved for them.
        bytes: usize,
        reserved: Option<WorkingSet>,
    },
}

impl Batcher {
    /// Whole blocks end at `target_block_bytes`.
    pub(super) fn new(size: BatchSize, target_block_bytes: usize, schema: SchemaRef) -> Self {
        match size {
            BatchSize::AsTheyCome => Self::AsTheyCome(VecDeque::new()),
            BatchSize::Rows(size) => Self::Rows { size, schema, pending: VecDeque::new(), rows: 0 },
            BatchSize::WholeBlock => Self::WholeBlocks(OutputBuffer::new(schema, target_block_bytes)),
        }
    }

    /// Groups of rows with equal values in the columns `keys`, those of more than `max_rows` in pieces. Rows of a
    /// group are neighbours. Groups of many batches take memory from `reserved`.
    pub(super) fn groups(keys: Arc<[usize]>, max_rows: usize, schema: SchemaRef, reserved: Option<WorkingSet>) -> Self {
        let (incoming, open) = (VecDeque::new(), Vec::new());
        Self::Groups { keys, max_rows, schema, incoming, open, rows: 0, bytes: 0, reserved }
    }

    pub(super) fn push(&mut self, batch: RecordBatch) {
        match self {
            Self::AsTheyCome(pending) => pending.push_back(batch),
            Self::Groups { incoming, .. } => incoming.push_back(batch),
            Self::Rows { pending, rows, .. } => {
                *rows += batch.num_rows();
                pending.push_back(batch);
            }
            Self::WholeBlocks(buffer) => buffer.push(batch),
        }
    }

    /// The next batch that is complete, or when the input has `ended` whatever is left.
    pub(super) fn next(&mut self, ended: bool) -> Result<Option<RecordBatch>> {
        match self {
            Self::AsTheyCome(pending) => Ok(pending.pop_front()),
            Self::Rows { size, schema, pending, rows } => {
                if *rows == 0 || (*rows < *size && !ended) {
                    return Ok(None);
                }
                let wanted = (*size).min(*rows);
                *rows -= wanted;
                Ok(Some(join(schema, take_rows(pending, wanted))?))
            }
            Self::Groups { keys, max_rows, schema, incoming, open, rows, bytes, reserved } => {
                while let Some(batch) = incoming.pop_front() {
                    if batch.num_rows() == 0 {
                        continue;
                    }
                    let same = match open.last() {
                        Some(last) => rows_as_last(keys, last, &batch)?,
                        None => first_group(keys, &batch)?,
                    };
                    let taken = same.min(*max_rows - *rows);
                    if taken > 0 {
                        open.push(batch.slice(0, taken));
                        *rows += taken;
                    }
                    if taken < batch.num_rows() {
                        incoming.push_front(batch.slice(taken, batch.num_rows() - taken));
                    }
                    if taken < batch.num_rows() || *rows == *max_rows {
                        (*rows, *bytes) = (0, 0);
                        return Ok(Some(join(schema, std::mem::take(open))?));
                    }
                    *bytes += sliced_bytes(&batch);
                    reserve(reserved.as_mut(), *bytes)?;
                }
                if !ended || open.is_empty() {
                    return Ok(None);
                }
                (*rows, *bytes) = (0, 0);
                Ok(Some(join(schema, std::mem::take(open))?))
            }
            Self::WholeBlocks(buffer) => {
                let block = if ended { buffer.next_final() } else { buffer.next_full() };
                match block.filter(|b| b.num_rows() > 0) {
                    Some(block) => Ok(Some(join(&Arc::clone(block.schema()), Block::into_batches(block))?)),
                    None => Ok(None),
                }
            }
        }
    }
}

/// The first rows of some batches.
fn take_rows(pending: &mut VecDeque<RecordBatch>, mut wanted: usize) -> Vec<RecordBatch> {
    let mut pieces = Vec::new();
    while let Some(batch) = pending.pop_front() {
        if batch.num_rows() > wanted {
            pending.push_front(batch.slice(wanted, batch.num_rows() - wanted));
            pieces.push(batch.slice(0, wanted));
            break;
        }
        wanted -= batch.num_rows();
        pieces.push(batch);
        if wanted == 0 {
            break;
        }
    }
    pieces
}

/// Room for a group that has so many bytes up to now. It is joined into one batch for its function.
fn reserve(reserved: Option<&mut WorkingSet>, bytes: usize) -> Result<()> {
    match reserved.map_or(Ok(true), |reserved| reserved.try_resize(2 * bytes))? {
        true => Ok(()),
        false => resources_err!(
            "a group has {} so far, and does not fit in memory twice to be given to its function; batch_size => n gives it in \
             pieces of n rows",
            ByteSize(bytes)
        ),
    }
}

/// How many rows the first group of a batch has. Without keys all rows are of one group.
fn first_group(keys: &[usize], batch: &RecordBatch) -> Result<usize> {
    if keys.is_empty() {
        return Ok(batch.num_rows());
    }
    let columns: Vec<_> = keys.iter().map(|key| Arc::clone(batch.column(*key))).collect();
    Ok(partition(&columns)?.ranges().first().map_or(0, |range| range.end))
}

/// How many rows at the beginning of a batch are of the same group as the last row of another.
fn rows_as_last(keys: &[usize], last: &RecordBatch, batch: &RecordBatch) -> Result<usize> {
    let end = last.num_rows() - 1;
    for key in keys {
        let equal = make_comparator(last.column(*key), batch.column(*key), SortOptions::default())?;
        if equal(end, 0).is_ne() {
            return Ok(0);
        }
    }
    first_group(keys, batch)
}

fn join(schema: &SchemaRef, mut pieces: Vec<RecordBatch>) -> Result<RecordBatch> {
    match pieces.len() {
        1 => Ok(pieces.swap_remove(0)),
        _ => Ok(concat_batches(schema, &pieces)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::record_batch;

    fn sizes(size: BatchSize, input: &[usize]) -> Vec<usize> {
        let one = record_batch!(("x", Int32, [1, 2, 3, 4, 5, 6, 7, 8, 9])).unwrap();
        let mut batcher = Batcher::new(size, usize::MAX, one.schema());
        let mut out = Vec::new();
        for rows in input {
            batcher.push(one.slice(0, *rows));
            out.extend(std::iter::from_fn(|| batcher.next(false).unwrap()).map(|b| b.num_rows()));
        }
        out.extend(std::iter::from_fn(|| batcher.next(true).unwrap()).map(|b| b.num_rows()));
        out
    }

    #[test]
    fn batches_have_the_size_asked_for() {
        assert_eq!(sizes(BatchSize::AsTheyCome, &[3, 5]), [3, 5]);
        assert_eq!(sizes(BatchSize::Rows(4), &[3, 5, 9]), [4, 4, 4, 4, 1]);
        assert_eq!(sizes(BatchSize::Rows(100), &[3, 5]), [8]);
        assert_eq!(sizes(BatchSize::WholeBlock, &[3, 5]), [8]);
        assert_eq!(sizes(BatchSize::Rows(4), &[]), [0; 0]);
    }

    #[test]
    fn without_keys_all_rows_are_one_group() {
        let one = record_batch!(("x", Int32, [1, 2, 3, 4, 5])).unwrap();
        for (max_rows, expected) in [(usize::MAX, &[8][..]), (3, &[3, 3, 2])] {
            let mut batcher = Batcher::groups(Arc::new([]), max_rows, one.schema(), None);
            batcher.push(one.clone());
            batcher.push(one.slice(2, 3));
            let mut sizes: Vec<_> = std::iter::from_fn(|| batcher.next(false).unwrap()).map(|b| b.num_rows()).collect();
            sizes.extend(std::iter::from_fn(|| batcher.next(true).unwrap()).map(|b| b.num_rows()));
            assert_eq!(sizes, expected);
        }
    }

    #[test]
    fn groups_are_whole_across_batches() {
        let batch = |k: &[Option<f64>]| {
            let column: datafusion::arrow::array::Float64Array = k.iter().copied().collect();
            RecordBatch::try_from_iter_with_nullable([("k", Arc::new(column) as _, true)]).unwrap()
        };
        let nan = Some(f64::NAN);
        let input = [
            batch(&[Some(1.0), Some(1.0), Some(2.0)]),
            batch(&[]),
            batch(&[Some(2.0), Some(2.0)]),
            batch(&[Some(3.0), nan]),
            batch(&[nan, None]),
            batch(&[None]),
        ];
        for (max_rows, expected) in
            [(usize::MAX, &[2, 3, 1, 2, 2][..]), (2, &[2, 2, 1, 1, 2, 2]), (1, &[1; 10]), (3, &[2, 3, 1, 2, 2])]
        {
            let mut batcher = Batcher::groups(Arc::new([0]), max_rows, input[0].schema(), None);
            let mut sizes = Vec::new();
            for batch in &input {
                batcher.push(batch.clone());
                sizes.extend(std::iter::from_fn(|| batcher.next(false).unwrap()).map(|b| b.num_rows()));
            }
            sizes.extend(std::iter::from_fn(|| batcher.next(true).unwrap()).map(|b| b.num_rows()));
            assert_eq!(sizes, expected, "{max_rows}");
        }
    }
}
