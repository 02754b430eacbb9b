//! Which columns of a Parquet file are worth a dictionary.
//!
//! An encoder finds out by hashing every value until the dictionary is full, in each row group anew: with unique values
//! that takes longer than all else together. A sample of the rows tells before. Of n rows drawn from D equally frequent
//! values about n² / 2D are equal to another, so the number of equal ones tells D, also far above n: where there are
//! half as many values as rows, `8 √rows` of them have about 64 equal ones, which is enough to tell more from fewer.

use std::collections::HashSet;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::interleave;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::hash_utils::{RandomState, create_hashes};

use crate::block::mix;

/// Rows of a sample at most.
const SAMPLE: usize = 4096;
/// Small integers are written as large ones.
const MIN_VALUE_BYTES: usize = 4;
/// Bytes that a dictionary has at most by the default of Parquet's writer.
const DICTIONARY_BYTES: usize = 1 << 20;

/// The options of a writer of `file_rows` rows like these, without dictionaries where they would not pay. What was said
/// of a column stays.
pub(super) fn of_rows(
    options: &TableParquetOptions,
    batches: &[RecordBatch],
    file_rows: usize,
) -> Result<TableParquetOptions> {
    let mut options = options.clone();
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    if options.global.dictionary_enabled == Some(false) || rows == 0 {
        return Ok(options);
    }
    let max_bytes = options.global.dictionary_page_size_limit.min(DICTIONARY_BYTES);
    let group_rows = file_rows.min(options.global.max_row_group_size);
    let places = places(batches, rows, sample_rows(rows));
    for (index, field) in batches[0].schema().fields().iter().enumerate() {
        let of_column = options.column_specific_options.get(field.name());
        let is_said = of_column.is_some_and(|of_column| of_column.dictionary_enabled.is_some());
        if is_said || field.data_type().is_nested() || matches!(field.data_type(), DataType::Dictionary(..)) {
            continue;
        }
        let columns: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(index).as_ref()).collect();
        let sample = interleave(&columns, &places)?;
        let different = different_values(&sample)?;
        let value_bytes = (sample.get_array_memory_size() / sample.len().max(1)).max(MIN_VALUE_BYTES);
        if !pays(different, value_bytes, group_rows) || different.saturating_mul(value_bytes) > max_bytes {
            options.column_specific_options.entry(field.name().clone()).or_default().dictionary_enabled = Some(false);
        }
    }
    Ok(options)
}

/// Whether values take less than half of their bytes as a dictionary and numbers in it: they are hashed for it.
fn pays(different: usize, value_bytes: usize, rows: usize) -> bool {
    let bits = different.max(2).next_power_of_two().ilog2() as usize;
    different.saturating_mul(value_bytes) + rows * bits / 8 < rows.saturating_mul(value_bytes) / 2
}

/// Rows of a sample of so many.
fn sample_rows(rows: usize) -> usize {
    (8 * rows.isqrt()).min(SAMPLE).min(rows)
}

/// The places of a sample: one row of each of so many equal parts, drawn so that no period of the values meets it.
fn places(batches: &[RecordBatch], rows: usize, sample: usize) -> Vec<(usize, usize)> {
    let (mut places, mut batch, mut before) = (Vec::with_capacity(sample), 0, 0);
    for number in 0..sample {
        let (start, end) = (number * rows / sample, (number + 1) * rows / sample);
        let row = start + (mix(number as u64) % (end - start) as u64) as usize;
        while row >= before + batches[batch].num_rows() {
            before += batches[batch].num_rows();
            batch += 1;
        }
        places.push((batch, row - before));
    }
    places
}

/// An estimate of how many different values the rows have that a sample was drawn from.
fn different_values(sample: &ArrayRef) -> Result<usize> {
    let mut hashes = vec![0; sample.len()];
    create_hashes([sample], &RandomState::with_seed(0), &mut hashes)?;
    let mut seen = HashSet::with_capacity_and_hasher(sample.len(), RandomState::with_seed(1));
    seen.extend((0..sample.len()).filter(|row| sample.is_valid(*row)).map(|row| hashes[row]));
    let rows = sample.len() - sample.null_count();
    let equal = rows - seen.len();
    Ok(if equal == 0 { rows * rows } else { (rows * rows / (2 * equal)).max(seen.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Int64Array, StringArray};
    use std::sync::Arc;

    fn without_dictionary(columns: Vec<(&str, ArrayRef)>, options: &TableParquetOptions) -> Vec<String> {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let halves =
            [batch.slice(0, batch.num_rows() / 2), batch.slice(batch.num_rows() / 2, batch.num_rows().div_ceil(2))];
        let options = of_rows(options, &halves, batch.num_rows()).unwrap();
        let off = options.column_specific_options.into_iter().filter(|(_, of)| of.dictionary_enabled == Some(false));
        let mut names: Vec<_> = off.map(|(name, _)| name).collect();
        names.sort();
        names
    }

    fn columns() -> Vec<(&'static str, ArrayRef)> {
        let ints = |f: fn(i64) -> i64| Arc::new((0..200_000).map(f).collect::<Int64Array>()) as ArrayRef;
        let texts =
            |f: fn(i64) -> String| Arc::new((0..200_000).map(|i| Some(f(i))).collect::<StringArray>()) as ArrayRef;
        vec![
            ("unique", ints(|i| i)),
            // Hardly two of a sample are equal.
            ("of 20 thousand", ints(|i| i.wrapping_mul(48_271) % 20_000)),
            // Numbers in a dictionary would be as long as half of the values, and the dictionary is there too.
            ("of 80 thousand", ints(|i| i.wrapping_mul(48_271) % 80_000)),
            ("of three", ints(|i| i % 3)),
            ("of one", ints(|_| 1)),
            ("names", texts(|i| format!("name {}", i % 100))),
            ("keys", texts(|i| format!("key {i}"))),
            ("long", texts(|i| format!("{} {}", "x".repeat(200), i * 7919 % 20_000))),
        ]
    }

    #[test]
    fn columns_of_unique_or_large_values_get_none() {
        let options = TableParquetOptions::default();
        assert_eq!(without_dictionary(columns(), &options), ["keys", "long", "of 80 thousand", "unique"]);
        assert!(without_dictionary(vec![("none", Arc::new(Int64Array::new_null(9)) as _)], &options).is_empty());
    }

    #[test]
    fn what_was_said_of_a_column_stays() {
        let mut options = TableParquetOptions::default();
        options.column_specific_options.entry("unique".to_owned()).or_default().dictionary_enabled = Some(true);
        options.column_specific_options.entry("of one".to_owned()).or_default().dictionary_enabled = Some(false);
        assert_eq!(without_dictionary(columns(), &options), ["keys", "long", "of 80 thousand", "of one"]);
    }
}
