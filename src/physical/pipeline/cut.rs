//! Windows that are cut out of the rows of a plan.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::TryStreamExt;
use futures::stream::{self, BoxStream, StreamExt};

use super::queue::{Shared, Window};
use super::start::Start;
use super::units::{Piece, in_units, unit_bytes};
use crate::block::{Block, TaskId};
use crate::config::BlockyardOptions;
use crate::functions::WindowSize;
use crate::physical::exchange::{BlockSize, ExchangeExec};
use crate::physical::gather::{PIECE_BYTES, blocks_in_order};
use crate::physical::memory::block_bytes;
use crate::physical::operator::PlanExt;
use crate::physical::place::{Place, marked_rows, place_of, seeks};
use crate::physical::tasks::{
    RowBalance, block_batches, block_stream, check_rows, is_one_task, is_ordered, steady_parts, ungathered,
};
use crate::store::{BlockHandle, NextUse};

/// Rows of a window, in the store.
pub(super) struct Cut {
    pub(super) epoch: u32,
    /// The place of the first one in the source.
    pub(super) place: Option<Place>,
    /// The blocks, each in pieces.
    pub(super) blocks: Vec<Vec<BlockHandle>>,
}

/// Cuts the rows of a source into windows.
pub(super) struct Cutter {
    source: Arc<dyn ExecutionPlan>,
    pieces: BoxStream<'static, Result<Piece>>,
    pending: Option<Piece>,
    size: WindowSize,
    keeps_epochs: bool,
    shared: Shared,
    /// Windows at the beginning that nobody wants.
    skip: u64,
    /// Whether there has been a window.
    is_begun: bool,
    taken: usize,
    given: usize,
}

impl Cutter {
    /// From the window on that is the next one. `windows` are those of the source, where it is a pipeline.
    pub(super) fn start(
        source: &Arc<dyn ExecutionPlan>,
        windows: Option<BoxStream<'static, Result<Window>>>,
        (size, keeps_epochs): (WindowSize, bool),
        next: &Start,
        shared: &Shared,
    ) -> Result<Self> {
        let (place, skip) = match &next.source {
            Some(place) => (place.clone(), 0),
            None => (Place::default(), next.number),
        };
        let pieces = match windows {
            Some(windows) => pieces_of_windows(windows),
            None => pieces_of(source, &place, shared)?,
        };
        Ok(Self {
            source: Arc::clone(source),
            pieces: if matches!(size, WindowSize::Bytes(_)) { in_units(pieces, None) } else { pieces },
            pending: None,
            size,
            keeps_epochs,
            shared: shared.clone(),
            skip,
            is_begun: next.number > 0,
            taken: 0,
            given: 0,
        })
    }

    /// The next window. A source without rows is one window.
    pub(super) async fn next(&mut self) -> Result<Option<Cut>> {
        loop {
            let cut = self.cut().await?;
            match (&cut, self.skip) {
                (Some(_), skip @ 1..) => self.skip = skip - 1,
                _ => return Ok(cut),
            }
        }
    }

    /// Compares the rows that came with those of the windows.
    pub(super) fn check(&self) -> Result<()> {
        check_rows(|| "cutting windows".to_owned(), self.taken, self.given)
    }

    async fn fill(&mut self) -> Result<bool> {
        while self.pending.is_none() {
            let Some(piece) = self.pieces.try_next().await? else { return Ok(false) };
            self.taken += piece.batch.num_rows();
            self.pending = Some(piece).filter(|piece| piece.batch.num_rows() > 0);
        }
        Ok(true)
    }

    async fn cut(&mut self) -> Result<Option<Cut>> {
        let mut cut: Option<Cut> = None;
        let (mut rows, mut bytes) = (0, 0);
        while self.fill().await? {
            let Some(mut piece) = self.pending.take() else { break };
            let begins = piece.begins_block || cut.is_none();
            if cut.as_ref().is_some_and(|cut| self.is_full(cut, &piece, rows, bytes)) {
                self.pending = Some(piece);
                break;
            }
            let room = match self.size {
                WindowSize::Rows(size) => size - rows,
                _ => usize::MAX,
            };
            let taken = room.min(piece.batch.num_rows());
            let batch = piece.batch.slice(0, taken);
            let place = piece.mark.as_ref().and_then(|mark| place_of(&self.source, mark));
            let window = cut.get_or_insert_with(|| Cut { epoch: piece.epoch, place, blocks: Vec::new() });
            rows += taken;
            bytes += unit_bytes(&batch);
            self.given += taken;
            let handle = if self.skip > 0 { None } else { Some(self.put(batch)?) };
            match window.blocks.last_mut() {
                Some(last) if !begins => last.extend(handle),
                _ => window.blocks.push(handle.into_iter().collect()),
            }
            if taken < piece.batch.num_rows() {
                piece.batch = piece.batch.slice(taken, piece.batch.num_rows() - taken);
                piece.mark = piece.mark.map(|mark| mark.behind(taken));
                (piece.begins_block, piece.may_begin_window) = (false, false);
                self.pending = Some(piece);
            }
            if matches!(self.size, WindowSize::Rows(size) if rows == size) {
                break;
            }
        }
        let is_begun = std::mem::replace(&mut self.is_begun, true);
        Ok(cut.or_else(|| (!is_begun).then(|| Cut { epoch: 0, place: None, blocks: Vec::new() })))
    }

    /// Whether a piece is of the next window.
    fn is_full(&self, cut: &Cut, piece: &Piece, rows: usize, bytes: usize) -> bool {
        let has_room = match self.size {
            WindowSize::Blocks(blocks) => !piece.begins_block || cut.blocks.len() < blocks,
            WindowSize::Bytes(size) => !piece.may_begin_window || bytes + unit_bytes(&piece.batch) <= size,
            WindowSize::Rows(size) => rows < size,
        };
        !has_room || (self.keeps_epochs && piece.epoch != cut.epoch)
    }

    fn put(&self, batch: RecordBatch) -> Result<BlockHandle> {
        let Shared { store, owner, .. } = &self.shared;
        store.put(Block::new(batch.schema(), vec![batch]), NextUse::Soon, owner)
    }
}

/// The rows of the windows of a pipeline.
fn pieces_of_windows(windows: BoxStream<'static, Result<Window>>) -> BoxStream<'static, Result<Piece>> {
    let pieces = windows.map_ok(|window| {
        let epoch = window.start.label.0;
        window.pieces().map_ok(move |piece| Piece {
            mark: Some(piece.marked.mark),
            epoch,
            begins_block: piece.begins_block,
            may_begin_window: piece.begins_block,
            batch: piece.marked.batch,
        })
    });
    pieces.try_flatten().boxed()
}

/// The rows of a source from a place on.
fn pieces_of(
    source: &Arc<dyn ExecutionPlan>,
    place: &Place,
    shared: &Shared,
) -> Result<BoxStream<'static, Result<Piece>>> {
    let Shared { context, owner, .. } = shared;
    let source = ungathered(source);
    if seeks(source).is_ok() {
        let mut last: Option<TaskId> = None;
        let rows = marked_rows(source, context, owner, place, None)?.map_ok(move |marked| {
            let begins_block = last.as_ref() != Some(&marked.mark.id);
            last = Some(marked.mark.id.clone());
            let may_begin_window = begins_block;
            Piece { mark: Some(marked.mark), epoch: 0, begins_block, may_begin_window, batch: marked.batch }
        });
        return Ok(rows.boxed());
    }
    // What is one task has no blocks.
    let has_blocks = steady_parts(source).is_some() && !is_one_task(source);
    let asked = source.operator::<ExchangeExec>().and_then(|exchange| exchange.scheme().size_of_blocks());
    let blocks = blocks_of(source, shared)?;
    Ok(match asked {
        // Where batches end is counted there: units are the same in each run.
        Some(BlockSize::Bytes(bytes)) => in_units(blocks, Some(bytes)),
        Some(BlockSize::Rows { .. } | BlockSize::Parts { .. }) => blocks,
        None if has_blocks => blocks,
        // As many blocks as memory asks for, and as large: those of which the setting speaks are meant.
        None => in_units(blocks, Some(BlockyardOptions::from_task(&shared.context).target_max_block_size.bound())),
    })
}

/// The rows of a source that begins at its first row, block by block.
fn blocks_of(source: &Arc<dyn ExecutionPlan>, shared: &Shared) -> Result<BoxStream<'static, Result<Piece>>> {
    let Shared { context, owner, store, .. } = shared;
    let (parts, mut last) = (steady_parts(source), None::<TaskId>);
    let mut begins = move |id: &TaskId| {
        let Some(parts) = parts else { return true };
        let id = id.first_parts(parts);
        let begins = last.as_ref() != Some(&id);
        last = Some(id);
        begins
    };
    let is_gathered = is_ordered(source.as_ref()) && BlockyardOptions::from_task(context).preserve_order;
    let balance = RowBalance::new("gathering rows for windows", context);
    let blocks = match source.output_partitioning().partition_count() {
        1 => {
            let (store, owner) = (Arc::clone(store), Arc::clone(owner));
            let blocks = block_stream(source, 0, Arc::clone(context), block_bytes(context)?)?;
            let taken = Arc::clone(&balance);
            let put = move |(id, block): (TaskId, Block)| {
                taken.take(block.num_rows());
                std::future::ready(store.put(block, NextUse::Soon, &owner).map(|handle| (id, handle)))
            };
            blocks.and_then(put).boxed()
        }
        _ if is_gathered => blocks_in_order(source, context, owner, PIECE_BYTES, &balance)?,
        _ => {
            let rows = crate::physical::gather(source, Arc::clone(context), owner)?;
            let piece = |batch| Piece { mark: None, epoch: 0, begins_block: true, may_begin_window: true, batch };
            return Ok(rows.map_ok(piece).boxed());
        }
    };
    let all = Arc::clone(&balance);
    let pieces = blocks.map_ok(move |(id, handle)| {
        let mut begins_block = begins(&id);
        let given = Arc::clone(&balance);
        block_batches(handle).map_ok(move |batch| {
            given.give(batch.num_rows());
            let begins_block = std::mem::take(&mut begins_block);
            Some(Piece { mark: None, epoch: 0, begins_block, may_begin_window: begins_block, batch })
        })
    });
    let ended = stream::once(async move { all.check().map(|()| None) });
    Ok(pieces.try_flatten().chain(ended).try_filter_map(|piece| std::future::ready(Ok(piece))).boxed())
}
