//! Leaves out row groups by their statistics before they are opened.
//!
//! DataFusion does so for each part of a file that it opens: it works out what the filter of the scan asks of
//! statistics, of bloom filters and of pages, and asks. Where row groups are small that takes as long as to decode some
//! of their columns. Here row groups that follow each other are asked at once, and again only when the filter has
//! changed; what is left is opened without it:
//!
//! ```text
//! filter ──▶ question ──▶ 64 row groups: yes no no yes ..   task 17 reads row group 17 ──▶ no: nothing is opened
//! ```
//!
//! What a filter leaves out that still changes while a task reads, as that of a top k does, is found out by DataFusion.
//! What else files say of the filtered columns, by bloom filters and by statistics of pages, DataFusion asks still, as
//! long as that leaves out rows. Files that have these columns in other types than the table are left to it, too.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetFileReaderFactory, ParquetSource};
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::snapshot_generation;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricValue};
use object_store::path::Path;
use parking_lot::Mutex;

use super::footer::{RowGroupStatistics, is_alike, is_in_range, open};

/// Row groups that are asked at once.
const ASKED_AT_ONCE: usize = 64;

/// Answers that are kept for the next tasks.
const KEPT: usize = 64;

/// Tasks that ask bloom filters and pages before it is known whether that leaves out rows.
const TRIED: usize = 8;

/// Of so many tasks one asks them again where it did not.
const AGAIN: usize = 32;

/// A file of a task, and what is left of it.
#[derive(Debug, Clone)]
pub(super) struct LeftFile {
    file: PartitionedFile,
    /// The row groups that are read, if some of its range are not, and how many the file has.
    kept: Option<(Vec<usize>, usize)>,
}

impl LeftFile {
    pub(super) fn file(&self) -> &PartitionedFile {
        &self.file
    }

    /// Whether a row group is read.
    pub(super) fn has(&self, number: usize, group: &RowGroupMetaData) -> bool {
        match &self.kept {
            Some((kept, _)) => kept.contains(&number),
            None => is_in_range(group, &self.file),
        }
    }

    /// The file, of which only what is left is read.
    pub(super) fn to_file(&self) -> PartitionedFile {
        let file = self.file.clone();
        match &self.kept {
            None => file,
            Some((kept, all)) => {
                let mut access = ParquetAccessPlan::new_none(*all);
                kept.iter().for_each(|group| access.set(*group, RowGroupAccess::Scan));
                file.with_extension(access)
            }
        }
    }
}

/// What is left of a task.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) files: Vec<LeftFile>,
    /// Whether statistics were asked. If not, DataFusion asks them.
    pub(super) is_known: bool,
    /// Whether something was left out.
    pub(super) is_less: bool,
}

impl Left {
    /// All of some files, as far as is known.
    pub(super) fn unknown(files: &[PartitionedFile]) -> Self {
        let files = files.iter().map(|file| LeftFile { file: file.clone(), kept: None }).collect();
        Self { files, is_known: false, is_less: false }
    }

    pub(super) fn to_files(&self) -> Vec<PartitionedFile> {
        self.files.iter().map(LeftFile::to_file).collect()
    }
}

/// Finds out which row groups of a scan are left out.
#[derive(Debug)]
pub(super) struct Pruning {
    filter: Arc<dyn PhysicalExpr>,
    /// The columns of the filter.
    columns: Vec<String>,
    table: SchemaRef,
    max_in_list_size: usize,
    readers: Arc<dyn ParquetFileReaderFactory>,
    metrics: ExecutionPlanMetricsSet,
    asked: Mutex<Asked>,
    finer: Mutex<Finer>,
}

/// Whether to ask what files say beside statistics of row groups.
#[derive(Debug, Default)]
struct Finer {
    begun: usize,
    asked: usize,
    is_useful: bool,
}

/// What was asked last.
#[derive(Debug, Default)]
struct Asked {
    question: Option<Question>,
    /// By file and run of row groups.
    answers: HashMap<(Path, usize), Answer>,
}

/// What the filter asks of statistics.
#[derive(Debug)]
struct Question {
    /// The state of the filter that it was made of.
    generation: u64,
    predicate: Option<Arc<PruningPredicate>>,
}

/// What is said of a run of row groups; `None` where DataFusion has to say it.
type Answer = Option<Said>;

#[derive(Debug)]
struct Said {
    /// Of each row group, whether rows may pass.
    may_pass: Vec<bool>,
    /// Whether there are bloom filters or statistics of pages.
    has_finer: bool,
}

impl Pruning {
    /// Of a scan of Parquet files whose filter is asked of statistics only.
    pub(super) fn of(config: &FileScanConfig, source: &ParquetSource) -> Option<Self> {
        let options = &source.table_parquet_options().global;
        let (filter, readers) = (source.filter()?, source.parquet_file_reader_factory()?);
        // Columns that only paths tell of are not in the files.
        let table = source.table_schema().file_schema();
        let columns: Vec<_> = collect_columns(&filter).iter().map(|column| column.name().to_owned()).collect();
        let are_in_files = columns.iter().all(|column| table.field_with_name(column).is_ok());
        if options.pushdown_filters || !options.pruning || config.limit.is_some() || !are_in_files {
            return None;
        }
        Some(Self {
            filter,
            columns,
            table: Arc::clone(table),
            max_in_list_size: source.max_in_list_size(),
            readers: Arc::clone(readers),
            metrics: source.metrics().clone(),
            asked: Mutex::default(),
            finer: Mutex::default(),
        })
    }

    /// What is left of the files of a partition.
    pub(super) async fn left(&self, partition: usize, files: &[PartitionedFile]) -> Left {
        self.known(partition, files).await.unwrap_or_else(|| Left::unknown(files))
    }

    async fn known(&self, partition: usize, files: &[PartitionedFile]) -> Option<Left> {
        let mut left = Left { files: Vec::with_capacity(files.len()), is_known: true, is_less: false };
        let (mut pruned, mut has_finer) = (0, false);
        for file in files {
            // Of a piece of a row group DataFusion asks the pages.
            if file.extension::<ParquetAccessPlan>().is_some() {
                return None;
            }
            // Where it fails DataFusion does so too, and tells what happened.
            let (_, footer) = open(&self.readers, partition, file).await.ok()?;
            let groups = footer.row_groups().iter().enumerate();
            let read: Vec<_> = groups.filter(|(_, group)| is_in_range(group, file)).map(|(number, _)| number).collect();
            let kept = self.kept(&file.object_meta.location, &footer, &read, &mut has_finer)?;
            let missing = read.len() - kept.len();
            pruned += missing;
            if missing == 0 || !kept.is_empty() {
                let kept = (missing > 0).then(|| (kept, footer.num_row_groups()));
                left.files.push(LeftFile { file: file.clone(), kept });
            }
        }
        // A filter that changes while a task reads leaves out more of it then.
        let may_change = matches!(DynamicFilterTracking::classify(&self.filter), DynamicFilterTracking::Watching(_));
        if !left.files.is_empty() && (may_change || has_finer && self.asks_finer()) {
            return None;
        }
        left.is_less = pruned > 0;
        // Those that are opened are counted there.
        let counts = MetricBuilder::new(&self.metrics).pruning_metrics("row_groups_pruned_statistics", partition);
        counts.add_pruned(pruned);
        Some(left)
    }

    /// Whether a task leaves it to DataFusion to ask what there is beside statistics of row groups.
    fn asks_finer(&self) -> bool {
        let mut finer = self.finer.lock();
        finer.begun += 1;
        let is_asked = finer.asked < TRIED || finer.is_useful || finer.begun.is_multiple_of(AGAIN);
        finer.asked += usize::from(is_asked);
        if is_asked && finer.asked >= TRIED && !finer.is_useful {
            finer.is_useful = self.metrics.clone_inner().iter().any(|metric| leaves_out_rows(metric.value()));
        }
        is_asked
    }

    /// Those of some row groups of a file that are left. Sets `has_finer` where there is more to ask of them.
    fn kept(
        &self,
        path: &Path,
        footer: &ParquetMetaData,
        groups: &[usize],
        has_finer: &mut bool,
    ) -> Option<Vec<usize>> {
        let mut asked = self.asked.lock();
        let generation = snapshot_generation(&self.filter);
        if asked.question.as_ref().is_none_or(|question| question.generation != generation) {
            asked.question = Some(Question { generation, predicate: self.predicate() });
            asked.answers.clear();
        }
        let Asked { question: Some(Question { predicate: Some(predicate), .. }), answers } = &mut *asked else {
            return Some(groups.to_vec());
        };
        let mut kept = Vec::with_capacity(groups.len());
        for group in groups {
            let run = group / ASKED_AT_ONCE;
            if answers.len() > KEPT {
                answers.clear();
            }
            let answer = answers.entry((path.clone(), run));
            let answer = answer.or_insert_with(|| self.answer(predicate, footer, run * ASKED_AT_ONCE));
            let said = answer.as_ref()?;
            if said.may_pass[group % ASKED_AT_ONCE] {
                kept.push(*group);
                *has_finer |= said.has_finer;
            }
        }
        Some(kept)
    }

    fn predicate(&self) -> Option<Arc<PruningPredicate>> {
        let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(&self.table));
        builder.with_max_in_list_size(self.max_in_list_size).build(Arc::clone(&self.filter))
    }

    /// What is said of the row groups from `first` on that are asked at once.
    fn answer(&self, predicate: &PruningPredicate, footer: &ParquetMetaData, first: usize) -> Answer {
        let file = footer.file_metadata();
        let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata()).ok()?;
        let is_alike = |column: &String| {
            let (table, file) = (self.table.field_with_name(column).ok()?, schema.field_with_name(column).ok()?);
            is_alike(table.data_type(), file.data_type()).then_some(())
        };
        self.columns.iter().try_for_each(is_alike)?;
        let groups = &footer.row_groups()[first..footer.num_row_groups().min(first + ASKED_AT_ONCE)];
        let may_pass = predicate.prune(&RowGroupStatistics::new(footer, groups, &schema)).ok()?;
        let chunks = |column: &String| {
            let columns = footer.file_metadata().schema_descr();
            let leaf = (0..columns.num_columns()).find(|leaf| columns.get_column_root(*leaf).name() == column);
            leaf.into_iter().flat_map(|leaf| groups.iter().map(move |group| group.column(leaf)))
        };
        let has_blooms = predicate
            .literal_columns()
            .iter()
            .any(|column| chunks(column).any(|chunk| chunk.bloom_filter_offset().is_some()));
        let has_pages =
            self.columns.iter().any(|column| chunks(column).any(|chunk| chunk.column_index_offset().is_some()));
        Some(Said { may_pass, has_finer: has_blooms || has_pages })
    }
}

/// Whether a metric is of rows that were left out by bloom filters or pages.
fn leaves_out_rows(value: &MetricValue) -> bool {
    match value {
        MetricValue::PruningMetrics { name, pruning_metrics } => {
            ["row_groups_pruned_bloom_filter", "page_index_rows_pruned"].contains(&name.as_ref())
                && pruning_metrics.pruned() > 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
    use datafusion::datasource::physical_plan::FileSource;
    use datafusion::logical_expr::Operator;
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
    use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, binary, col, lit};
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::prelude::{ParquetReadOptions, SessionContext};

    use super::super::files::file_scan;
    use super::*;

    /// A file of a hundred row groups of ten rows, whose ids ascend.
    async fn scan_of_file(has_blooms: bool, condition: &str) -> (tempfile::TempDir, Arc<dyn ExecutionPlan>) {
        let directory = tempfile::tempdir().unwrap();
        let ids = Int64Array::from_iter_values(0..1000);
        let names = StringArray::from_iter_values((0..1000).map(|row| format!("name {}", row * 7 % 1000)));
        let rows = RecordBatch::try_from_iter([("id", Arc::new(ids) as _), ("name", Arc::new(names) as _)]).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(10))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_bloom_filter_enabled(has_blooms)
            .build();
        let file = File::create(directory.path().join("0.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
        let context = SessionContext::new();
        let path = directory.path().display().to_string();
        let rows = context.read_parquet(path, ParquetReadOptions::default()).await.unwrap();
        let filter = rows.parse_sql_expr(condition).unwrap();
        let mut plan = rows.filter(filter).unwrap().create_physical_plan().await.unwrap();
        while file_scan(&plan).is_none() {
            plan = Arc::clone(plan.children()[0]);
        }
        (directory, plan)
    }

    fn source(scan: &Arc<dyn ExecutionPlan>) -> &ParquetSource {
        file_scan(scan).unwrap().file_source().downcast_ref::<ParquetSource>().unwrap()
    }

    fn file(scan: &Arc<dyn ExecutionPlan>) -> PartitionedFile {
        let file = file_scan(scan).unwrap().file_groups[0].files()[0].clone();
        PartitionedFile { range: None, ..file }
    }

    /// The row groups that are left; `None` where DataFusion has to say it.
    async fn left(pruning: &Pruning, file: &PartitionedFile) -> Option<Vec<usize>> {
        let left = pruning.left(0, std::slice::from_ref(file)).await;
        let (_, footer) = open(&pruning.readers, 0, file).await.unwrap();
        let has = |group: &usize| left.files.iter().any(|file| file.has(*group, footer.row_group(*group)));
        left.is_known.then(|| (0..footer.num_row_groups()).filter(has).collect())
    }

    #[tokio::test]
    async fn row_groups_are_left_out_by_their_statistics() {
        for (condition, expected) in [
            ("id >= 985", vec![98, 99]),
            ("id BETWEEN 635 AND 655", vec![63, 64, 65]),
            ("id IN (3, 5, 700)", vec![0, 70]),
            ("id > 5000", vec![]),
            ("id % 2 = 0 AND id < 10", vec![0]),
        ] {
            let (_directory, scan) = scan_of_file(false, condition).await;
            let pruning = Pruning::of(file_scan(&scan).unwrap(), source(&scan)).unwrap();
            assert_eq!(left(&pruning, &file(&scan)).await, Some(expected), "{condition}");
        }
    }

    #[tokio::test]
    async fn a_filter_that_has_changed_is_asked_again_and_one_that_may_is_left_to_datafusion() {
        let (_directory, scan) = scan_of_file(false, "id >= 0").await;
        let table = Arc::clone(source(&scan).table_schema().file_schema());
        let id = col("id", &table).unwrap();
        let below = |most: i64| binary(Arc::clone(&id), Operator::Lt, lit(most), &table).unwrap();
        let filter = Arc::new(DynamicFilterPhysicalExpr::new(vec![Arc::clone(&id)], lit(true)));
        let source = source(&scan).with_predicate(Arc::clone(&filter) as _);
        let pruning = Pruning::of(file_scan(&scan).unwrap(), &source).unwrap();
        let file = file(&scan);
        // It may leave out more while the file is read.
        assert_eq!(left(&pruning, &file).await, None);
        filter.update(below(-1)).unwrap();
        assert_eq!(left(&pruning, &file).await, Some(vec![]));
        filter.update(below(700)).unwrap();
        assert_eq!(left(&pruning, &file).await, None);
        filter.mark_complete();
        assert_eq!(left(&pruning, &file).await, Some((0..70).collect()));
    }

    #[tokio::test]
    async fn bloom_filters_that_leave_out_nothing_are_not_asked() {
        let (_directory, scan) = scan_of_file(true, "name = 'name 7'").await;
        let pruning = Pruning::of(file_scan(&scan).unwrap(), source(&scan)).unwrap();
        let file = file(&scan);
        for _ in 0..TRIED {
            assert_eq!(left(&pruning, &file).await, None);
        }
        assert!(left(&pruning, &file).await.is_some());
        // Statistics of row groups are not what decides.
        let pruning = Pruning::of(file_scan(&scan).unwrap(), source(&scan)).unwrap();
        let counts = MetricBuilder::new(&pruning.metrics).pruning_metrics("row_groups_pruned_bloom_filter", 0);
        counts.add_pruned(1);
        for _ in 0..3 * TRIED {
            assert_eq!(left(&pruning, &file).await, None);
        }
    }

    #[tokio::test]
    async fn pieces_are_left_to_datafusion() {
        let (_directory, scan) = scan_of_file(false, "id > 5000").await;
        let pruning = Pruning::of(file_scan(&scan).unwrap(), source(&scan)).unwrap();
        let piece = file(&scan).with_extension(ParquetAccessPlan::new_all(100));
        assert_eq!(left(&pruning, &piece).await, None);
    }
}
