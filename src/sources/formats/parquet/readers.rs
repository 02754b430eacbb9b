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
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;

use super::columns::check_types;
use super::pieces::{PagesOfFile, is_piece};
use super::row_groups::first_byte;
use crate::error::ErrorContext;
use crate::physical::{file_scan, shown_root};
use crate::sources::files::{PinnedStore, ReadingFile};

/// Row groups that are asked for before they are read.
const GROUPS_AHEAD: usize = 16;

/// What a scan reads with beside what DataFusion does.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) cache: Arc<FileMetadataCache>,
    /// The columns that files have to fit, where footers were not looked at.
    pub(super) unseen: Option<SchemaRef>,
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
        let has_pieces = || config.file_groups.iter().any(|group| group.iter().any(is_piece));
        if pinned.is_none() && self.unseen.is_none() && !has_pieces() {
            return scan;
        }
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
        let readers = Readers { inner, root, pinned, unseen: self.unseen, kept: self.kept };
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
    unseen: Option<SchemaRef>,
    kept: Arc<KeptGroups>,
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
        let (unseen, root) = (self.unseen.clone(), self.root.clone());
        let pinned = self.pinned.clone();
        let reading = pinned.as_ref().map(|pinned| pinned.reading(&location));
        Ok(Box::new(Reader {
            reader,
            root,
            location,
            is_piece,
            found,
            unseen,
            pinned,
            kept: Arc::clone(&self.kept),
            metadata: None,
            _reading: reading,
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
    unseen: Option<SchemaRef>,
    pinned: Option<Arc<PinnedStore>>,
    kept: Arc<KeptGroups>,
    metadata: Option<Arc<ParquetMetaData>>,
    _reading: Option<ReadingFile>,
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        let Some((pinned, metadata)) = self.pinned.clone().zip(self.metadata.clone()) else {
            return self.reader.get_byte_ranges(ranges);
        };
        async move {
            let asked = pinned.asked_for(&self.location, &ranges);
            for next in next_row_groups(&metadata, &ranges, self.kept.get(&self.location)) {
                pinned.ask_for(&self.location, next);
            }
            match asked {
                Some(bytes) => bytes.await.map_err(|e| ParquetError::External(Box::new(e))),
                None => self.reader.get_byte_ranges(ranges).await,
            }
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
            if let Some(columns) = &self.unseen {
                let fits = check_types(columns, &metadata);
                let fits = fits.while_doing(|| format!("reading '{}{}'", self.root, self.location));
                fits.map_err(|e| ParquetError::External(Box::new(e)))?;
            }
            self.metadata = Some(Arc::clone(&metadata));
            Ok(match &self.found {
                Some(PagesOfFile(found)) => Arc::new(found.added_to(&metadata)),
                None => metadata,
            })
        }
        .boxed()
    }
}

/// What is read of the next row groups, where whole column chunks of one are.
fn next_row_groups(
    metadata: &ParquetMetaData,
    ranges: &[Range<u64>],
    kept: Option<&HashSet<u64>>,
) -> Vec<Vec<Range<u64>>> {
    let chunk = |group: usize, column: usize| {
        let (start, length) = metadata.row_group(group).column(column).byte_range();
        start..start + length
    };
    let Some(first) = ranges.first() else { return Vec::new() };
    let columns = |group: usize| 0..metadata.row_group(group).num_columns();
    let group = (0..metadata.num_row_groups()).find(|group| columns(*group).any(|c| chunk(*group, c) == *first));
    let Some(group) = group else { return Vec::new() };
    let column_of = |range: &Range<u64>| columns(group).find(|column| chunk(group, *column) == *range);
    let Some(wanted) = ranges.iter().map(column_of).collect::<Option<Vec<_>>>() else { return Vec::new() };
    let is_kept = |group: &usize| kept.is_none_or(|kept| kept.contains(&first_byte(metadata.row_group(*group))));
    let next = (group + 1..metadata.num_row_groups()).filter(is_kept).take(GROUPS_AHEAD);
    next.map(|group| wanted.iter().map(|column| chunk(group, *column)).collect()).collect()
}
