//! The files that read tasks read.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::block::TaskId;

/// Paths that are named.
const NAMED: usize = 3;

/// Files that are looked at again at once.
const CONCURRENT_CHECKS: usize = 32;

/// Number of the first row of a part of a file, from 0 on: an extension of a `PartitionedFile`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstRow(pub(crate) usize);

/// What a task reads.
#[derive(Debug, Clone)]
pub(crate) struct FilesOfTask {
    /// The first paths, for people.
    pub(crate) paths: Arc<str>,
    /// Number of its first row in the file, where it reads one file and that is known; otherwise 0.
    pub(crate) first_row: usize,
}

/// The files of the tasks of a read.
#[derive(Debug, Clone)]
pub(crate) struct ReadFiles {
    scan: Arc<dyn ExecutionPlan>,
    /// Which partition each task reads, where it is not the one of its number.
    order: Option<Arc<[usize]>>,
    /// What the source says of each partition, where it is not of files.
    origins: Arc<[Option<FilesOfTask>]>,
}

impl ReadFiles {
    /// Those of a scan whose partitions are read in some order.
    pub(crate) fn of(
        scan: &Arc<dyn ExecutionPlan>,
        order: Option<Arc<[usize]>>,
        origins: Arc<[Option<FilesOfTask>]>,
    ) -> Self {
        Self { scan: Arc::clone(scan), order, origins }
    }

    /// Those from which a task or block came.
    pub(crate) fn of_block(&self, id: &TaskId) -> Option<FilesOfTask> {
        self.of_task(id.task_of_source())
    }

    /// The partition of the scan that a task reads.
    fn partition_of(&self, task: usize) -> Option<usize> {
        self.order.as_ref().map_or(Some(task), |order| order.get(task).copied())
    }

    /// Those of a task; none where the scan is not of files and its source does not say it.
    pub(crate) fn of_task(&self, task: usize) -> Option<FilesOfTask> {
        let partition = self.partition_of(task)?;
        let Some(config) = file_scan(&self.scan) else {
            return self.origins.get(partition).cloned().flatten();
        };
        let group = config.file_groups.get(partition)?;
        let root = shown_root(&config.object_store_url);
        let files: Vec<_> = files_of(group).collect();
        let paths: Vec<_> =
            files.iter().take(NAMED).map(|parts| format!("{root}{}", parts[0].object_meta.location)).collect();
        let more = if files.len() > paths.len() { ", .." } else { "" };
        let first_row = match files.as_slice() {
            [parts] => parts[0].extension::<FirstRow>().map_or(0, |first| first.0),
            _ => 0,
        };
        Some(FilesOfTask { paths: format!("{}{more}", paths.join(", ")).into(), first_row })
    }
}

impl ReadFiles {
    /// All of them; each as often as parts of it are read.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ObjectMeta> {
        let groups = file_scan(&self.scan).into_iter().flat_map(|config| &config.file_groups);
        groups.flat_map(FileGroup::files).map(|file| &file.object_meta)
    }

    /// Fails where a file of a task is no longer what it was when the query was planned: what is known of its rows and
    /// their places would be wrong.
    pub(crate) async fn check(&self, task: usize, context: &TaskContext) -> Result<()> {
        let Some((config, group)) =
            file_scan(&self.scan).and_then(|c| Some((c, c.file_groups.get(self.partition_of(task)?)?)))
        else {
            return Ok(());
        };
        let root = shown_root(&config.object_store_url);
        if is_far(&config.object_store_url) {
            // Each request there says which file it wants, and is answered for no other.
            return Ok(());
        }
        let store = context.runtime_env().object_store(&config.object_store_url)?;
        let metas: Vec<ObjectMeta> = files_of(group).map(|parts| parts[0].object_meta.clone()).collect();
        let checks = stream::iter(metas).map(|planned| {
            let (store, root) = (Arc::clone(&store), &root);
            async move {
                let path = &planned.location;
                match store.head(path).await {
                    Ok(now) if is_as_listed(&planned, &now) => Ok(()),
                    Ok(now) => exec_err!(
                        "file '{root}{path}' has changed since the query was planned: it had {} bytes of {}, and has {} of {}; \
                         run the query again",
                        planned.size,
                        planned.last_modified,
                        now.size,
                        now.last_modified
                    ),
                    Err(object_store::Error::NotFound { .. }) => {
                        exec_err!("file '{root}{path}' is gone since the query was planned; run the query again")
                    }
                    Err(e) => Err(DataFusionError::from(e)),
                }
            }
        });
        checks.buffer_unordered(CONCURRENT_CHECKS).try_collect().await
    }
}

/// Whether two looks at a place found the same file. Some stores list times more exactly than they tell them of one
/// file.
pub(crate) fn is_as_listed(planned: &ObjectMeta, now: &ObjectMeta) -> bool {
    let tags = planned.e_tag.as_ref().zip(now.e_tag.as_ref()).map(|(planned, now)| bare(planned) == bare(now));
    let versions = planned.version.as_ref().zip(now.version.as_ref()).is_none_or(|(planned, now)| planned == now);
    let times = || planned.last_modified.timestamp() == now.last_modified.timestamp();
    planned.size == now.size && versions && tags.unwrap_or_else(times)
}

/// A tag without what some stores write around it in one answer and not in another.
fn bare(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

/// What stands before a location when it is shown: a path of this machine, or an address.
pub(crate) fn shown_root(url: &ObjectStoreUrl) -> String {
    url.as_str().replace("file://", "")
}

/// Whether it is not the files of this machine.
pub(super) fn is_far(url: &ObjectStoreUrl) -> bool {
    *url != ObjectStoreUrl::local_filesystem()
}

/// The files of a task: the parts of each, which follow each other.
fn files_of(group: &FileGroup) -> impl Iterator<Item = &[PartitionedFile]> {
    group.files().chunk_by(|part, next| part.object_meta.location == next.object_meta.location)
}

/// The parts of a task in runs of one file, whose rows follow each other there.
fn runs_of(group: &FileGroup) -> impl Iterator<Item = &[PartitionedFile]> {
    let first_row = |part: &PartitionedFile| part.extension::<FirstRow>().map(|first| first.0);
    group.files().chunk_by(move |part, next| {
        let follows = match (&part.range, &next.range) {
            // Of the pieces of a row group, each has its range.
            (Some(range), Some(next)) => range == next || range.end == next.start,
            (None, None) => true,
            _ => false,
        };
        // A file may be read twice.
        follows && part.object_meta.location == next.object_meta.location && first_row(part) < first_row(next)
    })
}

/// What a scan of files says of itself.
pub(crate) fn file_scan(scan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let source: &dyn Any = scan.downcast_ref::<DataSourceExec>()?.data_source().as_ref();
    source.downcast_ref::<FileScanConfig>()
}

/// What a scan says of itself, without its files.
pub(super) fn without_files(config: &FileScanConfig) -> FileScanConfig {
    FileScanConfigBuilder::from(config.clone()).with_file_groups(Vec::new()).build()
}

/// The rows of some files, of which `config` says the rest, by `source`. Its metrics are told by the number of a
/// partition.
pub(super) fn rows_of_files(
    config: &FileScanConfig,
    source: Arc<dyn FileSource>,
    files: Vec<PartitionedFile>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let mut groups = vec![FileGroup::default(); partition];
    groups.push(FileGroup::new(files));
    // No operator: a task has no use for what one finds out of its scan.
    FileScanConfigBuilder::from(config.clone())
        .with_source(source)
        .with_file_groups(groups)
        .with_output_partitioning(Some(Partitioning::UnknownPartitioning(partition + 1)))
        .build()
        .open(partition, context)
}

/// Whether a scan leaves out rows by filters that change while the query runs, so that it gives other rows when it runs
/// again.
pub(super) fn filters_change(scan: &Arc<dyn ExecutionPlan>) -> bool {
    let predicate = file_scan(scan).and_then(|config| config.file_source.filter());
    predicate.is_some_and(|predicate| {
        let mut found = false;
        // Looking cannot fail.
        let _looked = predicate.apply(|node| {
            let node: &dyn Any = node.as_ref();
            found |= node.is::<DynamicFilterPhysicalExpr>();
            Ok(TreeNodeRecursion::Continue)
        });
        found
    })
}

/// Into what the tasks of a scan of files are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// Files.
    Files,
    /// Runs of a file whose rows follow each other there: what is left out between them begins another one.
    Runs,
}

/// A scan whose tasks are divided, and the task that each of them was part of; `None` where they are so already.
pub(super) fn divided(
    scan: &Arc<dyn ExecutionPlan>,
    division: Division,
) -> Option<(Arc<dyn ExecutionPlan>, Vec<usize>)> {
    let config = file_scan(scan)?;
    let parts_of = |group: &FileGroup| -> Vec<FileGroup> {
        let anew = |parts: &[PartitionedFile]| FileGroup::new(parts.to_vec());
        match division {
            Division::Files => files_of(group).map(anew).collect(),
            Division::Runs => runs_of(group).map(anew).collect(),
        }
    };
    let parts = config.file_groups.iter().enumerate();
    let parts = parts.flat_map(|(task, group)| parts_of(group).into_iter().map(move |part| (part, task)));
    let (groups, task_of): (Vec<_>, Vec<_>) = parts.unzip();
    if groups.len() == config.file_groups.len() {
        return None;
    }
    let pinned = Partitioning::UnknownPartitioning(groups.len());
    let config = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(groups)
        .with_output_partitioning(Some(pinned))
        .build();
    Some((DataSourceExec::from_data_source(config), task_of))
}

/// Of a scan of Parquet files of this machine, whether each partition has what follows in the file of the one before,
/// and no other files; `None` where it is of something else.
pub(super) fn neighbours(scan: &Arc<dyn ExecutionPlan>) -> Option<Vec<bool>> {
    let config = file_scan(scan)?;
    config.file_source().downcast_ref::<ParquetSource>()?;
    if is_far(&config.object_store_url) {
        return None;
    }
    let follows = |pair: &[FileGroup]| match (pair[0].files(), pair[1].files()) {
        ([part], [next]) => range_of_both(part, next).is_some(),
        _ => false,
    };
    Some([false].into_iter().chain(config.file_groups.windows(2).map(follows)).collect())
}

/// The scan in partitions that are so many of its own each, which are neighbours.
pub(super) fn joined(scan: &Arc<dyn ExecutionPlan>, numbers: &[usize]) -> Option<Arc<dyn ExecutionPlan>> {
    let config = file_scan(scan)?;
    let mut groups = config.file_groups.iter();
    let mut together = |number: &usize| {
        let first = groups.next()?.clone();
        groups.by_ref().take(number - 1).try_fold(first, |all, group| {
            let (part, next) = (all.files().first()?, group.files().first()?);
            let range = range_of_both(part, next)?;
            Some(FileGroup::new(vec![part.clone().with_range(range.start, range.end)]))
        })
    };
    let joined = numbers.iter().map(&mut together).collect::<Option<Vec<_>>>()?;
    if groups.next().is_some() {
        return None;
    }
    let pinned = Partitioning::UnknownPartitioning(joined.len());
    let config = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(joined)
        .with_output_partitioning(Some(pinned))
        .build();
    Some(DataSourceExec::from_data_source(config))
}

/// The bytes of two parts of a file that follow each other, if they are read as a whole.
fn range_of_both(part: &PartitionedFile, next: &PartitionedFile) -> Option<FileRange> {
    let (first, second) = (part.range.as_ref()?, next.range.as_ref()?);
    let is_whole = |part: &PartitionedFile| part.extension::<ParquetAccessPlan>().is_none();
    let follows = first.end == second.start && part.object_meta.location == next.object_meta.location;
    (follows && is_whole(part) && is_whole(next)).then_some(FileRange { start: first.start, end: second.end })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use object_store::path::Path;

    use super::*;

    #[test]
    fn tags_are_compared_without_their_quotes() {
        let file = |tag: Option<&str>, seconds: u64| ObjectMeta {
            location: Path::from("a"),
            last_modified: (UNIX_EPOCH + Duration::from_secs(seconds)).into(),
            size: 1,
            e_tag: tag.map(str::to_owned),
            version: None,
        };
        assert!(is_as_listed(&file(Some("0x1"), 0), &file(Some("\"0x1\""), 0)));
        assert!(is_as_listed(&file(Some("W/\"1\""), 0), &file(Some("\"1\""), 5)), "tags come before times");
        assert!(!is_as_listed(&file(Some("\"1\""), 0), &file(Some("\"2\""), 0)));
        assert!(!is_as_listed(&file(None, 0), &file(Some("\"1\""), 5)));
        assert!(is_as_listed(&file(None, 5), &file(None, 5)));
    }
}
