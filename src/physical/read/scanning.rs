//! The rows of a scan as its tasks read them: without what statistics leave out, in one of two ways.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan};
use futures::{StreamExt, TryStreamExt, stream};

use super::clock::ReadClock;
use super::files::{file_scan, rows_of_files, without_files};
use super::late::{LateMaterialization, Trial};
use super::pruning::{Left, Pruning};
use crate::physical::tasks::stream_of;

/// A scan whose partitions are read.
#[derive(Debug)]
pub(super) struct Scanning {
    scan: Arc<dyn ExecutionPlan>,
    pruned: Option<PrunedScan>,
    late: Option<LateMaterialization>,
}

/// A scan of which statistics are asked before.
#[derive(Debug)]
struct PrunedScan {
    pruning: Pruning,
    /// What the scan says of itself, without its files.
    config: FileScanConfig,
    /// Its source without its filter.
    open: Arc<ParquetSource>,
}

impl PrunedScan {
    fn of(scan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let config = file_scan(scan)?;
        let source = config.file_source().downcast_ref::<ParquetSource>()?;
        let pruning = Pruning::of(config, source)?;
        let open = Arc::new(source.with_predicate(lit(true)));
        Some(Self { pruning, config: without_files(config), open })
    }

    /// The rows of what is left of a partition.
    fn execute(&self, left: &Left, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let open = Arc::<ParquetSource>::clone(&self.open);
        rows_of_files(&self.config, open, left.to_files(), 0, context)
    }
}

impl Scanning {
    /// Of a scan that may leave out rows, for which a task may keep so many bytes, or may not.
    pub(super) fn of(scan: &Arc<dyn ExecutionPlan>, may_filter: Option<usize>) -> Self {
        let late = may_filter.and_then(|kept_bytes| LateMaterialization::of(scan, kept_bytes));
        Self { scan: Arc::clone(scan), pruned: PrunedScan::of(scan), late }
    }

    /// Both ways to read, where there are two.
    pub(super) fn late(&self) -> Option<&LateMaterialization> {
        self.late.as_ref()
    }

    /// How the next task reads, where there are two ways.
    pub(super) fn begin(&self) -> Option<Trial> {
        self.late.as_ref().map(LateMaterialization::begin)
    }

    /// Bytes that a task holds for it.
    pub(super) fn kept_bytes(&self, trial: Option<&Trial>) -> usize {
        self.late.as_ref().zip(trial).map_or(0, |(late, trial)| late.kept_bytes(trial))
    }

    /// Measures a task, if it is one that is measured.
    pub(super) fn clock(&self, trial: Option<&Trial>) -> ReadClock {
        self.late.as_ref().zip(trial).map(|(late, trial)| late.clock(trial)).unwrap_or_default()
    }

    /// A task has read all of a partition, and given so many rows.
    pub(super) fn end(&self, trial: Option<&Trial>, partition: usize, given: usize, clock: &ReadClock) {
        if let Some((late, trial)) = self.late.as_ref().zip(trial) {
            late.end(trial, partition, given, clock.cost());
        }
    }

    /// The rows of a partition, which are the same in both ways.
    pub(super) fn execute(
        self: &Arc<Self>,
        trial: Option<&Trial>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let is_late = trial.is_some_and(Trial::is_late);
        if self.pruned.is_none() && !is_late {
            return self.scan.execute(partition, Arc::clone(context));
        }
        let (scanning, trial, context) = (Arc::clone(self), trial.cloned(), Arc::clone(context));
        let batches = stream::once(async move { scanning.batches(trial, partition, context).await }).try_flatten();
        Ok(stream_of(self.scan.schema(), batches.boxed()))
    }

    async fn batches(
        &self,
        trial: Option<Trial>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let group = file_scan(&self.scan).and_then(|config| config.file_groups.get(partition));
        let files = group.map_or(&[] as &[_], |group| group.files());
        let left = match &self.pruned {
            Some(pruned) => pruned.pruning.left(partition, files).await,
            None => Left::unknown(files),
        };
        if left.is_less && left.files.is_empty() {
            return Ok(Box::pin(EmptyRecordBatchStream::new(self.scan.schema())));
        }
        match (&self.late, trial.filter(Trial::is_late), &self.pruned) {
            (Some(late), Some(trial), _) => late.execute(&trial, partition, &left, context).await,
            (_, _, Some(pruned)) if left.is_known => pruned.execute(&left, context),
            _ => self.scan.execute(partition, context),
        }
    }
}
