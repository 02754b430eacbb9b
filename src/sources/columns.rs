//! The columns of files: what the first file tells, and whether another one, or the same file later, agrees with it.
//!
//! Text has no types, so they come from its first rows: all of them where the file is small. Where those have no value
//! of a column, more are looked at; a column without any value yet is text, in which everything fits.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::ParquetMetaData;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStoreExt};

use super::formats::{FileKind, ReadOptions, csv_format};
use super::json_lines::columns_of_array;
use super::listing::{Listing, full_path};
use super::parquet;
use crate::block::without_views;
use crate::error::{ErrorContext, unknown_name};

/// Text files of at most so many bytes tell their columns by all rows.
const SMALL_FILE_BYTES: u64 = 4 << 20;
/// Rows that tell the columns of others, and the rows that do where those have no value of some column.
const FIRST_ROWS: usize = 1000;
const MOST_ROWS: usize = 1 << 16;

/// The columns of the file `telling`.
pub(super) async fn columns_of_files(
    session: &dyn Session,
    kind: FileKind,
    options: &ReadOptions,
    listing: &Listing,
    telling: &ObjectMeta,
) -> Result<Schema> {
    let (compression, is_array) = (listing.compression(), listing.is_array(kind).await?);
    let is_small = telling.size <= SMALL_FILE_BYTES && !compression.is_compressed();
    let steps = if is_small { vec![usize::MAX] } else { vec![FIRST_ROWS, MOST_ROWS] };
    let path = || full_path(&listing.url, &telling.location);
    let mut schema = Schema::empty();
    for rows in steps {
        let inferred = match kind {
            FileKind::Csv => columns_of_csv(session, options, listing, telling, rows).await,
            FileKind::Json if is_array => columns_of_array(listing.store.as_ref(), telling, compression, rows).await,
            FileKind::Parquet | FileKind::Json => {
                let format = kind.format(session, options, compression, is_array, Some(rows));
                let inferred = format.infer_schema(session, &listing.store, std::slice::from_ref(telling)).await;
                inferred.map(|schema| schema.as_ref().clone())
            }
        };
        schema = inferred.while_doing(|| format!("reading the columns of '{}'", path()))?;
        if kind == FileKind::Parquet || !schema.fields().iter().any(|field| has_no_values(field.data_type())) {
            break;
        }
    }
    // What is said of views in docs/decisions/datafusion-55.md under T10.
    if !session.config_options().execution.parquet.schema_force_view_types {
        schema = without_views(&schema);
    }
    match kind {
        FileKind::Parquet => {
            let cache = session.runtime_env().cache_manager.get_file_metadata_cache();
            let footer = parquet::footer(cache, listing.store.as_ref(), telling).await;
            let footer = footer.while_doing(|| format!("reading the footer of '{}'", path()))?;
            without_duplicates(&schema, &parquet::column_names(&footer), options)
                .while_doing(|| format!("reading '{}'", path()))
        }
        FileKind::Csv | FileKind::Json => {
            let fields = distinct_names(schema.fields()).iter().map(text_without_values).collect();
            with_types(fields, kind, options)
        }
    }
}

/// DataFusion's inference, without bringing columns of one name together.
async fn columns_of_csv(
    session: &dyn Session,
    options: &ReadOptions,
    listing: &Listing,
    telling: &ObjectMeta,
    rows: usize,
) -> Result<Schema> {
    let format = csv_format(session, options, listing.compression());
    let rows = format.options().schema_infer_max_rec.unwrap_or(rows);
    let text = listing.store.get(&telling.location).await?.into_stream().map_err(DataFusionError::from).boxed();
    let lines = format.read_to_delimited_chunks_from_stream(text);
    Ok(format.infer_schema_from_stream(session, rows, lines).await?.0)
}

/// Two columns of one name cannot be told apart by it: they can only be left out.
fn without_duplicates(schema: &Schema, names: &[&str], options: &ReadOptions) -> Result<Schema> {
    let twice = twice(names);
    let wanted = |name: &&&str| options.columns.as_ref().is_none_or(|columns| columns.iter().any(|c| c == **name));
    if let Some(name) = twice.iter().find(wanted) {
        return plan_err!(
            "there are two columns '{name}', of which no name tells which is meant; write the file with names that differ, \
             or read other columns, with columns => [..]"
        );
    }
    let fields: Fields = schema.fields().iter().filter(|f| !twice.contains(f.name().as_str())).cloned().collect();
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The names that are there more than once.
fn twice<'a>(names: &[&'a str]) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    names.iter().copied().filter(|name| !seen.insert(*name)).collect()
}

/// The fields with another name for each that has the name of one before it: `a`, `a_1`, `a_2`.
pub(super) fn distinct_names(fields: &Fields) -> Fields {
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

fn has_no_values(kind: &DataType) -> bool {
    match kind {
        DataType::Null => true,
        DataType::List(item) => has_no_values(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_no_values(field.data_type())),
        _ => false,
    }
}

/// A column of which no value was seen is text.
fn text_without_values(field: &FieldRef) -> FieldRef {
    let kind = match field.data_type() {
        DataType::Null => DataType::Utf8,
        DataType::List(item) => DataType::List(text_without_values(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(text_without_values).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(kind))
}

/// The columns with the types that the user gave. A key of JSON may be one that no row had so far.
fn with_types(fields: Vec<FieldRef>, kind: FileKind, options: &ReadOptions) -> Result<Schema> {
    let mut fields: Vec<Field> = fields.iter().map(|field| field.as_ref().clone()).collect();
    for (name, wanted) in &options.types {
        match fields.iter_mut().find(|field| field.name() == name) {
            Some(field) => field.set_data_type(wanted.clone()),
            None if kind == FileKind::Json => fields.push(Field::new(name, wanted.clone(), true)),
            None => {
                let known: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                return Err(unknown_name("column", name, kind.read_name(), &known));
            }
        }
    }
    Ok(Schema::new(fields))
}

/// All columns may have nulls.
pub(super) fn nullable(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// A file that has come in the place of the one that told the columns must still have them. A key of JSON may always be
/// absent.
pub(super) fn check_same_columns(told: &Schema, found: &Schema, kind: FileKind) -> Result<()> {
    let gone = |place: usize, name: &str| match kind {
        FileKind::Parquet => found.field_with_name(name).is_err(),
        FileKind::Csv => found.fields().get(place).is_none_or(|field| field.name() != name),
        FileKind::Json => false,
    };
    for (place, field) in told.fields().iter().enumerate() {
        let name = field.name();
        if gone(place, name) {
            return plan_err!(
                "column '{name}' is no longer where it was when the table was made; make the table or view again"
            );
        }
        let Ok(now) = found.field_with_name(name) else {
            continue;
        };
        if kind == FileKind::Parquet && now.is_nullable() && !field.is_nullable() {
            return plan_err!(
                "column '{name}' may have nulls now, and could not when the table was made; make the table or view again"
            );
        }
    }
    if kind == FileKind::Csv && found.fields().len() != told.fields().len() {
        return plan_err!(
            "there are {} columns now and were {} when the table was made; make the table or view again",
            found.fields().len(),
            told.fields().len()
        );
    }
    Ok(())
}

/// A file whose values would have to be changed to fit the columns of the first file is an error.
pub(super) fn check_types(expected: &Schema, footer: &ParquetMetaData) -> Result<()> {
    if let Some(name) = twice(&parquet::column_names(footer)).into_iter().find(|n| expected.field_with_name(n).is_ok())
    {
        return plan_err!("there are two columns '{name}' here, and one in the first file");
    }
    let metadata = footer.file_metadata();
    let found = parquet_to_arrow_schema(metadata.schema_descr(), metadata.key_value_metadata())?;
    for field in found.fields() {
        let Ok(wanted) = expected.field_with_name(field.name()) else {
            continue;
        };
        if !fits(field.data_type(), wanted.data_type()) {
            return plan_err!(
                "column '{}' is {} here, but {} in the first file",
                field.name(),
                field.data_type(),
                wanted.data_type()
            );
        }
    }
    Ok(())
}

/// Whether every value of one type is a value of the other.
fn fits(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Date32, Date64, Dictionary, Float32, LargeBinary, LargeUtf8, Null, Utf8, Utf8View,
    };
    let text =
        |t: &DataType| matches!(t, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | Dictionary(..));
    match (from, to) {
        (from, to) if from == to || from.is_nested() && to.is_nested() || text(from) && text(to) => true,
        (Null, _) | (Float32, DataType::Float64) | (Date32, Date64) => true,
        (DataType::Timestamp(..), DataType::Timestamp(..)) => true,
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => s == t && p <= q,
        (from, to) if from.is_signed_integer() && to.is_signed_integer() => {
            from.primitive_width() <= to.primitive_width()
        }
        (from, to) if from.is_unsigned_integer() && to.is_integer() => from.primitive_width() < to.primitive_width(),
        (from, DataType::Float64) if from.is_integer() => from.primitive_width() < Some(8),
        _ => false,
    }
}
