//! The rows that a local shuffle holds back.
//!
//! Row `i` is to leave at place `i + d`. What leaves within the same so many places is a bucket:
//!
//! ```text
//! places   0        1024       2048       3072
//!          | bucket 0 | bucket 1 | bucket 2 | ..
//! row 900 ─────> 950      row 1000 ─> 2100       a bucket leaves, in the order of places, when the rows of all its
//!                                                places have come: later ones do not leave before they come
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use crate::block::{Block, compact_views, row_random, sliced_bytes};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, WorkingSet};

/// How far rows move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delay {
    /// The mean of the places; at least 1.
    rows: u64,
    seed: u64,
}

/// The most places by which a row moves, as a multiple of the mean: one in 3,000 is cut to that.
const MAX_DELAY: u64 = 8;
/// Places of a bucket: enough rows to be worth a batch, unless that were most of those that are held.
const MIN_BUCKET: u64 = 1024;
/// Buckets of the mean, at least and at most.
const MIN_BUCKETS: u64 = 8;
const BUCKETS: u64 = 64;

impl Delay {
    pub(super) fn new(rows: u64, seed: u64) -> Self {
        Self { rows: rows.max(1), seed }
    }

    /// Places of a bucket.
    pub(super) fn bucket_places(self) -> u64 {
        (self.rows / BUCKETS).max(MIN_BUCKET.min(self.rows / MIN_BUCKETS)).max(1)
    }

    /// The first row that may leave in a bucket.
    pub(super) fn first_row_of(self, bucket: u64) -> u64 {
        (bucket * self.bucket_places()).saturating_sub(self.rows.saturating_mul(MAX_DELAY))
    }

    /// The place at which a row leaves: an exponential number of places later.
    fn place_of(self, row: u64) -> u64 {
        // In (0, 1], in steps of 2^-53.
        let uniform = ((row_random(self.seed, 0, row) >> 11) + 1) as f64 / 9_007_199_254_740_992.0;
        let places = (-uniform.ln() * self.rows as f64) as u64;
        row + places.min(self.rows.saturating_mul(MAX_DELAY))
    }
}

/// Where rows are held, and on whose behalf.
pub(super) struct Room {
    pub(super) store: Arc<BlockStore>,
    pub(super) owner: Arc<Owner>,
    /// Bytes that stay outside of the store.
    pub(super) max_bytes: usize,
    pub(super) working_set: WorkingSet,
}

/// Rows that have come and not left. Batches stay as they came until most of their rows have left; what is left of them
/// is then copied together.
pub(super) struct HeldRows {
    delay: Delay,
    schema: SchemaRef,
    room: Room,
    /// The number of the next row that comes.
    next_row: u64,
    /// The number of the first of `buckets`.
    first_bucket: u64,
    buckets: VecDeque<Bucket>,
    /// The batches that have rows of buckets, by their numbers.
    pieces: BTreeMap<u32, Piece>,
    next_piece: u32,
}

/// A batch with rows that have not left.
struct Piece {
    batch: RecordBatch,
    bytes: usize,
    live_rows: usize,
}

#[derive(Default)]
struct Bucket {
    stored: Vec<StoredRows>,
    rows: Vec<HeldRow>,
}

/// Rows of a bucket that are in the store, with the place of each.
struct StoredRows {
    block: BlockHandle,
    places: Vec<u32>,
}

/// A row of a bucket.
#[derive(Debug, Clone, Copy)]
struct HeldRow {
    /// Behind the start of the bucket.
    place: u32,
    piece: u32,
    row: u32,
}

/// Rows on their way out, in their order: they are copied together by whoever has time.
pub(super) struct Leaving {
    batches: Vec<RecordBatch>,
    /// Of each row, the batch and its number in it.
    order: Vec<(usize, usize)>,
    reserved: Option<WorkingSet>,
}

impl Leaving {
    pub(super) fn num_rows(&self) -> usize {
        self.order.len()
    }

    /// All but the first rows.
    pub(super) fn skip(&mut self, rows: usize) {
        self.order.drain(..rows);
    }

    pub(super) fn into_batch(self, schema: &SchemaRef) -> Result<RecordBatch> {
        let rows = Some(self.order.len());
        if schema.fields().is_empty() {
            // Rows without columns are told apart by nothing.
            let options = RecordBatchOptions::new().with_row_count(rows);
            return Ok(RecordBatch::try_new_with_options(Arc::clone(schema), Vec::new(), &options)?);
        }
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        Ok(interleave_record_batch(&batches, &self.order)?)
    }
}

/// Pieces are copied together when so many times the rows that are needed are held, and some more.
const MAX_HELD: usize = 3;
const SPARE_ROWS: usize = 1 << 14;

impl HeldRows {
    /// The next row to come is number `next_row`, and the first bucket to leave `first_bucket`.
    pub(super) fn new(delay: Delay, schema: SchemaRef, room: Room, next_row: u64, first_bucket: u64) -> Self {
        let (buckets, pieces) = (VecDeque::new(), BTreeMap::new());
        Self { delay, schema, room, next_row, first_bucket, buckets, pieces, next_piece: 0 }
    }

    /// Rows come. Those that would have left before the first bucket are dropped: their number is given.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<usize> {
        let width = self.delay.bucket_places();
        let (piece, rows) = (self.next_piece, batch.num_rows());
        let first_place = self.first_bucket * width;
        let mut dropped = 0;
        for row in 0..rows {
            let place = self.delay.place_of(self.next_row + row as u64);
            let Some(place) = place.checked_sub(first_place) else {
                dropped += 1;
                continue;
            };
            let (bucket, place) = ((place / width) as usize, (place % width) as u32);
            if self.buckets.len() <= bucket {
                self.buckets.resize_with(bucket + 1, Bucket::default);
            }
            self.buckets[bucket].rows.push(HeldRow { place, piece, row: row as u32 });
        }
        self.next_row += rows as u64;
        if dropped < rows {
            self.hold(batch, rows - dropped)?;
        }
        self.make_room()?;
        Ok(dropped)
    }

    /// Keeps a batch under the next number.
    fn hold(&mut self, batch: RecordBatch, live_rows: usize) -> Result<()> {
        let batch = compact_views(&batch)?;
        let bytes = sliced_bytes(&batch);
        self.pieces.insert(self.next_piece, Piece { batch, bytes, live_rows });
        self.next_piece += 1;
        Ok(())
    }

    /// As many rows like those that are held as there is room for.
    fn max_rows(&self) -> usize {
        let (rows, bytes) = self
            .pieces
            .values()
            .fold((0, 0), |(rows, bytes), piece| (rows + piece.batch.num_rows(), bytes + piece.bytes));
        if bytes == 0 { usize::MAX } else { (self.room.max_bytes as u128 * rows as u128 / bytes as u128) as usize }
            .max(1)
    }

    fn bytes(&self) -> usize {
        let rows: usize = self.buckets.iter().map(|bucket| bucket.rows.len()).sum();
        self.pieces.values().map(|piece| piece.bytes).sum::<usize>() + rows * size_of::<HeldRow>()
    }

    /// Keeps to the room: what leaves last goes into the store first.
    fn make_room(&mut self) -> Result<()> {
        if self.bytes() > self.room.max_bytes {
            self.copy_together(|_| true)?;
            let mut bytes = self.bytes();
            for number in (0..self.buckets.len()).rev() {
                if bytes <= self.room.max_bytes / 2 {
                    break;
                }
                let rows = std::mem::take(&mut self.buckets[number].rows);
                if rows.is_empty() {
                    continue;
                }
                let batch = self.taken(&rows)?;
                bytes = bytes.saturating_sub(sliced_bytes(&batch));
                let block = Block::new(Arc::clone(&self.schema), vec![batch]);
                let block = self.room.store.put(block, NextUse::Soon, &self.room.owner)?;
                let places = rows.iter().map(|row| row.place).collect();
                self.buckets[number].stored.push(StoredRows { block, places });
            }
            self.copy_together(|_| true)?;
        } else {
            let (held, live) = self
                .pieces
                .values()
                .fold((0, 0), |(held, live), piece| (held + piece.batch.num_rows(), live + piece.live_rows));
            if held > MAX_HELD * live + SPARE_ROWS {
                self.copy_together(|piece| piece.live_rows * 2 < piece.batch.num_rows())?;
            }
        }
        let bytes = self.bytes();
        self.room.working_set.resize(bytes)
    }

    /// Copies the rows that are needed of some pieces into one.
    fn copy_together(&mut self, wanted: impl Fn(&Piece) -> bool) -> Result<()> {
        let old: HashSet<u32> =
            self.pieces.iter().filter(|(_, piece)| wanted(piece)).map(|(number, _)| *number).collect();
        let mut rows = Vec::new();
        for held in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.rows) {
            if old.contains(&held.piece) {
                rows.push(*held);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let batch = self.taken(&rows)?;
        let mut next = 0;
        for held in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.rows) {
            if old.contains(&held.piece) {
                (held.piece, held.row) = (self.next_piece, next);
                next += 1;
            }
        }
        self.hold(batch, rows.len())
    }

    /// The rows in one batch; they are needed no more.
    fn taken(&mut self, rows: &[HeldRow]) -> Result<RecordBatch> {
        self.leaving(rows).into_batch(&self.schema)
    }

    /// The rows, which are needed no more, before they are copied.
    fn leaving(&mut self, rows: &[HeldRow]) -> Leaving {
        const UNUSED: usize = usize::MAX;
        let first = self.pieces.keys().next().copied().unwrap_or(0);
        let last = self.pieces.keys().next_back().copied().unwrap_or(0);
        let mut slots = vec![UNUSED; (last - first) as usize + 1];
        // The pieces that have any of the rows, and how many.
        let mut used: Vec<(u32, usize)> = Vec::new();
        let mut order = Vec::with_capacity(rows.len());
        for row in rows {
            let slot = &mut slots[(row.piece - first) as usize];
            if *slot == UNUSED {
                *slot = used.len();
                used.push((row.piece, 0));
            }
            used[*slot].1 += 1;
            order.push((*slot, row.row as usize));
        }
        let mut batches = Vec::with_capacity(used.len());
        for (number, taken) in used {
            if let Entry::Occupied(mut piece) = self.pieces.entry(number) {
                piece.get_mut().live_rows -= taken;
                match piece.get().live_rows {
                    0 => batches.push(piece.remove().batch),
                    _ => batches.push(piece.get().batch.clone()),
                }
            }
        }
        Leaving { batches, order, reserved: None }
    }

    /// Whether the next bucket can leave, because all of its rows have come.
    fn is_ready(&self) -> bool {
        self.next_row >= (self.first_bucket + 1) * self.delay.bucket_places()
    }

    /// The rows of the next buckets, in the order of their places: of those that are complete, or of all when no more
    /// rows come, until there are `max_rows`. Says of each bucket how many of these rows are before it.
    pub(super) fn pop(
        &mut self,
        has_ended: bool,
        max_rows: usize,
        mut begins: impl FnMut(u64, usize),
    ) -> Result<Option<Leaving>> {
        let width = self.delay.bucket_places();
        let mut rows = Vec::new();
        while rows.len() < max_rows.min(self.max_rows()) && (has_ended || self.is_ready()) {
            let Some(mut bucket) = self.buckets.pop_front() else { break };
            begins(self.first_bucket, rows.len());
            self.first_bucket += 1;
            let stored = std::mem::take(&mut bucket.stored);
            // What went into the store came before what did not.
            let mut held = self.fetched(stored)?;
            held.append(&mut bucket.rows);
            rows.append(&mut in_order_of_places(held, width as usize));
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let bytes_before = self.bytes();
        let mut leaving = self.leaving(&rows);
        let bytes = self.bytes();
        self.room.working_set.resize(bytes)?;
        // What they are copied from stays so long, and is here no more.
        let gone = bytes_before.saturating_sub(bytes);
        leaving.reserved = Some(self.room.store.working_set(&self.room.owner, gone)?);
        Ok(Some(leaving))
    }

    /// Rows that were in the store, now in pieces.
    fn fetched(&mut self, stored: Vec<StoredRows>) -> Result<Vec<HeldRow>> {
        let mut held = Vec::new();
        for StoredRows { block, places } in stored {
            let mut places = places.into_iter();
            for batch in block.get()?.into_batches() {
                let (piece, rows) = (self.next_piece, batch.num_rows());
                self.hold(batch, rows)?;
                let row_at = |(row, place)| HeldRow { place, piece, row: row as u32 };
                held.extend(places.by_ref().take(rows).enumerate().map(row_at));
            }
        }
        Ok(held)
    }
}

/// The rows by their places; of the rows of a place, the one that came first is the first.
fn in_order_of_places(rows: Vec<HeldRow>, places: usize) -> Vec<HeldRow> {
    if rows.len() < places / 8 {
        let mut rows = rows;
        rows.sort_by_key(|row| row.place);
        return rows;
    }
    let mut next = vec![0_u32; places + 1];
    rows.iter().for_each(|row| next[row.place as usize + 1] += 1);
    for place in 1..next.len() {
        next[place] += next[place - 1];
    }
    let mut ordered = vec![HeldRow { place: 0, piece: 0, row: 0 }; rows.len()];
    for row in rows {
        let at = &mut next[row.place as usize];
        ordered[*at as usize] = row;
        *at += 1;
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_an_exponential_number_of_places_later() {
        let delay = Delay::new(100, 7);
        let delays: Vec<u64> = (0..100_000).map(|row| delay.place_of(row) - row).collect();
        let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64;
        assert!((98.0..101.0).contains(&mean), "{mean}");
        assert!(delays.iter().all(|places| *places <= 800));
        let half = delays.iter().filter(|places| **places < 69).count();
        assert!((49_000..51_000).contains(&half), "{half}");
        assert_ne!(delay.place_of(5), Delay::new(100, 8).place_of(5));
    }

    #[test]
    fn a_bucket_asks_for_no_row_that_cannot_be_in_it() {
        let delay = Delay::new(100, 7);
        let places = [1, 100, 10_000, 1 << 20].map(|rows| Delay::new(rows, 7).bucket_places());
        assert_eq!(places, [1, 12, 1024, 1 << 14]);
        assert_eq!([0, 66, 67, 500].map(|bucket| delay.first_row_of(bucket)), [0, 0, 4, 5200]);
    }
}
