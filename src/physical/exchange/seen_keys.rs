//! [`SeenKeys`]: what is known of the keys of rows that were routed. Who joins other rows with them need not route
//! those whose keys are not among them.
//!
//! A Bloom filter of the codes, in which all bits of a code are in one word: a lookup is one access to memory.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::Accumulator;

/// A filter has at most so many bytes, or this part of the memory of the stage: it is to stay in the caches.
const MAX_BYTES: usize = 4 << 20;
const MEMORY_PART: usize = 64;
/// Bits for each row, where there is room: one of a hundred codes that were not seen looks as if it were.
const ROW_BITS: usize = 16;
/// With more of its bits set, a filter keeps half of all rows.
const MAX_SET: f64 = 0.8;

/// The codes of some rows, and the least and the greatest of each of their keys.
#[derive(Debug)]
pub(crate) struct SeenKeys {
    filter: Filter,
    rows: usize,
    bounds: Vec<Option<(ScalarValue, ScalarValue)>>,
}

impl SeenKeys {
    /// Whether the filter leaves out enough to be asked.
    pub(crate) fn tells(&self) -> bool {
        let set: u32 = self.filter.words.iter().map(|word| word.count_ones()).sum();
        f64::from(set) <= MAX_SET * (self.filter.words.len() * u64::BITS as usize) as f64
    }

    /// Whether no row was seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Which of some codes may have been seen.
    pub(super) fn among(&self, codes: &[u64]) -> BooleanArray {
        codes.iter().map(|code| Some(self.filter.has(*code))).collect()
    }

    /// The least and the greatest value of each key, where they are known and it has any.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Option<&(ScalarValue, ScalarValue)>> {
        self.bounds.iter().map(Option::as_ref)
    }
}

/// Notes the keys of rows that are routed.
#[derive(Debug)]
pub(super) struct KeyNotes {
    filter: Filter,
    rows: usize,
    bounds: Vec<Option<(MinAccumulator, MaxAccumulator)>>,
}

impl KeyNotes {
    /// For keys of these types, where a stage has so much memory.
    pub(super) fn new(memory: usize, key_types: &[DataType]) -> Result<Self> {
        let words = (memory / MEMORY_PART).min(MAX_BYTES) / size_of::<u64>();
        let bounds = |key_type: &DataType| {
            // Of floats, some are not comparable; long values would be dear to compare.
            let has_bounds = key_type.is_integer() || key_type.is_temporal() || key_type.is_decimal();
            has_bounds.then(|| Ok((MinAccumulator::try_new(key_type)?, MaxAccumulator::try_new(key_type)?))).transpose()
        };
        let bounds = key_types.iter().map(bounds).collect::<Result<_>>()?;
        Ok(Self { filter: Filter { words: vec![0; 1 << words.max(1).ilog2()] }, rows: 0, bounds })
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.filter.words.as_slice())
    }

    /// Rows with these keys and codes come.
    pub(super) fn note(&mut self, keys: &[ArrayRef], codes: &[u64]) -> Result<()> {
        self.rows += codes.len();
        codes.iter().for_each(|code| self.filter.add(*code));
        for (bounds, key) in self.bounds.iter_mut().zip(keys) {
            if let Some((least, greatest)) = bounds {
                least.update_batch(std::slice::from_ref(key))?;
                greatest.update_batch(std::slice::from_ref(key))?;
            }
        }
        Ok(())
    }

    /// Adds what others have noted, in filters of the same size.
    pub(super) fn merge(&mut self, others: Self) -> Result<()> {
        self.rows += others.rows;
        self.filter.words.iter_mut().zip(others.filter.words).for_each(|(word, more)| *word |= more);
        for (bounds, more) in self.bounds.iter_mut().zip(others.bounds) {
            if let Some(((least, greatest), (mut less, mut more))) = bounds.as_mut().zip(more) {
                least.merge_batch(&[less.evaluate()?.to_array()?])?;
                greatest.merge_batch(&[more.evaluate()?.to_array()?])?;
            }
        }
        Ok(())
    }

    /// What was seen, in as few bytes as do.
    pub(super) fn seen(mut self) -> Result<SeenKeys> {
        self.filter.fold(self.rows);
        let bounds = self.bounds.into_iter().map(|bounds| {
            let Some((mut least, mut greatest)) = bounds else { return Ok(None) };
            let (least, greatest) = (least.evaluate()?, greatest.evaluate()?);
            Ok((!least.is_null()).then_some((least, greatest)))
        });
        Ok(SeenKeys { filter: self.filter, rows: self.rows, bounds: bounds.collect::<Result<_>>()? })
    }
}

/// A Bloom filter, with as many words as a power of two.
#[derive(Debug)]
struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// Where the bits of a code are. The leading ones say it, so that neighbours can be put together.
    fn place(&self, code: u64) -> usize {
        ((u128::from(code) * self.words.len() as u128) >> u64::BITS) as usize
    }

    fn add(&mut self, code: u64) {
        let place = self.place(code);
        self.words[place] |= bits(code);
    }

    fn has(&self, code: u64) -> bool {
        self.words[self.place(code)] & bits(code) == bits(code)
    }

    /// Halves it as long as it has enough bits for so many rows.
    fn fold(&mut self, rows: usize) {
        while self.words.len() > 1 && rows * ROW_BITS <= self.words.len() / 2 * u64::BITS as usize {
            self.words = self.words.chunks(2).map(|pair| pair.iter().fold(0, |word, more| word | more)).collect();
        }
    }
}

/// The bits of a code in its word.
fn bits(code: u64) -> u64 {
    (0..4).map(|bit| 1 << ((code >> (6 * bit)) & 63)).fold(0, |bits: u64, bit: u64| bits | bit)
}

/// What rows are routed for, and which of them are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Rows with smaller codes are not kept.
    pub(crate) from: u64,
    /// Nor are those whose keys were not seen.
    pub(crate) seen: Option<Arc<SeenKeys>>,
    /// Whether somebody wants to know what keys were seen.
    pub(crate) notes: bool,
    /// Whether the sum of codes is of all columns, to tell whether the same rows have come again.
    pub(crate) whole_rows: bool,
}

impl Wanted {
    /// All rows whose codes are not smaller.
    pub(super) fn from(from: u64) -> Self {
        Self { from, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::row_random;
    use datafusion::arrow::array::{AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;

    fn noted(numbers: std::ops::Range<i64>) -> KeyNotes {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let codes: Vec<u64> = keys.as_primitive::<Int64Type>().values().iter().map(|n| code(*n)).collect();
        let mut notes = KeyNotes::new(256 << 20, &[DataType::Int64]).unwrap();
        notes.note(&[keys], &codes).unwrap();
        notes
    }

    fn code(number: i64) -> u64 {
        row_random(7, 0, number as u64)
    }

    #[test]
    fn what_was_seen_is_always_found_and_others_seldom() {
        for rows in [1, 1000, 100_000] {
            let mut notes = noted(0..rows);
            notes.merge(noted(rows..2 * rows)).unwrap();
            let seen = notes.seen().unwrap();
            let found = |numbers: std::ops::Range<i64>| {
                let codes: Vec<u64> = numbers.map(code).collect();
                seen.among(&codes).true_count() as i64
            };
            assert_eq!(found(0..2 * rows), 2 * rows);
            let wrong = found(1_000_000..1_100_000);
            assert!(wrong < 3000 && seen.tells(), "{wrong} of 100,000 for {rows} rows");
            let bound = |number| ScalarValue::Int64(Some(number));
            assert_eq!(seen.bounds().collect::<Vec<_>>(), [Some(&(bound(0), bound(2 * rows - 1)))]);
        }
        assert_eq!(noted(0..10).seen().unwrap().filter.words.len(), 4);
        let none = noted(0..0).seen().unwrap();
        assert!(none.is_empty() && none.bounds().all(|bounds| bounds.is_none()));
    }

    #[test]
    fn a_filter_that_is_full_says_so() {
        assert!(noted(0..2_000_000).seen().unwrap().tells());
        let mut notes = KeyNotes::new(1 << 20, &[]).unwrap();
        notes.note(&[], &(0..100_000).map(code).collect::<Vec<_>>()).unwrap();
        assert!(!notes.seen().unwrap().tells());
    }
}
