//! Parquet: what footers tell of a scan, which is row groups, rows, and the memory that reading takes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{Fields, Schema};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::parquet::file::metadata::ParquetMetaData;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore};

use self::believed::remembered;
use self::columns::{arrow_schema, check_types, column_names, left_out};
use self::conditions::Conditions;
use self::readers::{KeptGroups, Reading};
use self::row_groups::{Known, RowGroups};
use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use crate::config::BlockyardOptions;
use crate::error::ErrorContext;
use crate::physical::ValueRanges;
use crate::sinks::PARQUET_EXTENSIONS;
use crate::sources::files::{CONCURRENT_HEADS, Listing, full_path, is_small, plain_unless_asked, read_options, twice};
use crate::tensors::with_tensors_of;
use futures::future::BoxFuture;

mod believed;
mod columns;
mod conditions;
mod found_pages;
mod pieces;
mod readers;
mod row_groups;

/// To plan, no more footers than this are read.
const MAX_FOOTERS: usize = 1000;
/// Of small files of a store, so many.
const SAMPLED_SMALL_FILES: usize = 16;
/// Footers of files of a store that are read at once.
const CONCURRENT_FAR_HEADS: usize = 128;
/// So many bytes from the end of a file of a store are asked for first.
const FOOTER_BYTES: usize = 64 << 10;

/// A task holds at most about this part of a thread's share of the memory in encoded pages.
const HELD_PART: usize = 8;

read_options! {
    /// How Parquet files are read. Start from the default and set what differs.
    pub struct ReadParquetOptions: "read_parquet", "The rows of Parquet files." {}
}

#[async_trait]
impl ReadFormat for ReadParquetOptions {
    fn read_name(&self) -> &'static str {
        "ReadParquet"
    }

    fn extensions(&self) -> &'static [&'static str] {
        PARQUET_EXTENSIONS
    }

    fn options(&self) -> ReadOptions {
        self.read_options()
    }

    /// Each has a footer, which tells the columns.
    fn may_be_empty(&self) -> bool {
        false
    }

    fn has_statistics(&self) -> bool {
        true
    }

    fn knows_rows(&self) -> bool {
        true
    }

    async fn columns(&self, session: &dyn Session, listing: &Listing, telling: &ObjectMeta) -> Result<Schema> {
        let path = || full_path(&listing.url, &telling.location);
        let cache = session.runtime_env().cache_manager.get_file_metadata_cache();
        let footer = footer(cache, listing.store.as_ref(), telling, listing.pinned.is_some()).await;
        let footer = footer.while_doing(|| format!("reading the footer of '{}'", path()))?;
        let inferred = format(session).infer_schema(session, &listing.store, std::slice::from_ref(telling)).await;
        let schema = inferred.while_doing(|| format!("reading the columns of '{}'", path()))?;
        let schema = plain_unless_asked(session, schema.as_ref().clone());
        // DataFusion leaves out what the file says of its fields.
        let schema = with_tensors_of(schema, &arrow_schema(&footer)?);
        self.without_duplicates(&schema, &column_names(&footer)).while_doing(|| format!("reading '{}'", path()))
    }

    fn check_same_columns(&self, told: &Schema, found: &Schema) -> Result<()> {
        for field in told.fields() {
            let name = field.name();
            match found.field_with_name(name) {
                Err(_) => {
                    return plan_err!(
                        "column '{name}' is no longer where it was when the table was made; make the table or view again"
                    );
                }
                Ok(now) if now.is_nullable() && !field.is_nullable() => {
                    return plan_err!(
                        "column '{name}' may have nulls now, and could not when the table was made; make the table or \
                         view again"
                    );
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    fn lay_out<'a>(
        &'a self,
        session: &'a dyn Session,
        files: &'a Files,
        scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>> {
        async move {
            let (found, opened) = row_groups(session, files, scan).await?;
            let reading = Reading {
                cache: session.runtime_env().cache_manager.get_file_metadata_cache(),
                columns: Arc::clone(&files.columns),
                is_unseen: found.is_partial,
                kept: Arc::new(kept_groups(files, &found)),
            };
            let rows = match scan.limit {
                Some(limit) => Precision::Inexact(found.rows.min(limit)),
                None if found.is_partial => Precision::Inexact(found.rows),
                None => Precision::Exact(found.rows),
            };
            Ok(Layout {
                rows,
                bytes: Precision::Inexact(found.units.iter().map(|u| u.bytes).sum()),
                row_bytes: found.row_bytes,
                // A file whose footer could not be read may have any value.
                row_groups: found.row_groups,
                left_out: found.left_out.into_iter().collect(),
                ranges: if found.is_partial { ValueRanges::default() } else { found.ranges },
                units: found.units,
                format: format(session),
                opened: (opened < files.files.len() && scan.limit.is_none()).then_some(opened),
                finish: Box::new(move |scan, pinned| reading.of(scan, pinned)),
            })
        }
        .boxed()
    }
}

impl ReadParquetOptions {
    /// Two columns of one name cannot be told apart by it: they can only be left out.
    fn without_duplicates(&self, schema: &Schema, names: &[&str]) -> Result<Schema> {
        let twice = twice(names);
        let wanted = |name: &&&str| self.columns.as_ref().is_none_or(|columns| columns.iter().any(|c| c == **name));
        if let Some(name) = twice.iter().find(wanted) {
            return plan_err!(
                "there are two columns '{name}', of which no name tells which is meant; write the file with names that \
                 differ, or read other columns, with columns => [..]"
            );
        }
        let fields: Fields = schema.fields().iter().filter(|f| !twice.contains(f.name().as_str())).cloned().collect();
        Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }
}

/// DataFusion's format.
fn format(session: &dyn Session) -> Arc<dyn FileFormat> {
    Arc::new(ParquetFormat::default().with_options(session.default_table_options().parquet))
}

/// Where row groups begin that are read, if some are not.
fn kept_groups(files: &Files, found: &RowGroups) -> KeptGroups {
    let mut kept = KeptGroups::new();
    if found.row_groups.0 < found.row_groups.1 {
        for unit in &found.units {
            let file = &files.files[unit.file].object_meta;
            // Of one that was not opened it is not known.
            if unit.range != (0, file.size) {
                kept.entry(file.location.clone()).or_default().insert(unit.range.0);
            }
        }
    }
    kept
}

/// Row groups of all files, or of as many as have the rows that are needed; and how many files were opened for that.
async fn row_groups(session: &dyn Session, files: &Files, scan: &Scan<'_>) -> Result<(RowGroups, usize)> {
    let options = BlockyardOptions::from_config(session.config_options());
    let footers = Footers {
        files,
        scan,
        cache: session.runtime_env().cache_manager.get_file_metadata_cache(),
        conditions: Conditions::of(session, scan.filters, &files.columns)?,
        may_fail: options.max_errored_blocks.allows_any(),
        max_bytes: options.memory_limit.bytes() / (HELD_PART * session.config().target_partitions()),
    };
    match scan.limit {
        None => footers.of_all().await,
        Some(limit) => footers.of_first(limit).await,
    }
}

/// The footers of files, as a scan looks at them.
struct Footers<'a> {
    files: &'a Files,
    scan: &'a Scan<'a>,
    cache: Arc<FileMetadataCache>,
    conditions: Option<Conditions>,
    /// Whether files that cannot be read may be left out.
    may_fail: bool,
    /// Bytes that a task holds at most.
    max_bytes: usize,
}

impl Footers<'_> {
    /// The row groups of one file, but for those that these conditions rule out.
    async fn of(&self, file: usize, conditions: Option<&Conditions>) -> Result<RowGroups> {
        let (files, scan) = (self.files, self.scan);
        let (meta, store) = (&files.files[file].object_meta, files.store.as_ref());
        let path = || full_path(&files.url, &meta.location);
        let footer = footer(Arc::clone(&self.cache), store, meta, files.pinned.is_some()).await;
        let footer = match footer.while_doing(|| format!("reading the footer of '{}'", path())) {
            Ok(footer) => footer,
            // Its task finds out, and is one of those that may fail.
            Err(_) if self.may_fail => return Ok(RowGroups::unknown(file, meta.size)),
            Err(e) => return Err(e),
        };
        let footer = remembered(footer, self.cache.as_ref(), &meta.location)?;
        check_types(&files.columns, &footer).while_doing(|| format!("reading '{}'", path()))?;
        // Rows tell whether a condition fails.
        let kept = conditions.and_then(|conditions| conditions.may_be_true(&footer).ok());
        let found = RowGroups::of(file, meta, &footer, kept.as_deref(), &scan.columns, self.max_bytes, store).await;
        match found.while_doing(|| format!("reading the headers of pages of '{}'", path())) {
            Err(_) if self.may_fail => Ok(RowGroups::unknown(file, meta.size)),
            found => found.map(|found| found.without(left_out(&files.columns, &footer))),
        }
    }

    /// Those of all files, of some by what others have.
    async fn of_all(&self) -> Result<(RowGroups, usize)> {
        let files = self.files;
        let opened = sample(files);
        let at_once = if files.pinned.is_some() { CONCURRENT_FAR_HEADS } else { CONCURRENT_HEADS };
        let conditions = self.conditions.as_ref();
        let footers = stream::iter(opened.clone()).map(|file| self.of(file, conditions)).buffered(at_once);
        let footers: Vec<RowGroups> = footers.try_collect().await?;
        let known = Known::of(opened.iter().map(|file| files.files[*file].object_meta.size).zip(&footers));
        let mut footers = opened.iter().zip(footers).peekable();
        let of_file =
            |(number, file): (usize, &PartitionedFile)| match footers.next_if(|(opened, _)| **opened == number) {
                Some((_, found)) => found,
                None => known.estimated(number, file.object_meta.size),
            };
        let found = files.files.iter().enumerate().map(of_file).fold(RowGroups::default(), RowGroups::and);
        if found.units.is_empty() {
            // A task without rows still says which columns there are.
            let mut first = self.of(0, None).await?;
            first.units.truncate(1);
            return Ok((RowGroups { row_groups: found.row_groups, is_partial: true, ..first }, opened.len()));
        }
        Ok((found, opened.len()))
    }

    /// Those of the first files, which have so many rows.
    async fn of_first(&self, limit: usize) -> Result<(RowGroups, usize)> {
        let (mut found, mut opened) = (RowGroups::default(), 0);
        // A few rows are in the first file, or soon after it.
        let mut at_once = 1;
        while found.units.is_empty() || found.rows < limit {
            let next = opened..self.files.files.len().min(opened + at_once);
            if next.is_empty() {
                break;
            }
            opened = next.end;
            let footers = stream::iter(next).map(|file| self.of(file, None)).buffered(at_once);
            found = footers.try_fold(found, |all, next| async { Ok(all.and(next)) }).await?;
            at_once = (2 * at_once).min(CONCURRENT_HEADS);
        }
        Ok((found, opened))
    }
}

/// The numbers of the files whose footers are read to plan, in their order: all, or as many as tell enough, evenly. Of
/// a small file of a store the footer comes with all else.
fn sample(files: &Files) -> Vec<usize> {
    let metas = || files.files.iter().map(|file| &file.object_meta).enumerate();
    let comes_later = |file: &ObjectMeta| files.pinned.is_some() && is_small(file);
    let evenly = |numbers: Vec<usize>, most: usize| -> Vec<usize> {
        let most = most.min(numbers.len());
        (0..most).map(|k| numbers[k * numbers.len() / most]).collect()
    };
    let now = evenly(metas().filter(|(_, file)| !comes_later(file)).map(|(number, _)| number).collect(), MAX_FOOTERS);
    let later = metas().filter(|(_, file)| comes_later(file)).map(|(number, _)| number).collect();
    let mut chosen = [now, evenly(later, SAMPLED_SMALL_FILES)].concat();
    chosen.sort_unstable();
    chosen
}

/// The footer of a file, from the cache where it is of this very file.
async fn footer(
    cache: Arc<FileMetadataCache>,
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    is_far: bool,
) -> Result<Arc<ParquetMetaData>> {
    // The cache looks at size and time, and another file may have both.
    if cache.get(&file.location).is_some_and(|known| known.meta.e_tag != file.e_tag) {
        cache.remove(&file.location);
    }
    // Where a request takes long, most footers come with the first.
    let hint = is_far.then_some(FOOTER_BYTES);
    let footer = DFParquetMetadata::new(store, file).with_metadata_size_hint(hint);
    let footer = footer.with_file_metadata_cache(Some(cache));
    // The decoder trusts the length that the last bytes say.
    let decoded = AssertUnwindSafe(footer.fetch_metadata()).catch_unwind().await;
    decoded.unwrap_or_else(|_| exec_err!("its last bytes are not those of a Parquet file"))
}
