//! Rows in units of so many, wherever batches end: what is cut by bytes is cut in the same places whatever memory and
//! threads make of batches and blocks.

use std::collections::VecDeque;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::common::Result;
use futures::TryStreamExt;
use futures::stream::{self, BoxStream, StreamExt};

use crate::block::sliced_bytes;
use crate::physical::place::Mark;

/// Rows of a unit; that at the end of a task has fewer.
const UNIT_ROWS: usize = 1 << 10;

/// Rows of the source, in its order.
pub(super) struct Piece {
    /// Where the first one stands, where the source can begin at a row.
    pub(super) mark: Option<Mark>,
    /// Of which epoch they are, of a pipeline.
    pub(super) epoch: u32,
    /// Whether they are of another block than those before.
    pub(super) begins_block: bool,
    /// Whether a window that is large enough may end before them.
    pub(super) may_begin_window: bool,
    pub(super) batch: RecordBatch,
}

/// The same rows in units: numbered in the task that they are of, or in all where nothing is known of tasks. With
/// `block_bytes`, blocks are units of about so many bytes together, or equal parts of a unit that has more.
pub(super) fn in_units(
    pieces: BoxStream<'static, Result<Piece>>,
    block_bytes: Option<usize>,
) -> BoxStream<'static, Result<Piece>> {
    let units = Units { pieces, pending: None, open: None, ready: VecDeque::new(), next_row: 0, block_bytes, bytes: 0 };
    let units = stream::try_unfold(units, |mut units| async move { Ok(units.next().await?.map(|unit| (unit, units))) });
    units.boxed()
}

/// Bytes of rows, without what says which are null: that some are is noted per batch.
pub(super) fn unit_bytes(batch: &RecordBatch) -> usize {
    let nulls = batch.columns().iter().filter_map(|column| column.nulls()).map(|nulls| nulls.len().div_ceil(8));
    sliced_bytes(batch).saturating_sub(nulls.sum())
}

/// Makes units of pieces.
struct Units {
    pieces: BoxStream<'static, Result<Piece>>,
    pending: Option<Piece>,
    /// A unit that is not whole, in pieces.
    open: Option<(Piece, Vec<RecordBatch>)>,
    /// What is whole and not handed on: more than one where a unit has more than a block.
    ready: VecDeque<Piece>,
    /// The number of the row behind the last one.
    next_row: usize,
    block_bytes: Option<usize>,
    /// Of the block, up to here.
    bytes: usize,
}

impl Units {
    async fn next(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(unit) = self.ready.pop_front() {
                return Ok(Some(unit));
            }
            let piece = match self.pending.take() {
                Some(piece) => Some(piece),
                None => self.pieces.try_next().await?,
            };
            let Some(mut piece) = piece else {
                self.close()?;
                return Ok(self.ready.pop_front());
            };
            if piece.batch.num_rows() == 0 {
                continue;
            }
            let continues = self.open.as_ref().is_some_and(|(open, _)| {
                let task = |piece: &Piece| piece.mark.as_ref().map(|mark: &Mark| mark.id.clone());
                open.epoch == piece.epoch && task(open) == task(&piece)
            });
            if self.open.is_some() && !continues {
                self.pending = Some(piece);
                self.close()?;
                continue;
            }
            if let Some(mark) = &piece.mark {
                self.next_row = mark.row as usize;
            }
            let taken = (UNIT_ROWS - self.next_row % UNIT_ROWS).min(piece.batch.num_rows());
            self.next_row += taken;
            let rest = piece.batch.num_rows() - taken;
            self.pending = (rest > 0).then(|| Piece {
                mark: piece.mark.as_ref().map(|mark| mark.behind(taken)),
                epoch: piece.epoch,
                begins_block: false,
                may_begin_window: false,
                batch: piece.batch.slice(taken, rest),
            });
            piece.batch = piece.batch.slice(0, taken);
            let batch = piece.batch.clone();
            self.open.get_or_insert_with(|| (piece, Vec::new())).1.push(batch);
            if self.next_row.is_multiple_of(UNIT_ROWS) {
                self.close()?;
            }
        }
    }

    /// The unit up to here.
    fn close(&mut self) -> Result<()> {
        let Some((mut unit, batches)) = self.open.take() else { return Ok(()) };
        if batches.len() > 1 {
            unit.batch = concat_batches(&unit.batch.schema(), &batches)?;
        }
        unit.may_begin_window = true;
        let Some(most) = self.block_bytes else {
            self.ready.push_back(unit);
            return Ok(());
        };
        let bytes = unit_bytes(&unit.batch);
        let rows = unit.batch.num_rows();
        let parts = bytes.div_ceil(most.max(1)).clamp(1, rows);
        for part in 0..parts {
            let (begin, end) = (rows * part / parts, rows * (part + 1) / parts);
            let bytes = bytes * (end - begin) / rows;
            let begins_block = part > 0 || self.bytes == 0 || self.bytes + bytes > most;
            self.bytes = if begins_block { bytes } else { self.bytes + bytes };
            self.ready.push_back(Piece {
                mark: unit.mark.as_ref().map(|mark| mark.behind(begin)),
                epoch: unit.epoch,
                begins_block,
                may_begin_window: begins_block,
                batch: unit.batch.slice(begin, end - begin),
            });
        }
        Ok(())
    }
}
