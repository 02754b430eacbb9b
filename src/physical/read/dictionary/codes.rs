//! The codes of a page: which rows have one that passes, and those of some rows.
//!
//! ```text
//! dictionary      0: 'AIR'     1: 'MAIL'    2: 'SHIP'
//! passing         true         false        true
//! codes           1 1 1 2 0 2 ..      a run of 3 x 1, then 2 0 2 .. in two bits each
//! rows            0 0 0 1 1 1 ..
//! ```

use datafusion::arrow::array::{BooleanBufferBuilder, NullBufferBuilder, UInt32Array};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::parquet::basic::Encoding;
use datafusion::parquet::column::page::Page;

/// Which values pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passing {
    /// By code.
    pub(super) codes: Vec<bool>,
    pub(super) null: bool,
}

/// A page of codes.
pub(super) struct CodedPage<'a> {
    /// Whether each value is there, where some may be null.
    levels: Option<&'a [u8]>,
    /// The number of bits of a code, and the codes.
    codes: &'a [u8],
    /// Its rows.
    pub(super) values: usize,
}

impl<'a> CodedPage<'a> {
    /// `None` where it has no codes.
    pub(super) fn of(page: &'a Page, is_nullable: bool) -> Option<Self> {
        let (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY) = page.encoding() else { return None };
        let values = page.num_values() as usize;
        let (levels, codes) = match page {
            Page::DataPage { buf, .. } if !is_nullable => (None, buf.as_ref()),
            Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } => {
                let (length, behind) = buf.split_first_chunk::<4>()?;
                let (levels, codes) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                (Some(levels), codes)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len: 0, .. } => {
                let (levels, codes) = buf.split_at_checked(*def_levels_byte_len as usize)?;
                (is_nullable.then_some(levels), codes)
            }
            _ => return None,
        };
        Some(Self { levels, codes, values })
    }

    /// Which of its values are there, where some are not.
    fn is_there(&self) -> Option<Option<BooleanBuffer>> {
        let Some(levels) = self.levels else { return Some(None) };
        let mut is_there = Levels(BooleanBufferBuilder::new(self.values));
        each_run(levels, 1, self.values, &mut is_there)?;
        let is_there = is_there.0.finish();
        Some((is_there.count_set_bits() < self.values).then_some(is_there))
    }

    /// Of each row, whether its value passes. `None` where codes are not what the format says.
    pub(super) fn append_passing(&self, passing: &Passing, to: &mut BooleanBufferBuilder) -> Option<()> {
        let is_there = self.is_there()?;
        let values = is_there.as_ref().map_or(self.values, BooleanBuffer::count_set_bits);
        let mut tested = Tested { passing: &passing.codes, passed: BooleanBufferBuilder::new(values) };
        each_code(self.codes, values, &mut tested)?;
        let passed = tested.passed.finish();
        let Some(is_there) = is_there else {
            to.append_buffer(&passed);
            return Some(());
        };
        to.append_buffer(&spread(&passed, &is_there, passing.null));
        Some(())
    }

    /// The codes of the rows for which `wanted` is set.
    pub(super) fn append_codes(&self, wanted: &BooleanBuffer, to: &mut Codes) -> Option<()> {
        let Some(is_there) = self.is_there()? else {
            let first = to.codes.len();
            let mut picked = Picked { wanted, at: 0, codes: &mut to.codes };
            each_code(self.codes, self.values, &mut picked)?;
            to.nulls.append_n_non_nulls(to.codes.len() - first);
            return Some(());
        };
        let wanted_values = gathered(wanted, &is_there);
        let mut of_values = Vec::new();
        let mut picked = Picked { wanted: &wanted_values, at: 0, codes: &mut of_values };
        each_code(self.codes, wanted_values.len(), &mut picked)?;
        let mut of_values = of_values.into_iter();
        for row in wanted.set_indices() {
            to.nulls.append(is_there.value(row));
            to.codes.push(if is_there.value(row) { of_values.next()? } else { 0 });
        }
        Some(())
    }
}

/// Codes of rows; those that are null have any.
pub(super) struct Codes {
    codes: Vec<u32>,
    nulls: NullBufferBuilder,
}

impl Codes {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self { codes: Vec::with_capacity(rows), nulls: NullBufferBuilder::new(rows) }
    }

    pub(super) fn finish(mut self) -> UInt32Array {
        UInt32Array::new(self.codes.into(), self.nulls.finish())
    }
}

/// What is done with codes.
trait Sink {
    /// So many times the same one.
    fn run(&mut self, code: usize, times: usize) -> Option<()>;

    /// So many, of so many bits each.
    fn packed(&mut self, packed: &[u8], bits: usize, count: usize) -> Option<()>;
}

/// Whether values are there.
struct Levels(BooleanBufferBuilder);

impl Sink for Levels {
    fn run(&mut self, level: usize, times: usize) -> Option<()> {
        self.0.append_n(times, level > 0);
        Some(())
    }

    fn packed(&mut self, packed: &[u8], _bits: usize, count: usize) -> Option<()> {
        self.0.append_packed_range(0..count, packed);
        Some(())
    }
}

/// Whether codes pass.
struct Tested<'a> {
    passing: &'a [bool],
    passed: BooleanBufferBuilder,
}

impl Sink for Tested<'_> {
    fn run(&mut self, code: usize, times: usize) -> Option<()> {
        self.passed.append_n(times, *self.passing.get(code)?);
        Some(())
    }

    fn packed(&mut self, packed: &[u8], bits: usize, count: usize) -> Option<()> {
        let mask = (1_u64 << bits) - 1;
        let mut passed = Vec::with_capacity(count.div_ceil(8));
        let mut first_bit = 0;
        for first in (0..count).step_by(8) {
            let mut byte = 0_u8;
            for number in 0..(count - first).min(8) {
                let code = (eight_bytes(packed, first_bit / 8) >> (first_bit % 8)) & mask;
                byte |= u8::from(*self.passing.get(code as usize)?) << number;
                first_bit += bits;
            }
            passed.push(byte);
        }
        self.passed.append_packed_range(0..count, &passed);
        Some(())
    }
}

/// Codes that are wanted.
struct Picked<'a> {
    wanted: &'a BooleanBuffer,
    /// The number of the next one.
    at: usize,
    codes: &'a mut Vec<u32>,
}

impl Picked<'_> {
    fn next(&mut self, count: usize) -> Option<BooleanBuffer> {
        let wanted = (self.at + count <= self.wanted.len()).then(|| self.wanted.slice(self.at, count));
        self.at += count;
        wanted
    }
}

impl Sink for Picked<'_> {
    fn run(&mut self, code: usize, times: usize) -> Option<()> {
        let wanted = self.next(times)?.count_set_bits();
        self.codes.extend(std::iter::repeat_n(u32::try_from(code).ok()?, wanted));
        Some(())
    }

    fn packed(&mut self, packed: &[u8], bits: usize, count: usize) -> Option<()> {
        let mask = (1_u64 << bits) - 1;
        let code = |number: usize| {
            let first_bit = number * bits;
            ((eight_bytes(packed, first_bit / 8) >> (first_bit % 8)) & mask) as u32
        };
        let wanted = self.next(count)?;
        self.codes.extend(wanted.set_indices().map(code));
        Some(())
    }
}

/// Codes of a page: the number of bits of each, and runs of them.
fn each_code(codes: &[u8], count: usize, sink: &mut impl Sink) -> Option<()> {
    if count == 0 {
        return Some(());
    }
    let (bits, runs) = codes.split_first()?;
    match *bits {
        0 => sink.run(0, count),
        bits @ 1..=32 => each_run(runs, usize::from(bits), count, sink),
        _ => None,
    }
}

/// Runs of one code, and of codes that are packed bit by bit, as Parquet's hybrid encoding has them.
fn each_run(mut runs: &[u8], bits: usize, mut count: usize, sink: &mut impl Sink) -> Option<()> {
    while count > 0 {
        let header = varint(&mut runs)?;
        let length = usize::try_from(header >> 1).ok().filter(|length| *length > 0)?;
        let run;
        if header & 1 == 0 {
            let (code, behind) = runs.split_at_checked(bits.div_ceil(8))?;
            let code = code.iter().rev().fold(0, |code, byte| code << 8 | usize::from(*byte));
            run = length.min(count);
            sink.run(code, run)?;
            runs = behind;
        } else {
            // Eight codes take a byte for each bit of them; those behind the last are padding, which may be left out.
            let (packed, behind) = runs.split_at(length.checked_mul(bits)?.min(runs.len()));
            run = length.saturating_mul(8).min(count);
            if packed.len() < (run * bits).div_ceil(8) {
                return None;
            }
            sink.packed(packed, bits, run)?;
            runs = behind;
        }
        count -= run;
    }
    Some(())
}

/// A bit for each that is there, in the order of those, and `absent` for the others.
fn spread(bits: &BooleanBuffer, is_there: &BooleanBuffer, absent: bool) -> BooleanBuffer {
    let bits = bits.bit_chunks().iter_padded().chain([0, 0]).collect::<Vec<_>>();
    let mut taken = 0;
    let words = is_there.bit_chunks().iter_padded().map(|there| {
        let (at, shift) = (taken / 64, taken % 64);
        // The first 64 that were not taken yet. Behind the last word of rows none is there.
        let word = bits.get(at..at + 2).map_or(0, |two| (u128::from(two[0]) | u128::from(two[1]) << 64) >> shift);
        taken += there.count_ones() as usize;
        let word = places(!there).fold(word as u64, |word, place| {
            let below = (1_u64 << place) - 1;
            (word & below) | ((word & !below) << 1)
        });
        if absent { word | !there } else { word }
    });
    let words: Vec<_> = words.collect();
    BooleanBuffer::new(words.into(), 0, is_there.len())
}

/// The bits of those that are there.
fn gathered(bits: &BooleanBuffer, is_there: &BooleanBuffer) -> BooleanBuffer {
    let mut gathered = BooleanBufferBuilder::new(is_there.len());
    for (bits, there) in bits.bit_chunks().iter_padded().zip(is_there.bit_chunks().iter_padded()) {
        // From the last place on: those before are where they were.
        let (mut word, mut absent) = (bits, !there);
        while absent != 0 {
            let place = 63 - absent.leading_zeros();
            let below = (1_u64 << place) - 1;
            word = (word & below) | (word >> 1 & !below);
            absent &= below;
        }
        gathered.append_packed_range(0..there.count_ones() as usize, &word.to_le_bytes());
    }
    gathered.finish()
}

/// The places of the bits of a word that are set, from the lowest on.
fn places(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let place = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}

/// Eight bytes from there on, of which those behind the end are 0.
fn eight_bytes(bytes: &[u8], at: usize) -> u64 {
    let behind = bytes.get(at..).unwrap_or_default();
    match behind.first_chunk::<8>() {
        Some(eight) => u64::from_le_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..behind.len()].copy_from_slice(behind);
            u64::from_le_bytes(eight)
        }
    }
}

/// A number of which each byte has seven bits.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..35).step_by(7) {
        let (byte, behind) = bytes.split_first()?;
        *bytes = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(runs: &[u8], bits: usize, count: usize, passing: &[bool]) -> Option<Vec<bool>> {
        let mut tested = Tested { passing, passed: BooleanBufferBuilder::new(0) };
        each_run(runs, bits, count, &mut tested)?;
        Some(tested.passed.finish().iter().collect())
    }

    fn picked(runs: &[u8], bits: usize, wanted: &[bool]) -> Option<Vec<u32>> {
        let (wanted, mut codes) = (BooleanBuffer::from(wanted), Vec::new());
        each_run(runs, bits, wanted.len(), &mut Picked { wanted: &wanted, at: 0, codes: &mut codes })?;
        Some(codes)
    }

    #[test]
    fn runs_of_one_code_and_packed_codes_follow_each_other() {
        let passing = [true, false, true, false];
        // Three times code 1, then eight codes of two bits: 2 0 2 1 3 0 1 1.
        let runs = [3 << 1, 1, 1 << 1 | 1, 0b01_10_00_10, 0b01_01_00_11];
        let expected = [false, false, false, true, true, true, false, false, true, false, false];
        assert_eq!(passed(&runs, 2, 11, &passing).unwrap(), expected);
        assert_eq!(passed(&runs, 2, 4, &passing).unwrap(), expected[..4]);
        assert_eq!(picked(&runs, 2, &[true; 11]).unwrap(), [1, 1, 1, 2, 0, 2, 1, 3, 0, 1, 1]);
        let third: Vec<bool> = (0..11).map(|row| row % 3 == 2).collect();
        assert_eq!(picked(&runs, 2, &third).unwrap(), [1, 2, 0]);
    }

    #[test]
    fn bits_are_spread_to_values_that_are_there_and_gathered_from_them() {
        for (rows, every) in [(1, 1), (63, 2), (64, 3), (65, 1), (200, 64), (640, 7), (641, 65), (130, 1000)] {
            for is_there in [
                (0..rows).map(|row| row % every != 0).collect::<BooleanBuffer>(),
                (0..rows).map(|row| row % every == 0).collect(),
                (0..rows + 5).map(|row| row % every != 0).collect::<BooleanBuffer>().slice(5, rows),
            ] {
                let there = is_there.count_set_bits();
                let bits: BooleanBuffer = (0..there).map(|value| value * value % 5 < 2).collect();
                for absent in [false, true] {
                    let mut values = bits.iter();
                    let expected: BooleanBuffer =
                        is_there.iter().map(|there| if there { values.next().unwrap() } else { absent }).collect();
                    assert_eq!(spread(&bits, &is_there, absent), expected, "{rows} rows");
                    assert_eq!(gathered(&expected, &is_there), bits, "{rows} rows");
                }
            }
        }
    }

    #[test]
    fn what_is_no_code_is_not_read() {
        let passing = [true, true];
        assert_eq!(passed(&[1 << 1, 2], 2, 1, &passing), None, "a code of no value");
        assert_eq!(passed(&[1 << 1 | 1, 0b11], 2, 4, &passing), None, "a packed code of no value");
        assert_eq!(passed(&[1 << 1 | 1, 0], 2, 8, &passing), None, "too few bytes");
        assert_eq!(passed(&[0, 0], 2, 1, &passing), None, "a run of nothing");
        assert_eq!(passed(&[1 << 1, 0], 2, 2, &passing), None, "too few codes");
        assert_eq!(passed(&[0xff; 6], 2, 2, &passing), None, "a number without an end");
    }

    #[test]
    fn wide_codes_are_read_across_bytes() {
        let passing: Vec<bool> = (0..1 << 17).map(|code| code % 3 == 0).collect();
        let codes: Vec<u64> = (0..40).map(|i| i * 3271 % (1 << 17)).collect();
        let mut packed = vec![0_u8; 40 * 17 / 8];
        for (number, code) in codes.iter().enumerate() {
            for bit in (0..17).filter(|bit| code >> bit & 1 == 1) {
                packed[(number * 17 + bit) / 8] |= 1 << ((number * 17 + bit) % 8);
            }
        }
        let runs = [vec![5 << 1 | 1], packed].concat();
        let expected: Vec<bool> = codes.iter().map(|code| code % 3 == 0).collect();
        assert_eq!(passed(&runs, 17, 40, &passing).unwrap(), expected);
        assert!(picked(&runs, 17, &[true; 40]).unwrap().into_iter().map(u64::from).eq(codes));
    }
}
