//! The values that the names of directories give columns.

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue, plan_err};
use object_store::path::Path;

use super::choice::PathPartitioning;
use crate::sinks::HIVE_NULL;

/// The columns that the directories of a file below `prefix` give, with their values.
pub(super) fn path_values(
    prefix: &Path,
    path: &Path,
    partitioning: &PathPartitioning,
) -> Result<Vec<(String, String)>> {
    let parts: Vec<String> = path.prefix_match(prefix).into_iter().flatten().map(|p| p.as_ref().to_owned()).collect();
    let directories = &parts[..parts.len().saturating_sub(1)];
    match partitioning {
        PathPartitioning::None => Ok(Vec::new()),
        PathPartitioning::Hive => {
            let keys = directories.iter().filter_map(|directory| directory.split_once('='));
            Ok(keys.map(|(key, value)| (decode(key), decode(value))).collect())
        }
        PathPartitioning::Directories(names) if names.len() == directories.len() => {
            Ok(names.iter().cloned().zip(directories.iter().map(|value| decode(value))).collect())
        }
        PathPartitioning::Directories(names) => plan_err!(
            "'{path}' is {} directories below '{prefix}', and partitioning names {}: {}",
            directories.len(),
            names.len(),
            names.join(", ")
        ),
    }
}

/// The value of a column of paths that a directory gives as text; none where that is no value of its type.
pub(super) fn typed(field: &Field, value: &str) -> Option<ScalarValue> {
    match field.data_type() {
        kind if value == HIVE_NULL => ScalarValue::try_from(kind).ok(),
        // As integers are found, without spaces.
        DataType::Int64 => value.parse().ok().map(|number| ScalarValue::Int64(Some(number))),
        kind => ScalarValue::try_from_string(value.to_owned(), kind).ok(),
    }
}

/// Undoes the percent-encoding of names of directories.
pub(super) fn decode(text: &str) -> String {
    url::form_urlencoded::parse(format!("v={}", text.replace('+', "%2B").replace('&', "%26")).as_bytes())
        .next()
        .map_or_else(|| text.to_owned(), |(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hive_directories_become_values() {
        let values = |prefix: &str, path: &str, partitioning: PathPartitioning| {
            path_values(&Path::from(prefix), &Path::from(path), &partitioning)
        };
        let path = "data/t/year=2024/city=S%C3%A3o/f.parquet";
        assert!(values("data/t", path, PathPartitioning::None).unwrap().is_empty());
        let names = PathPartitioning::Directories(vec!["year".to_owned()]);
        assert_eq!(values("t", "t/2024/f.csv", names.clone()).unwrap(), [("year".to_owned(), "2024".to_owned())]);
        let error = values("t", "t/2024/5/f.csv", names).unwrap_err().to_string();
        assert!(error.contains("2 directories below 't', and partitioning names 1: year"), "{error}");
        let values = values("data/t", path, PathPartitioning::Hive).unwrap();
        assert_eq!(values[0], ("year".to_owned(), "2024".to_owned()));
        assert_eq!(values[1].0, "city");
        let none = path_values(&Path::from("a=1"), &Path::from("a=1/f.parquet"), &PathPartitioning::Hive);
        assert!(none.unwrap().is_empty());
    }
}
