//! Rows in units of so many, wherever batches end: what is cut by bytes is cut in the same places whatever memory and
//! threads make of batches and blocks.

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
/// `block_bytes`, blocks are units of about so many bytes together.
pub(super) fn in_units(
    pieces: BoxStream<'static, Result<Piece>>,
    block_bytes: Option<usize>,
) -> BoxStream<'static, Result<Piece>> {
    let units = Units { pieces, pending: None, open: None, next_row: 0, block_bytes, bytes: 0 };
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
    /// The number of the row behind the last one.
    next_row: usize,
    block_bytes: Option<usize>,
    /// Of the block, up to here.
    bytes: usize,
}

impl Units {
    async fn next(&mut self) -> Result<Option<Piece>> {
        loop {
            let piece = match self.pending.take() {
                Some(piece) => Some(piece),
                None => self.pieces.try_next().await?,
            };
            let Some(mut piece) = piece else { return self.close() };
            if piece.batch.num_rows() == 0 {
                continue;
            }
            let continues = self.open.as_ref().is_some_and(|(open, _)| {
                let task = |piece: &Piece| piece.mark.as_ref().map(|mark: &Mark| mark.id.clone());
                open.epoch == piece.epoch && task(open) == task(&piece)
            });
            if self.open.is_some() && !continues {
                self.pending = Some(piece);
                return self.close();
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
                return self.close();
            }
        }
    }

    /// The unit up to here.
    fn close(&mut self) -> Result<Option<Piece>> {
        let Some((mut unit, batches)) = self.open.take() else { return Ok(None) };
        if batches.len() > 1 {
            unit.batch = concat_batches(&unit.batch.schema(), &batches)?;
        }
        unit.may_begin_window = true;
        if let Some(most) = self.block_bytes {
            let bytes = unit_bytes(&unit.batch);
            unit.begins_block = self.bytes == 0 || self.bytes + bytes > most;
            unit.may_begin_window = unit.begins_block;
            self.bytes = if unit.begins_block { bytes } else { self.bytes + bytes };
        }
        Ok(Some(unit))
    }
}
