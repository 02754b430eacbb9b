//! How the files of a scan are read: from a store that answers only for files that are as they were listed, with the
//! pages of files that are read in pieces, and with a look at footers that nobody has seen before.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::{ParquetError, Result as ParquetResult};
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, TryFutureExt};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::believed::{believed, cached};
use super::columns::check_types;
use super::pieces::{PagesOfFile, is_piece};
use crate::error::ErrorContext;
use crate::physical::{file_scan, first_byte, shown_root};
use crate::sources::files::{PinnedStore, ReadingFile};

/// Row groups that are asked for before they are read.
const GROUPS_AHEAD: usize = 16;

/// What a scan reads with beside what DataFusion does.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) cache: Arc<FileMetadataCache>,
    /// The columns of the table.
    pub(super) columns: SchemaRef,
    /// Whether footers were not looked at, whose columns have to fit those.
    pub(super) is_unseen: bool,
    /// Where row groups begin that are read, of files of which not all are.
    pub(super) kept: Arc<KeptGroups>,
}

/// Where the row groups of files begin that are read.
pub(super) type KeptGroups = HashMap<Path, HashSet<u64>>;

impl Reading {
    /// The scan that reads so, from `pinned` if there is such a store.
    pub(super) fn of(self, scan: Arc<dyn ExecutionPlan>, pinned: Option<Arc<PinnedStore>>) -> Arc<dyn ExecutionPlan> {
        let Some(config) = file_scan(&scan) else {
            return scan;
        };
        let Some(source) = config.file_source().downcast_ref::<ParquetSource>() else {
            return scan;
        };
        let inner = match (&pinned, source.parquet_file_reader_factory()) {
            (Some(pinned), _) => {
                let (store, cache) = (Arc::clone(pinned) as _, Arc::clone(&self.cache));
                Arc::new(CachedParquetFileReaderFactory::new(store, cache)) as Arc<dyn ParquetFileReaderFactory>
            }
            (None, Some(readers)) => Arc::clone(readers),
            (None, None) => return scan,
        };
        let root = shown_root(&config.object_store_url);
        let readers = Readers { inner, root, pinned, reading: Arc::new(self) };
        let source = source.clone().with_parquet_file_reader_factory(Arc::new(readers));
        let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
        DataSourceExec::from_data_source(config)
    }
}

#[derive(Debug)]
struct Readers {
    inner: Arc<dyn ParquetFileReaderFactory>,
    /// What stands before a location when it is shown.
    root: String,
    pinned: Option<Arc<PinnedStore>>,
    reading: Arc<Reading>,
}

impl ParquetFileReaderFactory for Readers {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let (is_piece, found) = (is_piece(&file), file.extension::<PagesOfFile>().cloned());
        let location = file.object_meta.location.clone();
        let reader = self.inner.create_reader(partition_index, file, metadata_size_hint, metrics)?;
        let pinned = self.pinned.clone();
        let reading_file = pinned.as_ref().map(|pinned| pinned.reading(&location));
        Ok(Box::new(Reader {
            reader,
            root: self.root.clone(),
            location,
            is_piece,
            found,
            pinned,
            reading: Arc::clone(&self.reading),
            _reading_file: reading_file,
        }))
    }
}

struct Reader {
    reader: Box<dyn AsyncFileReader + Send>,
    root: String,
    location: Path,
    /// Whether it has to know where the pages are, asked for that or not.
    is_piece: bool,
    /// What the file does not say of its pages.
    found: Option<PagesOfFile>,
    pinned: Option<Arc<PinnedStore>>,
    reading: Arc<Reading>,
    _reading_file: Option<ReadingFile>,
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        // Whoever has read the footer may have been another reader of the file.
        let known = self.pinned.clone().and_then(|pinned| {
            let metadata = self.footer(pinned.file(&self.location)?)?;
            Some((pinned, metadata))
        });
        let Some((pinned, metadata)) = known else {
            return self.reader.get_byte_ranges(ranges);
        };
        async move {
            let Some((group, columns)) = whole_chunks(&metadata, &ranges) else {
                return self.reader.get_byte_ranges(ranges).await;
            };
            let chunks: Vec<_> = columns.iter().map(|column| chunk(&metadata, group, *column)).collect();
            let asked = pinned.asked_for(&self.location, &chunks);
            self.ask_ahead(&pinned, &metadata, group, &columns);
            let missing =
                chunks.iter().zip(&asked).filter(|(_, asked)| asked.is_none()).map(|(chunk, _)| chunk.clone());
            let missing: Vec<_> = missing.collect();
            let others = async {
                match missing.is_empty() {
                    true => Ok(Vec::new()),
                    false => self.reader.get_byte_ranges(missing).await,
                }
            };
            let (is_ahead, asked): (Vec<bool>, Vec<_>) =
                asked.into_iter().map(|asked| (asked.is_some(), asked)).unzip();
            let asked = try_join_all(asked.into_iter().flatten()).map_err(|e| ParquetError::External(Box::new(e)));
            let (asked, others) = futures::try_join!(asked, others)?;
            let (mut asked, mut others) = (asked.into_iter(), others.into_iter());
            let next = |is_ahead: &bool| if *is_ahead { asked.next() } else { others.next() };
            let bytes: Vec<Bytes> = is_ahead.iter().filter_map(next).collect();
            parts_of(&chunks, &bytes, &ranges)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        let asking = self
            .is_piece
            .then(|| options.cloned().unwrap_or_default().with_page_index_policy(PageIndexPolicy::Optional));
        async move {
            let metadata = self.reader.get_metadata(asking.as_ref().or(options)).await?;
            let columns = &self.reading.columns;
            if self.reading.is_unseen {
                let fits = check_types(columns, &metadata);
                let fits = fits.while_doing(|| format!("reading '{}{}'", self.root, self.location));
                fits.map_err(|e| ParquetError::External(Box::new(e)))?;
            }
            let metadata = match &self.found {
                Some(PagesOfFile(found)) => Arc::new(found.added_to(&metadata)),
                None => metadata,
            };
            believed(metadata, columns, self.reading.cache.as_ref(), &self.location)
        }
        .boxed()
    }
}

impl Reader {
    /// Asks for these columns of the row groups behind `group`, also of the files behind this one.
    fn ask_ahead(&self, pinned: &PinnedStore, metadata: &ParquetMetaData, group: usize, columns: &[usize]) {
        let mut asked = 0;
        let mut ask_for = |file: &Path, metadata: &ParquetMetaData, first: usize| {
            let kept = self.reading.kept.get(file);
            let is_kept =
                |group: &usize| kept.is_none_or(|kept| kept.contains(&first_byte(metadata.row_group(*group))));
            for group in (first..metadata.num_row_groups()).filter(is_kept).take(GROUPS_AHEAD - asked) {
                pinned.ask_for(file, columns.iter().map(|column| chunk(metadata, group, *column)).collect());
                asked += 1;
            }
            asked < GROUPS_AHEAD
        };
        if !ask_for(&self.location, metadata, group + 1) {
            return;
        }
        for file in pinned.large_files_behind(&self.location) {
            let Some(next) = self.footer(file).filter(|next| has_same_columns(metadata, next, columns)) else { return };
            // Of a file that is not among those of which parts are kept, nothing is.
            let is_read = self.reading.kept.is_empty() || self.reading.kept.contains_key(&file.location);
            if is_read && !ask_for(&file.location, &next, 0) {
                return;
            }
        }
    }

    /// The footer of a file, if it was read.
    fn footer(&self, file: &ObjectMeta) -> Option<Arc<ParquetMetaData>> {
        let known = self.reading.cache.get(&file.location).filter(|known| known.is_valid_for(file))?;
        cached(&known).cloned()
    }
}

/// Where a column chunk is.
fn chunk(metadata: &ParquetMetaData, group: usize, column: usize) -> Range<u64> {
    let (start, length) = metadata.row_group(group).column(column).byte_range();
    start..start + length
}

/// The row group that the ranges are in, and the columns whose chunks they are, each as a whole or page by page.
/// Nothing where they leave out a part of one.
fn whole_chunks(metadata: &ParquetMetaData, ranges: &[Range<u64>]) -> Option<(usize, Vec<usize>)> {
    let columns = |group: usize| 0..metadata.row_group(group).num_columns();
    let column_of =
        |group, range: &Range<u64>| columns(group).find(|column| has(&chunk(metadata, group, *column), range));
    let first = ranges.first()?;
    let group = (0..metadata.num_row_groups()).find(|group| column_of(*group, first).is_some())?;
    let mut wanted: Vec<(usize, u64)> = Vec::new();
    for range in ranges {
        let (column, bytes) = (column_of(group, range)?, range.end - range.start);
        match wanted.iter_mut().find(|(known, _)| *known == column) {
            Some((_, covered)) => *covered += bytes,
            None => wanted.push((column, bytes)),
        }
    }
    let is_whole = |(column, covered): &(usize, u64)| {
        let chunk = chunk(metadata, group, *column);
        chunk.end - chunk.start == *covered
    };
    wanted.iter().all(is_whole).then(|| (group, wanted.iter().map(|(column, _)| *column).collect()))
}

/// Whether a range has all of another one.
fn has(range: &Range<u64>, part: &Range<u64>) -> bool {
    range.start <= part.start && part.end <= range.end
}

/// The bytes of ranges, each of which is in one of the chunks that have come.
fn parts_of(chunks: &[Range<u64>], bytes: &[Bytes], ranges: &[Range<u64>]) -> ParquetResult<Vec<Bytes>> {
    let of_range = |range: &Range<u64>| {
        let (chunk, bytes) = chunks.iter().zip(bytes).find(|(chunk, _)| has(chunk, range))?;
        let (start, end) = ((range.start - chunk.start) as usize, (range.end - chunk.start) as usize);
        (end <= bytes.len()).then(|| bytes.slice(start..end))
    };
    let parts = ranges.iter().map(of_range).collect::<Option<Vec<_>>>();
    parts.ok_or_else(|| ParquetError::EOF(format!("the store has given fewer bytes than those of {ranges:?}")))
}

/// Whether the columns of these numbers are the same in two files.
fn has_same_columns(one: &ParquetMetaData, other: &ParquetMetaData, columns: &[usize]) -> bool {
    let (one, other) = (one.file_metadata().schema_descr(), other.file_metadata().schema_descr());
    columns
        .iter()
        .all(|column| *column < other.num_columns() && one.column(*column).path() == other.column(*column).path())
}
