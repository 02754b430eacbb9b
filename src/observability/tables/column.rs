//! Columns of system tables.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, StringArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field};

/// A column of rows of type `R`.
pub(super) struct Column<R> {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    value: Value<R>,
}

/// How a value is found.
enum Value<R> {
    Number(fn(&R) -> Option<u64>),
    Text(fn(&R) -> String),
}

/// A number, where it is known.
pub(super) fn number<R>(name: &'static str, about: &'static str, of: fn(&R) -> Option<u64>) -> Column<R> {
    Column { name, about, value: Value::Number(of) }
}

/// A text; the empty one stands for none.
pub(super) fn text<R>(name: &'static str, about: &'static str, of: fn(&R) -> String) -> Column<R> {
    Column { name, about, value: Value::Text(of) }
}

/// The number of a query, of which 0 stands for none.
pub(super) fn id(id: u64) -> Option<u64> {
    (id != 0).then_some(id)
}

impl<R> Column<R> {
    pub(super) fn field(&self) -> Field {
        let data_type = match self.value {
            Value::Number(_) => DataType::UInt64,
            Value::Text(_) => DataType::Utf8,
        };
        Field::new(self.name, data_type, true)
    }

    /// The values of all rows.
    pub(super) fn values(&self, rows: &[R]) -> ArrayRef {
        match self.value {
            Value::Number(of) => Arc::new(rows.iter().map(of).collect::<UInt64Array>()),
            Value::Text(of) => {
                let texts = rows.iter().map(|row| Some(of(row)).filter(|text| !text.is_empty()));
                Arc::new(texts.collect::<StringArray>())
            }
        }
    }
}
