//! JSON: one object per line, or an array of them.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use self::columns::{columns_of_array, columns_of_lines};
use self::lines::{JsonLines, ObjectLines};
use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{byte_ranges, columns_by_rows, decompressed, line_bytes, opened_by, projected, with_types};
use super::tolerant::{BadLines, Tolerant};
use crate::functions::{Failures, MaxErrors, OnError};
use crate::physical::ValueRanges;
use crate::sinks::JSON_EXTENSIONS;
use crate::sources::files::{Listing, read_options};
use futures::future::BoxFuture;

mod columns;
mod lines;

/// Bytes in which the first character is that is not a space.
const HEAD_BYTES: u64 = 4 << 10;

read_options! {
    /// How JSON files are read: one object per line, or one array of objects per file. Start from the default and set
    /// what differs.
    pub struct ReadJsonOptions: "read_json", "The rows of files of JSON objects, one per line or in an array." {
        /// Types of columns, in place of those that the first rows seem to have. A key need not be in any of them.
        pub types: Vec<(String, DataType)> = default,
        /// What becomes of lines that do not fit the columns: `fail`, `skip`, `null` or `divert`.
        pub on_error: OnError,
        /// How many lines may not fit, like `100` or `0.5%`; any number if not said.
        pub max_errors: Option<MaxErrors>,
    }
}

#[async_trait]
impl ReadFormat for ReadJsonOptions {
    fn read_name(&self) -> &'static str {
        "ReadJSON"
    }

    fn extensions(&self) -> &'static [&'static str] {
        JSON_EXTENSIONS
    }

    fn tolerates(&self) -> bool {
        self.on_error != OnError::Fail
    }

    fn options(&self) -> ReadOptions {
        self.read_options()
    }

    fn check(&self) -> Result<()> {
        self.failures().check()
    }

    async fn columns(&self, session: &dyn Session, listing: &Listing, telling: &ObjectMeta) -> Result<Schema> {
        let (store, compression) = (&listing.store, listing.compression());
        let metas = listing.files.iter().map(|file| &file.meta);
        let is_array = is_array(store.as_ref(), metas, compression).await?;
        let infer = |rows| {
            async move {
                if is_array {
                    return columns_of_array(store.as_ref(), telling, compression, rows).await;
                }
                let passes_over = self.on_error != OnError::Fail;
                columns_of_lines(store.as_ref(), telling, compression, rows, passes_over).await
            }
            .boxed()
        };
        let fields = columns_by_rows(session, listing, telling, infer).await?;
        // A key may be one that no row had so far.
        with_types(fields, &self.types, |name, wanted, _| Ok(Field::new(name, wanted.clone(), true)))
    }

    /// As of the values of one file.
    fn common_type(&self, one: &DataType, other: &DataType) -> Option<DataType> {
        (one.is_numeric() && other.is_numeric()).then_some(DataType::Float64)
    }

    /// A key may always be absent.
    fn check_same_columns(&self, _told: &Schema, _found: &Schema) -> Result<()> {
        Ok(())
    }

    fn lay_out<'a>(
        &'a self,
        session: &'a dyn Session,
        files: &'a Files,
        scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>> {
        async move {
            let metas = files.files.iter().map(|file| &file.object_meta);
            let is_array = is_array(files.store.as_ref(), metas, files.compression).await?;
            let finish = match BadLines::of(self.failures(), session).map(Arc::new) {
                None => opened_by("json", move |opening| {
                    // Who reads all columns would miss a key that is none of them.
                    projected(opening, |contents| JsonLines {
                        is_strict: contents.has_all_columns(),
                        contents,
                        is_array,
                    })
                }),
                Some(_) if is_array => return plan_err!("on_error is for one object per line, and files are arrays"),
                Some(bad) => opened_by("json", move |opening| {
                    let (decode, bad) = (Arc::new(ObjectLines), Arc::clone(&bad));
                    projected(opening, |contents| Tolerant { contents, decode, has_header: false, bad })
                }),
            };
            Ok(Layout {
                units: byte_ranges(session, files, scan, !is_array, self.override_num_blocks),
                rows: Precision::Absent,
                bytes: Precision::Absent,
                row_bytes: line_bytes(files).await?,
                ranges: ValueRanges::default(),
                format: format(session, files.compression, is_array, None),
                opened: None,
                row_groups: (0, 0),
                left_out: Vec::new(),
                finish,
            })
        }
        .boxed()
    }
}

impl ReadJsonOptions {
    fn failures(&self) -> Failures {
        Failures { on_error: self.on_error.clone(), max_errors: self.max_errors }
    }
}

/// DataFusion's format, which tells the columns by as many rows as `inferring` says.
fn format(
    session: &dyn Session,
    compression: FileCompressionType,
    is_array: bool,
    inferring: Option<usize>,
) -> Arc<dyn FileFormat> {
    let mut defaults = session.default_table_options().json;
    defaults.schema_infer_max_rec = defaults.schema_infer_max_rec.or(inferring);
    let format = JsonFormat::default().with_options(defaults).with_file_compression_type(compression);
    Arc::new(format.with_newline_delimited(!is_array))
}

/// Whether files have arrays of objects in place of lines, by the first one that has anything.
async fn is_array(
    store: &dyn ObjectStore,
    mut files: impl Iterator<Item = &ObjectMeta>,
    compression: FileCompressionType,
) -> Result<bool> {
    let Some(file) = files.find(|file| file.size > 0) else {
        return Ok(false);
    };
    let head = match compression.is_compressed() {
        false => store.get_range(&file.location, 0..file.size.min(HEAD_BYTES)).await?,
        true => {
            let stream = store.get(&file.location).await?.into_stream().map_err(DataFusionError::from).boxed();
            decompressed(compression, stream)?.try_next().await?.unwrap_or_default()
        }
    };
    Ok(head.trim_ascii_start().starts_with(b"["))
}
