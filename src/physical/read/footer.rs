//! Footers of Parquet files, and what they say of the values of row groups.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, RowGroupMetaData};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

/// The footer with where the pages are, if the file says so: what is chosen of a column is read
/// without the pages that have none of it.
pub(super) async fn with_pages(
    reader: &mut (dyn AsyncFileReader + Send),
    footer: Arc<ParquetMetaData>,
) -> Result<Arc<ParquetMetaData>> {
    let says_pages = |group: &RowGroupMetaData| group.columns().iter().any(|c| c.offset_index_offset().is_some());
    match footer.offset_index().is_none() && footer.row_groups().first().is_some_and(says_pages) {
        true => {
            let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
            Ok(reader.get_metadata(Some(&options)).await?)
        }
        false => Ok(footer),
    }
}

/// Opens a file of a partition, with its footer as it is kept: where the pages are is not looked up.
pub(super) async fn open(
    readers: &Arc<dyn ParquetFileReaderFactory>,
    partition: usize,
    file: &PartitionedFile,
) -> Result<(Box<dyn AsyncFileReader + Send>, Arc<ParquetMetaData>)> {
    let mut reader = readers.create_reader(partition, file.clone(), None, &ExecutionPlanMetricsSet::new())?;
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
    let footer = reader.get_metadata(Some(&options)).await?;
    Ok((reader, footer))
}

/// Where a row group begins, which decides whether it is read as a part of its file.
pub(crate) fn first_byte(group: &RowGroupMetaData) -> u64 {
    let column = group.columns().first();
    column.map_or(0, |c| c.dictionary_page_offset().unwrap_or_else(|| c.data_page_offset()) as u64)
}

/// Whether a row group is read as a part of a file.
pub(super) fn is_in_range(group: &RowGroupMetaData, file: &PartitionedFile) -> bool {
    file.range.as_ref().is_none_or(|range| range.contains(first_byte(group) as i64))
}

/// Whether values of two types are the same, and in the same order.
pub(super) fn is_alike(one: &DataType, other: &DataType) -> bool {
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    one == other || (is_text(one) && is_text(other))
}

/// What the footer of a file says of some of its row groups.
pub(crate) struct RowGroupStatistics<'a> {
    footer: &'a ParquetMetaData,
    groups: &'a [RowGroupMetaData],
    /// The columns of the file.
    schema: &'a Schema,
}

impl<'a> RowGroupStatistics<'a> {
    /// Of `groups` of a file with the columns of `schema`.
    pub(crate) fn new(footer: &'a ParquetMetaData, groups: &'a [RowGroupMetaData], schema: &'a Schema) -> Self {
        Self { footer, groups, schema }
    }

    fn of(&self, column: &Column) -> Option<StatisticsConverter<'_>> {
        let columns = self.footer.file_metadata().schema_descr();
        let said = StatisticsConverter::try_new(&column.name, self.schema, columns).ok()?;
        said.parquet_column_index().is_some().then_some(said)
    }
}

impl PruningStatistics for RowGroupStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column)?.row_group_mins(self.groups).ok()
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column)?.row_group_maxes(self.groups).ok()
    }

    fn num_containers(&self) -> usize {
        self.groups.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let counts = self.of(column)?.with_missing_null_counts_as_zero(false);
        Some(Arc::new(counts.row_group_null_counts(self.groups).ok()?))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(UInt64Array::from_iter_values(self.groups.iter().map(|group| group.num_rows().max(0) as u64))))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
