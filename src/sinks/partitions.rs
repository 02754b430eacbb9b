//! `PARTITIONED BY`: columns whose values are directories, `key=value/`, as Hive calls them.

use std::fmt;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::{cast, partition};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, exec_err, plan_err};
use object_store::path::{Path, PathPart};

use crate::error::unknown_name;

/// The directory that stands for a null value.
pub(crate) const HIVE_NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns whose values are directories, in their order.
#[derive(Debug, Clone)]
pub(crate) struct PartitionColumns {
    keys: Vec<(usize, String)>,
    /// The columns that are in the files.
    kept: Vec<usize>,
    schema: SchemaRef,
}

impl fmt::Display for PartitionColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.keys.iter().map(|(_, name)| name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

impl PartitionColumns {
    /// The columns `names` of rows. `keep` says whether they are in the files, too.
    pub(crate) fn try_new(rows: &SchemaRef, names: &[String], keep: bool) -> Result<Self> {
        let known: Vec<&str> = rows.fields().iter().map(|field| field.name().as_str()).collect();
        let place = |name: &String| match known.iter().position(|known| known == name) {
            Some(_) if name.contains('=') => {
                plan_err!("column '{name}' of PARTITIONED BY has an equals sign in its name")
            }
            Some(place) if rows.field(place).data_type().is_binary() => plan_err!(
                "column '{name}' of PARTITIONED BY has bytes, which are no names of directories; encode({name}, 'hex') is text"
            ),
            Some(place) => Ok((place, name.clone())),
            None => Err(unknown_name("column", name, "PARTITIONED BY", &known)),
        };
        let keys = names.iter().map(place).collect::<Result<Vec<_>>>()?;
        let is_kept = |place: &usize| keep || keys.iter().all(|(key, _)| key != place);
        let kept: Vec<usize> = (0..known.len()).filter(is_kept).collect();
        if kept.is_empty() {
            return plan_err!("PARTITIONED BY all columns leaves none for the files");
        }
        Ok(Self { schema: rows.project(&kept)?.into(), keys, kept })
    }

    /// The columns of the files.
    pub(crate) fn file_schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Consecutive rows with equal values: their directory, and what of them is in its files.
    pub(crate) fn split(&self, rows: &RecordBatch) -> Result<Vec<(Path, RecordBatch)>> {
        if rows.num_rows() == 0 {
            return Ok(Vec::new());
        }
        let mut texts = Vec::with_capacity(self.keys.len());
        for (place, _) in &self.keys {
            let (values, name) = (rows.column(*place), rows.schema_ref().field(*place).name());
            let text = cast(values, &DataType::Utf8)?;
            if text.logical_null_count() != values.logical_null_count() {
                return exec_err!(
                    "a value of column '{name}' of PARTITIONED BY has no text, and would be read as null"
                );
            }
            texts.push(text);
        }
        let files = rows.project(&self.kept)?;
        let ranges = partition(&texts)?.ranges();
        let of_range = |range: std::ops::Range<usize>| {
            Ok((self.directory(&texts, range.start)?, files.slice(range.start, range.len())))
        };
        ranges.into_iter().map(of_range).collect()
    }

    fn directory(&self, texts: &[ArrayRef], row: usize) -> Result<Path> {
        let part = |((_, name), text): (&(usize, String), &ArrayRef)| {
            let Some(text) = text.as_any().downcast_ref::<StringArray>().filter(|text| text.is_valid(row)) else {
                return Ok(encoded(name, HIVE_NULL));
            };
            match text.value(row) {
                HIVE_NULL => exec_err!("the value '{HIVE_NULL}' of column '{name}' would be read as null"),
                value => Ok(encoded(name, value)),
            }
        };
        let parts = self.keys.iter().zip(texts).map(part).collect::<Result<Vec<_>>>()?;
        Ok(Path::parse(parts.join("/")).map_err(object_store::Error::from)?)
    }
}

/// `key=value`, with what would be read otherwise encoded.
fn encoded(key: &str, value: &str) -> String {
    let encoded = |text: &str| {
        let of_path = PathPart::from(text).as_ref().to_owned();
        OF_HIVE.iter().fold(of_path, |text, (plain, code)| text.replace(*plain, code))
    };
    format!("{}={}", encoded(key), encoded(value))
}

/// What Hive encodes beside what paths of stores do.
const OF_HIVE: [(char, &str); 3] = [('=', "%3D"), (':', "%3A"), ('\'', "%27")];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Int64Array, record_batch};
    use datafusion::arrow::datatypes::{Field, Schema};

    use super::*;

    #[test]
    fn values_become_directories_and_leave_the_files() {
        let text = StringArray::from(vec![Some("a/b"), Some("a/b"), Some(""), None, Some("é %"), Some("a=b:'")]);
        let fields = vec![Field::new("k", DataType::Utf8, true), Field::new("v", DataType::Int64, true)];
        let schema = Arc::new(Schema::new(fields));
        let values = Int64Array::from(vec![1, 2, 3, 4, 5, 6]);
        let rows = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(text), Arc::new(values)]).unwrap();
        let by = PartitionColumns::try_new(&schema, &["k".to_owned()], false).unwrap();
        let split = by.split(&rows).unwrap();
        let found: Vec<_> = split.iter().map(|(path, rows)| (path.as_ref(), rows.num_rows())).collect();
        let null = format!("k={HIVE_NULL}");
        assert_eq!(found, [("k=a%2Fb", 2), ("k=", 1), (null.as_str(), 1), ("k=%C3%A9 %25", 1), ("k=a%3Db%3A%27", 1)]);
        assert_eq!(split[0].1.num_columns(), 1);
        let kept = PartitionColumns::try_new(&schema, &["k".to_owned()], true).unwrap();
        assert_eq!(kept.split(&rows).unwrap()[0].1.num_columns(), 2);
    }

    #[test]
    fn what_cannot_be_a_directory_is_an_error() {
        let rows = record_batch!(("k", Utf8, [HIVE_NULL]), ("v", Int64, [1])).unwrap();
        let by = |name: &str| PartitionColumns::try_new(&rows.schema(), &[name.to_owned()], false);
        let error = by("k").unwrap().split(&rows).unwrap_err().to_string();
        assert!(error.contains("would be read as null"), "{error}");
        assert!(by("w").unwrap_err().to_string().contains("unknown column 'w' of PARTITIONED BY"));
        let names = ["k".to_owned(), "v".to_owned()];
        let error = PartitionColumns::try_new(&rows.schema(), &names, false).unwrap_err().to_string();
        assert!(error.contains("leaves none for the files"), "{error}");
    }
}
