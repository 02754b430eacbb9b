//! Files of CSV with different columns: each is read by the names in its own header.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::config::CsvOptions;
use datafusion::common::{Result, plan_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;

use super::dialect::format_of;
use crate::sources::files::distinct_names;
use crate::sources::formats::text::{Contents, bytes_of};

/// The names of the columns of a file are in this many bytes.
const HEADER_BYTES: u64 = 64 << 10;

/// The columns of files by their headers, as far as these have been read.
#[derive(Debug, Default)]
pub(super) struct Headers {
    known: Mutex<HashMap<Path, SchemaRef>>,
}

impl Headers {
    /// The columns of a file: with the types of the table where it has them, others as text.
    async fn columns(&self, contents: &Contents, file: &PartitionedFile, options: &CsvOptions) -> Result<SchemaRef> {
        let place = &file.object_meta.location;
        if let Some(known) = self.known.lock().get(place) {
            return Ok(Arc::clone(known));
        }
        let head = head(contents, file).await?;
        let format = format_of(options).with_header(true);
        let (named, _) = format.infer_schema(head.as_ref(), Some(0))?;
        let field = |name: &String| match contents.file_schema.field_with_name(name) {
            Ok(field) => field.clone(),
            Err(_) => Field::new(name, DataType::Utf8, true),
        };
        let fields: Vec<Field> = distinct_names(named.fields()).iter().map(|named| field(named.name())).collect();
        let columns = Arc::new(Schema::new(fields));
        self.known.lock().insert(place.clone(), Arc::clone(&columns));
        Ok(columns)
    }
}

/// The first bytes of a file, which the header is in.
async fn head(contents: &Contents, file: &PartitionedFile) -> Result<Bytes> {
    let meta = &file.object_meta;
    if !contents.compression.is_compressed() {
        return Ok(contents.store.get_range(&meta.location, 0..meta.size.min(HEADER_BYTES)).await?);
    }
    let mut bytes = bytes_of(contents, file).await?;
    let mut head = Vec::new();
    while (head.len() as u64) < HEADER_BYTES
        && let Some(piece) = bytes.try_next().await?
    {
        head.extend_from_slice(&piece);
    }
    Ok(head.into())
}

/// Fails where a file has other columns than the table, or in another order. An empty one has none, and no rows.
pub(super) async fn check_header(
    store: &dyn ObjectStore,
    meta: &ObjectMeta,
    path: &str,
    columns: &Schema,
    options: &CsvOptions,
) -> Result<()> {
    if meta.size == 0 {
        return Ok(());
    }
    let head = store.get_range(&meta.location, 0..meta.size.min(HEADER_BYTES)).await?;
    let format = format_of(options).with_header(true);
    let (schema, _) = format.infer_schema(head.as_ref(), Some(0))?;
    let names: Vec<String> = distinct_names(schema.fields()).iter().map(|f| f.name().clone()).collect();
    let expected: Vec<&String> = columns.fields().iter().map(|f| f.name()).collect();
    // A file of empty lines has none either.
    if !names.is_empty() && !names.iter().eq(expected.iter().copied()) {
        return plan_err!("the columns of '{path}' are {names:?}, but those of the first file are {expected:?}");
    }
    Ok(())
}

/// How a file is opened whose columns are known.
type Open = Arc<dyn Fn(Contents) -> Result<Arc<dyn FileOpener>> + Send + Sync>;

/// Opens files with the columns that they have, and gives those that are wanted: missing ones are null.
pub(super) struct ByHeader {
    pub(super) contents: Contents,
    pub(super) headers: Arc<Headers>,
    pub(super) options: Arc<CsvOptions>,
    pub(super) open: Open,
}

impl FileOpener for ByHeader {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let (contents, headers) = (self.contents.clone(), Arc::clone(&self.headers));
        let (options, open) = (Arc::clone(&self.options), Arc::clone(&self.open));
        Ok(Box::pin(async move {
            let has_no_line = file.object_meta.size == 0;
            let columns = match has_no_line {
                true => Arc::new(Schema::empty()),
                false => headers.columns(&contents, &file, &options).await?,
            };
            let wanted = Arc::clone(&contents.schema);
            let rows = open(contents.with_columns(columns)?)?.open(file)?.await?;
            Ok(rows.map(move |batch| with_missing(&batch?, &wanted)).boxed())
        }))
    }
}

/// The columns `wanted` of a batch, of which missing ones are null.
fn with_missing(batch: &RecordBatch, wanted: &SchemaRef) -> Result<RecordBatch> {
    let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
        Some(column) => Arc::clone(column),
        None => new_null_array(field.data_type(), batch.num_rows()),
    };
    let columns = wanted.fields().iter().map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(wanted), columns, &options)?)
}
