//! Forms blocks out of the batches that a task emits, by Ray's rule: a block leaves once *more* than the target is
//! buffered; at 1.5 times the target it is cut, so that the last piece has at least half of it; rows are never split.

use std::collections::VecDeque;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;

use super::Block;
use super::metadata::sliced_bytes;

/// A block this many times larger than the target is cut.
const MAX_SAFE_BLOCK_SIZE_FACTOR: f64 = 1.5;

/// How many of `rows` rows, which have `bytes` bytes, make a full block.
pub(crate) fn rows_of_block(rows: usize, bytes: usize, target_bytes: usize) -> usize {
    if (bytes as f64) < MAX_SAFE_BLOCK_SIZE_FACTOR * target_bytes as f64 {
        return rows;
    }
    let bytes_per_row = bytes as f64 / rows as f64;
    ((target_bytes as f64 / bytes_per_row).ceil() as usize).clamp(1, rows)
}

/// Buffers the batches of one task.
#[derive(Debug)]
pub(crate) struct OutputBuffer {
    schema: SchemaRef,
    target_bytes: usize,
    batches: VecDeque<(RecordBatch, usize)>,
    rows: usize,
    bytes: usize,
    emitted: usize,
}

impl OutputBuffer {
    /// A buffer that aims at blocks of `target_bytes`.
    pub(crate) fn new(schema: SchemaRef, target_bytes: usize) -> Self {
        Self { schema, target_bytes, batches: VecDeque::new(), rows: 0, bytes: 0, emitted: 0 }
    }

    /// Adds the next batch of the task.
    pub(crate) fn push(&mut self, batch: RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        let bytes = sliced_bytes(&batch);
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.batches.push_back((batch, bytes));
    }

    /// Bytes that are buffered.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next full block, if there is one.
    pub(crate) fn next_full(&mut self) -> Option<Block> {
        (self.bytes > self.target_bytes).then(|| self.emit())
    }

    /// What is left once the task has ended. A task without rows gives one empty block.
    pub(crate) fn next_final(&mut self) -> Option<Block> {
        (self.rows > 0 || self.emitted == 0).then(|| self.emit())
    }

    fn emit(&mut self) -> Block {
        self.emitted += 1;
        let mut wanted = rows_of_block(self.rows, self.bytes, self.target_bytes);
        let mut out = Vec::new();
        while wanted > 0
            && let Some((batch, bytes)) = self.batches.pop_front()
        {
            self.rows -= batch.num_rows();
            self.bytes -= bytes;
            if batch.num_rows() <= wanted {
                wanted -= batch.num_rows();
                out.push(batch);
            } else {
                let rest = batch.slice(wanted, batch.num_rows() - wanted);
                out.push(batch.slice(0, wanted));
                wanted = 0;
                let bytes = sliced_bytes(&rest);
                self.rows += rest.num_rows();
                self.bytes += bytes;
                self.batches.push_front((rest, bytes));
            }
        }
        Block::new(SchemaRef::clone(&self.schema), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use std::sync::Arc;

    fn blocks(target: usize, batches: &[usize]) -> Vec<usize> {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
        let mut buffer = OutputBuffer::new(Arc::clone(&schema), target);
        let mut rows = Vec::new();
        for n in batches {
            let column = Arc::new(Int64Array::from(vec![0; *n]));
            buffer.push(RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap());
            while let Some(block) = buffer.next_full() {
                rows.push(block.num_rows());
            }
        }
        while let Some(block) = buffer.next_final() {
            rows.push(block.num_rows());
        }
        rows
    }

    #[test]
    fn exactly_the_target_stays_buffered() {
        assert_eq!(blocks(800, &[100]), [100]);
        assert_eq!(blocks(800, &[100, 1]), [101]);
    }

    #[test]
    fn below_one_and_a_half_targets_leaves_whole() {
        assert_eq!(blocks(800, &[149]), [149]);
    }

    #[test]
    fn from_one_and_a_half_targets_on_is_cut_and_the_rest_is_at_least_half() {
        assert_eq!(blocks(800, &[150]), [100, 50]);
        assert_eq!(blocks(800, &[1000]), [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]);
    }

    #[test]
    fn rows_are_never_split() {
        assert_eq!(blocks(3, &[2]), [1, 1]);
    }

    #[test]
    fn an_empty_task_gives_one_empty_block() {
        assert_eq!(blocks(800, &[]), [0]);
        assert_eq!(blocks(800, &[0, 0]), [0]);
    }
}
