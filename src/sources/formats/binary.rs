//! Files as they are: one row per file.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use futures::{FutureExt, StreamExt, stream};
use object_store::{ObjectMeta, ObjectStoreExt};

use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{Contents, opened_by, projected};
use crate::error::ErrorContext;
use crate::physical::ValueRanges;
use crate::sources::files::{Listing, Unit, read_options};
use futures::future::BoxFuture;

read_options! {
    /// How files are read as they are: one row per file. Start from the default and set what differs.
    pub struct ReadBinaryFilesOptions: "read_binary_files", "Whole files, each as one row with a column `bytes`." {}
}

#[async_trait]
impl ReadFormat for ReadBinaryFilesOptions {
    fn read_name(&self) -> &'static str {
        "ReadBinary"
    }

    /// Any.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    fn options(&self) -> ReadOptions {
        self.read_options()
    }

    fn knows_rows(&self) -> bool {
        true
    }

    async fn columns(&self, _session: &dyn Session, _listing: &Listing, _telling: &ObjectMeta) -> Result<Schema> {
        Ok(Schema::new(vec![Field::new("bytes", DataType::Binary, false)]))
    }

    /// There is one column, always.
    fn check_same_columns(&self, _told: &Schema, _found: &Schema) -> Result<()> {
        Ok(())
    }

    fn lay_out<'a>(
        &'a self,
        _session: &'a dyn Session,
        files: &'a Files,
        _scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>> {
        async move {
            let sizes = files.files.iter().map(|file| file.object_meta.size);
            let unit = |(file, size): (usize, u64)| Unit {
                file,
                range: (0, size),
                first_row: Some(0),
                bytes: size as usize,
                held_bytes: size as usize,
                pieces: None,
            };
            Ok(Layout {
                units: sizes.clone().enumerate().map(unit).collect(),
                rows: Precision::Exact(files.files.len()),
                bytes: Precision::Exact(sizes.clone().sum::<u64>() as usize),
                row_bytes: sizes.max().unwrap_or(0) as usize,
                ranges: ValueRanges::default(),
                format: Arc::new(JsonFormat::default()),
                opened: None,
                row_groups: (0, 0),
                left_out: Vec::new(),
                finish: opened_by("binary", |opening| projected(opening, WholeFiles)),
            })
        }
        .boxed()
    }
}

/// Opens files, each as one row.
struct WholeFiles(Contents);

impl FileOpener for WholeFiles {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let Contents { store, root, schema, .. } = self.0.clone();
        let row = async move {
            let path = &file.object_meta.location;
            let columns: Vec<ArrayRef> = match schema.fields().is_empty() {
                true => Vec::new(),
                false => {
                    let bytes = async { store.get(path).await?.bytes().await }.await.map_err(DataFusionError::from);
                    let bytes = bytes.while_doing(|| format!("reading '{root}{path}'"))?;
                    let value: Result<BinaryArray, _> = binary(&bytes);
                    vec![Arc::new(value.while_doing(|| format!("reading '{root}{path}'"))?) as Arc<dyn Array>]
                }
            };
            let options = RecordBatchOptions::new().with_row_count(Some(1));
            Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
        };
        Ok(async move { Ok(stream::once(row).boxed()) }.boxed())
    }
}

/// One value. Offsets of more than 2 GiB do not fit.
fn binary(bytes: &[u8]) -> Result<BinaryArray> {
    use datafusion::arrow::buffer::{Buffer, OffsetBuffer};
    let length = i32::try_from(bytes.len());
    let length =
        length.map_err(|_| datafusion::common::exec_datafusion_err!("a file of more than 2 GiB is no value"))?;
    let offsets = OffsetBuffer::new(vec![0, length].into());
    Ok(BinaryArray::try_new(offsets, Buffer::from(bytes.to_vec()), None)?)
}
