//! The keys by which rows are sorted: as bytes that compare like the values, and places between rows.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::{Row, RowConverter, Rows, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use serde::{Deserialize, Serialize};

/// Fewer rows of one number are compared by their keys at once.
const FEW_ROWS: usize = 32;

/// By what rows are sorted.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) by: Vec<PhysicalSortExpr>,
    pub(crate) schema: SchemaRef,
}

impl Order {
    /// The keys of rows, which compare as bytes.
    pub(crate) fn keys(&self, batch: &RecordBatch) -> Result<Rows> {
        let keys = self.by.iter().map(|key| key.expr.evaluate(batch)?.into_array(batch.num_rows()));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let fields = self.fields()?;
        Ok(RowConverter::new(fields)?.convert_columns(&keys)?)
    }

    /// The places before the first row of a key that is not less than a boundary.
    pub(super) fn boundaries(&self, values: Option<&[ScalarValue]>) -> Result<Option<Vec<RowPlace>>> {
        let (Some(values), Some(first)) = (values, self.fields()?.into_iter().next()) else {
            return Ok(None);
        };
        let converter = RowConverter::new(vec![first])?;
        let place = |value: &ScalarValue| {
            // Keys of several columns begin with the first.
            let key = converter.convert_columns(&[value.to_array()?])?.row(0).as_ref().into();
            Ok(RowPlace { key, run: 0, row: 0 })
        };
        values.iter().map(place).collect::<Result<_>>().map(Some)
    }

    fn fields(&self) -> Result<Vec<SortField>> {
        let field =
            |key: &PhysicalSortExpr| Ok(SortField::new_with_options(key.expr.data_type(&self.schema)?, key.options));
        self.by.iter().map(field).collect()
    }
}

/// Whether rows of these columns can be sorted here.
pub(crate) fn can_sort(by: &LexOrdering, schema: &SchemaRef) -> bool {
    let order = Order { by: by.iter().cloned().collect(), schema: Arc::clone(schema) };
    order.fields().is_ok_and(|fields| RowConverter::supports_fields(&fields))
}

/// A place between rows, in the order of the sort.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RowPlace {
    pub(super) key: Box<[u8]>,
    pub(super) run: usize,
    pub(super) row: usize,
}

/// The first row of a piece.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct First {
    /// Its key, or the beginning of a long one.
    pub(super) key: Box<[u8]>,
    pub(super) is_whole: bool,
    /// The number by which places call it.
    pub(super) row: usize,
    /// Its number in the run.
    pub(super) start: usize,
}

impl First {
    pub(super) fn new(key: &[u8], row: usize, start: usize, max_bytes: usize) -> Self {
        let length = key.len().min(max_bytes);
        Self { key: key[..length].into(), is_whole: length == key.len(), row, start }
    }

    /// Whether the row, of run number `run`, is before a place. `None` where the rest of its key would have to tell.
    pub(super) fn is_before(&self, run: usize, place: &RowPlace) -> Option<bool> {
        match self.is_whole {
            true => Some(compare(&self.key, run, self.row, place).is_lt()),
            false if place.key.len() > self.key.len() && place.key.starts_with(&self.key) => None,
            // A key is behind what it begins with.
            false => Some(self.key < place.key),
        }
    }
}

pub(super) fn compare(key: &[u8], run: usize, row: usize, place: &RowPlace) -> Ordering {
    key.cmp(&place.key).then(run.cmp(&place.run)).then(row.cmp(&place.row))
}

/// The rows behind some keys in order; equal ones stay as they come.
pub(super) fn places(keys: &[Rows]) -> Vec<(usize, usize)> {
    let digits = DifferingBytes::of(all(keys).map(|(part, row)| keys[part].row(row)));
    match digits.positions.len() <= size_of::<u64>() {
        true => places_by(keys, &digits, |digits: u64, byte| digits << 8 | u64::from(byte)),
        false => places_by(keys, &digits, |digits: u128, byte| digits << 8 | u128::from(byte)),
    }
}

pub(super) fn all(keys: &[Rows]) -> impl Iterator<Item = (usize, usize)> {
    keys.iter().enumerate().flat_map(|(part, rows)| (0..rows.num_rows()).map(move |row| (part, row)))
}

fn places_by<T: Copy + Ord + Default>(
    keys: &[Rows],
    digits: &DifferingBytes,
    and: impl Fn(T, u8) -> T,
) -> Vec<(usize, usize)> {
    let numbered = all(keys).map(|(part, row)| (digits.number(keys[part].row(row), &and), (part as u32, row as u32)));
    let mut places: Vec<_> = numbered.collect();
    sort_numbered(&mut places, digits.tell_all, &|(part, row)| keys[part as usize].row(row as usize));
    places.into_iter().map(|(_, (part, row))| (part as usize, row as usize)).collect()
}

/// Sorts by a number made of the bytes that differ, and those of one number by the bytes in which these differ.
pub(super) fn sort_numbered<'a, T: Ord, P: Copy>(rows: &mut [(T, P)], tell_all: bool, key: &impl Fn(P) -> Row<'a>) {
    // Stable, and quick where the parts are in order already.
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    if !tell_all {
        rows.chunk_by_mut(|a, b| a.0 == b.0).for_each(|equal| sort_equal(equal, key));
    }
}

/// The same of rows whose numbers are equal. Where few keys are different, the keys are equal, too, which is seen
/// without sorting them.
fn sort_equal<'a, T, P: Copy>(rows: &mut [(T, P)], key: &impl Fn(P) -> Row<'a>) {
    if rows.is_sorted_by(|a, b| key(a.1) <= key(b.1)) {
        return;
    }
    let digits = match rows.len() < FEW_ROWS {
        true => DifferingBytes::of(std::iter::empty()),
        false => DifferingBytes::of(rows.iter().map(|row| key(row.1))),
    };
    if digits.positions.is_empty() {
        return rows.sort_by(|a, b| key(a.1).cmp(&key(b.1)));
    }
    let and = |digits: u128, byte| digits << 8 | u128::from(byte);
    let mut numbered: Vec<_> = rows.iter().map(|row| (digits.number(key(row.1), and), row.1)).collect();
    sort_numbered(&mut numbered, digits.tell_all, key);
    rows.iter_mut().zip(numbered).for_each(|(row, (_, place))| row.1 = place);
}

/// The bytes of some keys in which they differ, as far as they fit into a number.
pub(super) struct DifferingBytes {
    pub(super) positions: Vec<usize>,
    /// Whether keys are equal when these bytes are.
    pub(super) tell_all: bool,
}

impl DifferingBytes {
    /// The number that these bytes of a key are.
    pub(super) fn number<T: Default>(&self, key: Row<'_>, and: impl Fn(T, u8) -> T) -> T {
        self.positions.iter().fold(T::default(), |number, at| and(number, key.as_ref()[*at]))
    }

    pub(super) fn of<'a>(keys: impl Iterator<Item = Row<'a>>) -> Self {
        let (mut any, mut every, mut longest) = (Vec::new(), Vec::new(), 0);
        for (number, key) in keys.enumerate() {
            let key: &[u8] = key.as_ref();
            longest = longest.max(key.len());
            if number == 0 {
                (any, every) = (key.to_vec(), key.to_vec());
            }
            any.truncate(key.len());
            every.truncate(key.len());
            any.iter_mut().zip(&mut every).zip(key).for_each(|((any, every), byte)| {
                *any |= byte;
                *every &= byte;
            });
        }
        let differ = any.iter().zip(&every).enumerate().filter(|(_, (any, every))| any != every).map(|(at, _)| at);
        let mut positions: Vec<_> = differ.collect();
        let tell_all = positions.len() <= size_of::<u128>() && longest == any.len();
        positions.truncate(size_of::<u128>());
        Self { positions, tell_all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Float64Array, Int64Array, StringArray};

    fn keys(columns: Vec<datafusion::arrow::array::ArrayRef>) -> Rows {
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        RowConverter::new(fields).unwrap().convert_columns(&columns).unwrap()
    }

    fn sorted(parts: &[Rows]) -> Vec<(usize, usize)> {
        let mut all: Vec<_> =
            parts.iter().enumerate().flat_map(|(p, rows)| (0..rows.num_rows()).map(move |r| (p, r))).collect();
        all.sort_by(|a, b| parts[a.0].row(a.1).cmp(&parts[b.0].row(b.1)));
        all
    }

    #[test]
    fn the_beginning_of_a_key_tells_where_it_is_or_that_it_does_not() {
        let place = |key: &str, row| RowPlace { key: key.as_bytes().into(), run: 1, row };
        let first = |key: &str, most| First::new(key.as_bytes(), 5, 5, most);
        let cases = [
            ("abcd", 9, "abcd", 4, Some(false)),
            ("abcd", 9, "abcd", 6, Some(true)),
            ("abcd", 9, "abce", 0, Some(true)),
            ("abcd", 3, "abd", 0, Some(true)),
            ("abcd", 3, "abb", 0, Some(false)),
            // It has more bytes than these.
            ("abcd", 3, "abc", 9, Some(false)),
            ("abcd", 3, "ab", 9, Some(false)),
            ("abcd", 3, "abcc", 0, None),
            ("abcd", 3, "abce", 0, None),
        ];
        for (key, most, at, row, expected) in cases {
            assert_eq!(first(key, most).is_before(1, &place(at, row)), expected, "{key} cut to {most} and {at}");
        }
    }

    #[test]
    fn rows_are_in_order_and_equal_ones_stay() {
        let numbers = |step: i64| -> datafusion::arrow::array::ArrayRef {
            Arc::new((0..500).map(|i| (i % 7 != 0).then_some(i * step % 100 - 50)).collect::<Int64Array>())
        };
        let texts: datafusion::arrow::array::ArrayRef = Arc::new(
            (0..500).map(|i| (i % 5 != 0).then(|| "x".repeat(i % 40) + &i.to_string())).collect::<StringArray>(),
        );
        let floats: datafusion::arrow::array::ArrayRef = Arc::new(
            (0..500).map(|i| if i % 9 == 0 { f64::NAN } else { -f64::from(i % 13) }).collect::<Float64Array>(),
        );
        // Few values, that differ in all of their bytes.
        let wide = |values: i64| -> datafusion::arrow::array::ArrayRef {
            Arc::new((0..500).map(|i| (i % values * 0x0123_4567_89ab_cdef) ^ 0x0f1e_2d3c).collect::<Int64Array>())
        };
        let cases: [Vec<Rows>; 7] = [
            vec![
                keys(vec![wide(3), wide(5), wide(7), numbers(17)]),
                keys(vec![wide(2), wide(7), wide(3), numbers(31)]),
            ],
            vec![keys(vec![wide(3), wide(4), wide(2), numbers(0), Arc::clone(&texts)])],
            vec![keys(vec![numbers(17)]), keys(vec![numbers(31)])],
            vec![keys(vec![numbers(17), numbers(31), numbers(53)])],
            vec![keys(vec![Arc::clone(&texts)]), keys(vec![texts.slice(3, 100)]), keys(vec![texts.slice(0, 1)])],
            vec![keys(vec![floats, texts])],
            vec![keys(vec![numbers(0)]), keys(vec![numbers(0).slice(0, 0)])],
        ];
        for parts in cases {
            assert_eq!(places(&parts), sorted(&parts));
        }
        assert!(places(&[]).is_empty());
        let all = [0i64, 1 << 40].map(|n| keys(vec![Arc::new(Int64Array::from(vec![n]))]));
        let digits = DifferingBytes::of(all.iter().map(|rows| rows.row(0)));
        assert!(digits.tell_all && digits.positions.len() == 1);
    }
}
