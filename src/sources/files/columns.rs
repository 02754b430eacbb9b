//! The columns of files.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, FieldRef, Fields, Schema};
use datafusion::catalog::Session;

use crate::block::without_views;

/// The columns without views of strings, unless the session wants those: see T10 in docs/decisions/datafusion-55.md.
pub(crate) fn without_views_unless_asked(session: &dyn Session, schema: Schema) -> Schema {
    match session.config_options().execution.parquet.schema_force_view_types {
        true => schema,
        false => without_views(&schema),
    }
}

/// The names that are there more than once.
pub(crate) fn twice<'a>(names: &[&'a str]) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    names.iter().copied().filter(|name| !seen.insert(*name)).collect()
}

/// The fields with another name for each that has the name of one before it: `a`, `a_1`, `a_2`.
pub(crate) fn distinct_names(fields: &Fields) -> Fields {
    let given: HashSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let mut taken = HashSet::new();
    let distinct = |field: &FieldRef| {
        let name = field.name();
        if taken.insert(name.clone()) {
            return Arc::clone(field);
        }
        let mut number = 1;
        let mut other = format!("{name}_{number}");
        while given.contains(other.as_str()) || taken.contains(&other) {
            number += 1;
            other = format!("{name}_{number}");
        }
        taken.insert(other.clone());
        Arc::new(field.as_ref().clone().with_name(other))
    };
    fields.iter().map(distinct).collect()
}

/// All columns may have nulls.
pub(crate) fn nullable(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}
