//! What the decoder of CSV says, for people.

use datafusion::arrow::datatypes::Schema;

/// A message of the decoder without the number of the line in it, and the number.
pub(super) fn without_line(message: &str) -> Option<(String, usize)> {
    let (before, rest) = message.split_once(" at line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((format!("{before}{}", &rest[digits..]), rest[..digits].parse().ok()?))
}

/// A message of the decoder with the name of a column in place of its number.
pub(super) fn with_name(message: &str, columns: &Schema) -> Option<String> {
    let (before, rest) = message.split_once(" for column ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let field = columns.fields().get(rest[..digits].parse::<usize>().ok()?)?;
    Some(format!("{before} for column '{}'{}", field.name(), &rest[digits..]))
}
