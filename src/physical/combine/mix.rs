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
use parking_lot::Mutex;

use super::TASK_ROWS;
use super::row_reader::RowReader;

/// Rows of a turn.
const TURN: usize = 1024;

/// Rows that were taken of each input at some row of the mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// Of each input.
    pub(super) rows: Vec<u64>,
    /// The input whose turn it is, and the rows that are left of it; 0 at the end of a turn.
    pub(super) turn: (u64, u64),
}

/// At which rows it stood how: once in each so many rows.
#[derive(Debug, Clone, Default)]
pub(super) struct TurnLog(Arc<Mutex<Vec<(u64, Taken)>>>);

impl TurnLog {
    /// How it stood at row `number`, where that was noted.
    pub(super) fn at(&self, number: u64) -> Option<Taken> {
        let entries = self.0.lock();
        let found = entries.binary_search_by_key(&number, |(at, _)| *at).ok()?;
        entries.get(found).map(|(_, taken)| taken.clone())
    }
}

struct Mix {
    log: TurnLog,
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
    turn: Option<(usize, usize)>,
    log: TurnLog,
) -> BoxStream<'static, Result<RecordBatch>> {
    let total: f64 = weights.iter().sum();
    let parts = weights.iter().map(|weight| weight / total).collect();
    let mix = Mix { log, inputs, parts, until_shortest, schema, turn };
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
            self.note(input, left);
            let rows = self.inputs[input].available().await?.min(left).min(self.until_note());
            self.turn = (rows > 0 && left > rows).then_some((input, left - rows));
            if rows > 0 {
                let columns = self.inputs[input].take(rows).columns().to_vec();
                let options = RecordBatchOptions::new().with_row_count(Some(rows));
                let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
                return Ok(Some(batch));
            }
        }
    }

    fn total(&self) -> u64 {
        self.inputs.iter().map(|input| input.taken() as u64).sum()
    }

    /// Rows up to the next one at which it is noted how it stands.
    fn until_note(&self) -> usize {
        (TASK_ROWS - self.total() % TASK_ROWS) as usize
    }

    fn note(&self, input: usize, left: usize) {
        let total = self.total();
        if total.is_multiple_of(TASK_ROWS) {
            let rows = self.inputs.iter().map(|input| input.taken() as u64).collect();
            let mut entries = self.log.0.lock();
            if entries.last().is_none_or(|(at, _)| *at < total) {
                entries.push((total, Taken { rows, turn: (input as u64, left as u64) }));
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
