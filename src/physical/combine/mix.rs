//! Ray's `mix`: rows of several inputs by turns, so that each has its part of the rows at any time.
//!
//! A turn is a run of rows, of a fixed length whatever the batches and blocks, of the input that is furthest behind its
//! part. It is waited for rather than replaced by another one, so that the same inputs give the same rows in the same
//! order.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::row_reader::RowReader;

/// Rows of a turn.
const TURN: usize = 1024;

struct Mix {
    inputs: Vec<RowReader>,
    /// Parts of the rows, which sum to 1.
    parts: Vec<f64>,
    until_shortest: bool,
    schema: SchemaRef,
    /// The input whose turn it is, and the rows that are left of it.
    turn: Option<(usize, usize)>,
}

/// The columns of every input have the types of `schema`.
pub(super) fn mixed(
    inputs: Vec<RowReader>,
    weights: &[f64],
    until_shortest: bool,
    schema: SchemaRef,
) -> BoxStream<'static, Result<RecordBatch>> {
    let total: f64 = weights.iter().sum();
    let parts = weights.iter().map(|weight| weight / total).collect();
    let mix = Mix { inputs, parts, until_shortest, schema, turn: None };
    stream::try_unfold(mix, |mut mix| async move {
        let batch = mix.next().await?;
        Ok(batch.map(|batch| (batch, mix)))
    })
    .boxed()
}

impl Mix {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let (input, left) = match self.turn {
                Some(turn) => turn,
                None => match self.whose_turn().await? {
                    Some(input) => (input, TURN),
                    None => return Ok(None),
                },
            };
            let rows = self.inputs[input].available().await?.min(left);
            self.turn = (rows > 0 && left > rows).then_some((input, left - rows));
            if rows > 0 {
                let columns = self.inputs[input].take(rows).columns().to_vec();
                let options = RecordBatchOptions::new().with_row_count(Some(rows));
                let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
                return Ok(Some(batch));
            }
        }
    }

    /// The input that is furthest behind; of equal ones the one with the larger weight, and then the first.
    async fn whose_turn(&mut self) -> Result<Option<usize>> {
        let total: usize = self.inputs.iter().map(RowReader::taken).sum();
        let mut most: Option<(usize, f64)> = None;
        for (number, input) in self.inputs.iter_mut().enumerate() {
            if input.available().await? == 0 {
                match self.until_shortest {
                    true => return Ok(None),
                    false => continue,
                }
            }
            let part = self.parts[number];
            let behind = part * total as f64 - input.taken() as f64;
            let before = most.map(|(known, most)| behind.total_cmp(&most).then(part.total_cmp(&self.parts[known])));
            if before.is_none_or(Ordering::is_gt) {
                most = Some((number, behind));
            }
        }
        Ok(most.map(|(number, _)| number))
    }
}
