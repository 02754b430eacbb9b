//! Cuts the rows of a run into pieces, by the leading bits of their codes.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt64Array, new_null_array};
use datafusion::arrow::compute::{filter_record_batch, interleave_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::Result;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::physical_plan::PhysicalExpr;

use super::seen_keys::{KeyNotes, SeenKeys, Wanted};
use crate::block::{Block, compact_views, mix, row_random};

/// Bytes that a piece should have at least; smaller ones are slow to read back.
const PIECE_BYTES: usize = 16 << 10;
/// The same for each column, whose buffers take bytes of their own on disk.
const PIECE_COLUMN_BYTES: usize = 256;
/// A run has at most 2 to this many pieces.
pub(super) const MAX_PIECE_BITS: u32 = 10;
/// A large run has at least 2 to this many, of a mebibyte.
const MIN_PIECE_BITS: u32 = 5;
/// The codes of a run with at most this many rows stay in memory: its rows are large, and its pieces belong to few of
/// the buckets that they overlap.
const KNOWN_KEYS: usize = 4096;
/// Seed of the hashes of keys.
const CODE_SEED: u64 = 0x5EED;

/// What a row's code is made of.
#[derive(Debug, Clone)]
pub(crate) enum KeyEncoding {
    /// A random number for each row, which the seed, its task and its place in it give.
    Random {
        /// Gives the numbers.
        seed: u64,
    },
    /// A hash of what these expressions give: equal keys have equal codes.
    Hash {
        /// Keys, of which there may be several.
        keys: Vec<Arc<dyn PhysicalExpr>>,
    },
}

impl KeyEncoding {
    /// The types of the keys, if it is of keys.
    pub(super) fn types(&self, schema: &SchemaRef) -> Result<Vec<DataType>> {
        match self {
            Self::Random { .. } => Ok(Vec::new()),
            Self::Hash { keys } => keys.iter().map(|key| key.data_type(schema)).collect(),
        }
    }

    /// The codes of rows, and their keys if it is of keys.
    fn codes(&self, batch: &RecordBatch, task: u64, first_row: u64) -> Result<(Vec<u64>, Vec<ArrayRef>)> {
        match self {
            Self::Random { seed } => {
                let rows = first_row..first_row + batch.num_rows() as u64;
                Ok((rows.map(|row| row_random(*seed, task, row)).collect(), Vec::new()))
            }
            Self::Hash { keys } => codes_of_keys(keys, batch),
        }
    }
}

/// The columns of rows with their codes behind them.
pub(crate) fn with_code(schema: &SchemaRef) -> SchemaRef {
    let code = Arc::new(Field::new("__blockyard_key", DataType::UInt64, false));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain([code]).collect::<Vec<_>>()))
}

/// The codes of the keys of some rows, and the keys.
pub(super) fn codes_of_keys(keys: &[Arc<dyn PhysicalExpr>], batch: &RecordBatch) -> Result<(Vec<u64>, Vec<ArrayRef>)> {
    let rows = batch.num_rows();
    let keys: Vec<_> = keys.iter().map(|key| key.evaluate(batch)?.into_array(rows)).collect::<Result<_>>()?;
    Ok((codes_of(&keys, rows)?, keys))
}

/// The codes of so many rows of these columns.
fn codes_of(columns: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let mut codes = vec![0; rows];
    create_hashes(columns, &RandomState::with_seed(CODE_SEED), &mut codes)?;
    // The leading bits tell buckets apart, and others do so in hash tables.
    codes.iter_mut().for_each(|code| *code = mix(*code));
    Ok(codes)
}

/// Which rows may have `keys` that were seen.
pub(crate) fn among(seen: &SeenKeys, keys: &[Arc<dyn PhysicalExpr>], batch: &RecordBatch) -> Result<BooleanArray> {
    Ok(seen.among(&codes_of_keys(keys, batch)?.0))
}

/// The code of a row whose only key, of this type, is null.
pub(crate) fn code_of_null(key_type: &DataType) -> Result<u64> {
    Ok(codes_of(&[new_null_array(key_type, 1)], 1)?[0])
}

/// What is known of a run's rows without reading them.
#[derive(Debug)]
pub(super) struct RunPieces {
    /// The leading bits that tell pieces apart.
    bits: u32,
    pub(super) rows: usize,
    /// All keys in order, if there are few.
    keys: Option<Vec<u64>>,
}

impl RunPieces {
    /// The pieces in which rows with keys between `low` and `high` may be.
    pub(super) fn between(&self, low: u64, high: u64) -> impl Iterator<Item = usize> {
        let pieces = match self.rows {
            0 => 0..0,
            _ => piece_of(low, self.bits)..piece_of(high, self.bits) + 1,
        };
        pieces.filter(move |piece| match &self.keys {
            Some(keys) => {
                let from = keys.partition_point(|key| *key < low || piece_of(*key, self.bits) < *piece);
                keys.get(from).is_some_and(|key| *key <= high && piece_of(*key, self.bits) == *piece)
            }
            None => true,
        })
    }
}

/// Gathers the batches of a run and cuts them into pieces.
pub(super) struct Router {
    with_key: SchemaRef,
    coding: KeyEncoding,
    /// A run has at most 2 to this many pieces.
    max_bits: u32,
    wanted: Wanted,
    task: u64,
    next_row: u64,
    /// Rows with their codes in the last column.
    keyed: Vec<RecordBatch>,
    pub(super) rows: usize,
    pub(super) bytes: usize,
    /// Rows that are not wanted.
    pub(super) dropped: usize,
    /// The sum of the codes of the rows that have come, or of those of all of their columns, as a digest of them.
    pub(super) sum_of_codes: u64,
}

impl Router {
    pub(super) fn new(schema: &SchemaRef, coding: KeyEncoding, max_bits: u32, wanted: Wanted, task: u64) -> Self {
        let with_key = with_code(schema);
        let (next_row, keyed, rows, bytes, dropped, sum_of_codes) = (0, Vec::new(), 0, 0, 0, 0);
        Self { with_key, coding, max_bits, wanted, task, next_row, keyed, rows, bytes, dropped, sum_of_codes }
    }

    /// Takes the next rows of the task, which have so many `bytes`, and notes their keys.
    pub(super) fn push(&mut self, batch: RecordBatch, bytes: usize, notes: Option<&mut KeyNotes>) -> Result<()> {
        let (codes, keys) = self.coding.codes(&batch, self.task, self.next_row)?;
        self.next_row += batch.num_rows() as u64;
        let of_rows = if self.wanted.whole_rows { Some(codes_of(batch.columns(), batch.num_rows())?) } else { None };
        let summed = of_rows.as_ref().unwrap_or(&codes);
        self.sum_of_codes = summed.iter().fold(self.sum_of_codes, |sum, code| sum.wrapping_add(*code));
        if let Some(notes) = notes {
            notes.note(&keys, &codes)?;
        }
        let among = self.wanted.seen.as_ref().map(|seen| seen.among(&codes));
        let columns = batch.columns().iter().cloned().chain([Arc::new(UInt64Array::from(codes)) as _]).collect();
        let mut keyed = RecordBatch::try_new(Arc::clone(&self.with_key), columns)?;
        let all = keyed.num_rows();
        if let Some(among) = among.filter(|among| among.true_count() < all) {
            keyed = filter_record_batch(&keyed, &among)?;
        }
        if self.wanted.from > 0 {
            keyed = inside(keyed, self.wanted.from, u64::MAX)?;
        }
        let kept = keyed.num_rows();
        self.dropped += all - kept;
        self.rows += kept;
        self.bytes += (bytes as u128 * kept as u128 / all.max(1) as u128) as usize;
        if kept > 0 {
            self.keyed.push(keyed);
        }
        Ok(())
    }

    /// Empties the router into one block, and counts its bytes in `bins`. Batches are slices of one: thousands of small
    /// buffers would take much more memory than their bytes.
    pub(super) fn route(&mut self, bins: &mut [usize]) -> Result<(RunPieces, Block)> {
        let piece_bytes = PIECE_BYTES.max(PIECE_COLUMN_BYTES * self.with_key.flattened_fields().len());
        let bits = (self.bytes / piece_bytes).clamp(1, self.rows.max(1)).ilog2().min(self.max_bits);
        let row_bytes = (self.bytes / self.rows.max(1) + size_of::<u64>()).max(1);
        let mut starts = vec![0; (1 << bits) + 1];
        let mut piece_of_row = Vec::with_capacity(self.rows);
        let mut known = (self.rows <= KNOWN_KEYS).then(Vec::new);
        let keyed = std::mem::take(&mut self.keyed);
        for batch in &keyed {
            let keys = batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>().values();
            keys.iter().for_each(|key| bins[piece_of(*key, MAX_PIECE_BITS)] += row_bytes);
            piece_of_row.extend(keys.iter().map(|key| piece_of(*key, bits)));
            known.iter_mut().for_each(|known| known.extend_from_slice(keys));
        }
        piece_of_row.iter().for_each(|piece| starts[piece + 1] += 1);
        (0..1 << bits).for_each(|piece| starts[piece + 1] += starts[piece]);
        let (mut places, mut next) = (vec![(0, 0); self.rows], starts.clone());
        let rows = keyed.iter().enumerate().flat_map(|(b, batch)| (0..batch.num_rows()).map(move |row| (b, row)));
        for (place, piece) in rows.zip(piece_of_row) {
            places[next[piece]] = place;
            next[piece] += 1;
        }
        let together = interleave_record_batch(&keyed.iter().collect::<Vec<_>>(), &places)?;
        let pieces = starts.windows(2).map(|ends| together.slice(ends[0], ends[1] - ends[0])).collect();
        known.iter_mut().for_each(|keys| keys.sort_unstable());
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        Ok((RunPieces { bits, rows, keys: known }, Block::new(Arc::clone(&self.with_key), pieces)))
    }
}

/// The bits that tell `num_buckets` equal ranges apart, if they do: then a bucket is one piece of a run, or several
/// where that would be much to read back at once.
pub(super) fn max_piece_bits(num_buckets: usize) -> u32 {
    match num_buckets.is_power_of_two() {
        true => num_buckets.ilog2().clamp(MIN_PIECE_BITS, MAX_PIECE_BITS),
        false => MAX_PIECE_BITS,
    }
}

pub(super) fn piece_of(key: u64, bits: u32) -> usize {
    key.checked_shr(64 - bits).unwrap_or(0) as usize
}

/// The rows of a piece whose keys are between `low` and `high`, in memory of their own when they are not all.
pub(super) fn inside(piece: RecordBatch, low: u64, high: u64) -> Result<RecordBatch> {
    let keys = piece.column(piece.num_columns() - 1).as_primitive::<UInt64Type>();
    let chosen = BooleanArray::from_unary(keys, |key| (low..=high).contains(&key));
    match chosen.true_count() == piece.num_rows() {
        true => Ok(piece),
        false => compact_views(&filter_record_batch(&piece, &chosen)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_with_known_keys_are_those_with_rows_in_the_range() {
        let keys: Vec<u64> = [1, 5, 6, 9, 15].map(|k| k << 60).to_vec();
        let pieces = |keys| RunPieces { bits: 2, rows: 5, keys };
        let between =
            |pieces: &RunPieces, low: u64, high: u64| pieces.between(low << 60, high << 60).collect::<Vec<_>>();
        let known = pieces(Some(keys));
        assert_eq!(between(&known, 0, 15), [0, 1, 2, 3]);
        assert_eq!(between(&known, 2, 4), [] as [usize; 0]);
        assert_eq!(between(&known, 6, 8), [1]);
        assert_eq!(between(&known, 7, 9), [2]);
        assert_eq!(between(&known, 10, 14), [] as [usize; 0]);
        assert_eq!(between(&pieces(None), 2, 4), [0, 1]);
        assert_eq!(between(&RunPieces { bits: 0, rows: 0, keys: None }, 0, 15), [] as [usize; 0]);
    }
}
