//! Columns that paths give: `key=value` directories, and the path itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::datasource::listing::PartitionedFile;

use super::listing::{ListedFile, Listing, full_path};
use super::path_values::typed;
use crate::sinks::HIVE_NULL;

/// The columns that the paths of these files give. Integers where all values are, else strings.
pub(super) fn partition_columns(listing: &Listing) -> Result<Vec<FieldRef>> {
    let keys = |file: &ListedFile| file.hive.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let distinct: BTreeSet<Vec<String>> = listing.files.iter().map(keys).collect();
    if distinct.len() > 1 {
        return plan_err!("files have different partition directories: {distinct:?}");
    }
    let is_integer = |value: &str| value == HIVE_NULL || value.parse::<i64>().is_ok();
    let integers = |place: usize| listing.files.iter().all(|file| is_integer(&file.hive[place].1));
    let mut fields: Vec<FieldRef> = Vec::new();
    for (place, name) in distinct.into_iter().flatten().enumerate() {
        let kind = if integers(place) { DataType::Int64 } else { DataType::Utf8 };
        fields.push(Arc::new(Field::new(name, kind, true)));
    }
    Ok(fields)
}

/// The files with their values of `columns`, which were declared, or found by these files or by others that were there
/// before.
pub(super) fn with_values(
    listing: &Listing,
    columns: &Fields,
    include_paths: bool,
    declared: bool,
) -> Result<Vec<PartitionedFile>> {
    let keys = &columns[..columns.len() - usize::from(include_paths)];
    let file = |file: &ListedFile| {
        let path = full_path(&listing.url, &file.meta.location);
        if !file.hive.iter().map(|(name, _)| name).eq(keys.iter().map(|field| field.name())) {
            let (found, known): (Vec<_>, Vec<_>) =
                (file.hive.iter().map(|(name, _)| name).collect(), keys.iter().map(|field| field.name()).collect());
            return plan_err!("'{path}' has the partition directories {found:?}, and those of the table are {known:?}");
        }
        let mut values = Vec::new();
        for (field, (name, value)) in keys.iter().zip(&file.hive) {
            let Some(value) = typed(field, value) else {
                let advice = match declared {
                    true => "",
                    false => ", as all others were when the table was made; make the table or view again",
                };
                let kind = field.data_type();
                return plan_err!("the directory {name}={value} of '{path}' is no value of type {kind}{advice}");
            };
            values.push(value);
        }
        if include_paths {
            values.push(ScalarValue::Utf8(Some(path)));
        }
        Ok(PartitionedFile::new_from_meta(file.meta.clone()).with_partition_values(values))
    };
    listing.files.iter().map(file).collect()
}
