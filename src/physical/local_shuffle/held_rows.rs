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

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::compute::{concat_batches, interleave_record_batch, take_record_batch};
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
/// Places of a bucket: enough rows to be worth a batch.
const MIN_BUCKET: u64 = 1024;
/// Buckets of the mean at most: their number is what routing a batch costs.
const BUCKETS: u64 = 64;

impl Delay {
    pub(super) fn new(rows: u64, seed: u64) -> Self {
        Self { rows: rows.max(1), seed }
    }

    /// Places of a bucket.
    pub(super) fn bucket_places(self) -> u64 {
        (self.rows / BUCKETS).max(MIN_BUCKET)
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

/// Rows that have come and not left.
pub(super) struct HeldRows {
    delay: Delay,
    schema: SchemaRef,
    room: Room,
    /// The number of the next row that comes.
    next_row: u64,
    /// The number of the first of `buckets`.
    first_bucket: u64,
    buckets: VecDeque<Bucket>,
    /// Bytes of the pieces that are not in the store.
    bytes: usize,
}

#[derive(Default)]
struct Bucket {
    /// For each of its rows, as they came, its place behind the start of the bucket.
    places: Vec<u32>,
    stored: Vec<BlockHandle>,
    pieces: Vec<RecordBatch>,
    bytes: usize,
}

impl HeldRows {
    /// The next row to come is number `next_row`, and the first bucket to leave `first_bucket`.
    pub(super) fn new(delay: Delay, schema: SchemaRef, room: Room, next_row: u64, first_bucket: u64) -> Self {
        Self { delay, schema, room, next_row, first_bucket, buckets: VecDeque::new(), bytes: 0 }
    }

    /// Rows come. Those that would have left before the first bucket are dropped: their number is given.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<usize> {
        let width = self.delay.bucket_places();
        let rows = batch.num_rows() as u64;
        let mut dropped = 0;
        let mut routed: Vec<(u64, u32, u32)> = Vec::with_capacity(batch.num_rows());
        for number in 0..rows {
            let place = self.delay.place_of(self.next_row + number);
            match (place / width).checked_sub(self.first_bucket) {
                Some(bucket) => routed.push((bucket, number as u32, (place % width) as u32)),
                None => dropped += 1,
            }
        }
        self.next_row += rows;
        // Rows of a bucket stay in the order in which they came.
        routed.sort_by_key(|(bucket, _, _)| *bucket);
        for part in routed.chunk_by(|a, b| a.0 == b.0) {
            let number = part[0].0 as usize;
            if self.buckets.len() <= number {
                self.buckets.resize_with(number + 1, Bucket::default);
            }
            let taken = UInt32Array::from_iter_values(part.iter().map(|(_, row, _)| *row));
            let piece = compact_views(&take_record_batch(batch, &taken)?)?;
            let bytes = sliced_bytes(&piece) + size_of_val(part) / 4;
            let bucket = &mut self.buckets[number];
            bucket.places.extend(part.iter().map(|(_, _, place)| *place));
            bucket.pieces.push(piece);
            bucket.bytes += bytes;
            self.bytes += bytes;
        }
        self.make_room()?;
        Ok(dropped)
    }

    /// Keeps to the room: what leaves last goes into the store first.
    fn make_room(&mut self) -> Result<()> {
        let room = &mut self.room;
        if self.bytes > room.max_bytes {
            for bucket in self.buckets.iter_mut().rev() {
                if self.bytes <= room.max_bytes / 2 || bucket.pieces.is_empty() {
                    continue;
                }
                let rows = concat_batches(&self.schema, &bucket.pieces)?;
                let block = Block::new(Arc::clone(&self.schema), vec![rows]);
                bucket.stored.push(room.store.put(block, NextUse::Soon, &room.owner)?);
                bucket.pieces.clear();
                self.bytes -= std::mem::take(&mut bucket.bytes);
            }
        }
        room.working_set.resize(self.bytes)
    }

    /// Whether the next bucket can leave, because all of its rows have come.
    pub(super) fn is_ready(&self) -> bool {
        self.next_row >= (self.first_bucket + 1) * self.delay.bucket_places()
    }

    /// Whether no row is left.
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The number of the bucket that leaves next.
    pub(super) fn next_bucket(&self) -> u64 {
        self.first_bucket
    }

    /// The rows of the next bucket, in the order of their places, in batches of at most `batch_rows`.
    pub(super) fn pop(&mut self, batch_rows: usize) -> Result<VecDeque<RecordBatch>> {
        self.first_bucket += 1;
        let Some(bucket) = self.buckets.pop_front() else { return Ok(VecDeque::new()) };
        self.bytes -= bucket.bytes;
        let mut pieces = Vec::new();
        for block in &bucket.stored {
            pieces.extend(block.get()?.into_batches());
        }
        pieces.extend(bucket.pieces);
        let rows = pieces.iter().enumerate();
        let rows = rows.flat_map(|(piece, batch)| (0..batch.num_rows()).map(move |row| (piece, row)));
        let mut order: Vec<(u32, (usize, usize))> = bucket.places.into_iter().zip(rows).collect();
        // Stable: of the rows of a place the one that came first leaves first.
        order.sort_by_key(|(place, _)| *place);
        let order: Vec<(usize, usize)> = order.into_iter().map(|(_, row)| row).collect();
        let pieces: Vec<&RecordBatch> = pieces.iter().collect();
        let batches = order.chunks(batch_rows.max(1)).map(|rows| Ok(interleave_record_batch(&pieces, rows)?));
        let batches = batches.collect::<Result<_>>()?;
        self.room.working_set.resize(self.bytes)?;
        Ok(batches)
    }
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
        assert_eq!((delay.bucket_places(), Delay::new(1 << 20, 7).bucket_places()), (1024, 1 << 14));
        assert_eq!([0, 1, 5].map(|bucket| delay.first_row_of(bucket)), [0, 224, 4320]);
    }
}
