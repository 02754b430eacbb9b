//! What the tasks of a stage did: the raw material of `stats()` and EXPLAIN ANALYZE.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, Label, Metric, MetricBuilder, MetricValue};
use datafusion::physical_plan::metrics::{MetricsSet, Time};
use futures::Stream;
use parking_lot::Mutex;

use super::cpu_meter::CpuMeter;
use super::failures::FailureLog;
use super::history::{TaskHistory, TaskRecord, TaskSummary};
use super::task::Task;
use crate::block::{BlockMetadata, TaskId};
use crate::runtime::OpStatus;
use crate::store::Owner;

/// Metrics of one stage. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageMetrics {
    set: ExecutionPlanMetricsSet,
    /// Rows and time of all tasks together: there may be a million of them.
    counts: Arc<OnceLock<(Count, Time)>>,
    tasks: Arc<Mutex<TaskHistory>>,
    owner: Arc<Owner>,
    failures: Arc<FailureLog>,
    schedule: Arc<Mutex<Option<OpStatus>>>,
    running: Arc<Mutex<BTreeMap<TaskId, Instant>>>,
}

impl StageMetrics {
    /// Tasks that run now, and since when. Those of two executions of a plan at once are told apart by nothing.
    pub(crate) fn running(&self) -> Vec<(TaskId, Instant)> {
        self.running.lock().iter().map(|(task, since)| (task.clone(), *since)).collect()
    }

    /// What the scheduler has seen of the stage in its last execution, once that has ended.
    pub(crate) fn schedule(&self) -> Option<OpStatus> {
        self.schedule.lock().clone()
    }

    /// Remembers what the scheduler has seen.
    pub(crate) fn scheduled(&self, status: OpStatus) {
        *self.schedule.lock() = Some(status);
    }

    /// Which failures its tasks have tolerated.
    pub(crate) fn failures(&self) -> Arc<FailureLog> {
        Arc::clone(&self.failures)
    }

    /// Rows that its tasks have given so far, those that run still too.
    pub(crate) fn rows(&self) -> usize {
        self.counts.get().map_or(0, |(rows, _)| rows.value())
    }

    /// The tasks that ended.
    pub(crate) fn ended(&self) -> TaskSummary {
        self.tasks.lock().all
    }

    /// The last thousand of them, in the order in which they ended.
    pub(crate) fn last_ended(&self) -> Vec<TaskRecord> {
        self.tasks.lock().last.iter().copied().collect()
    }

    /// Who the stage is to the store, with what it moved in and out.
    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// A task whose time and output are recorded here.
    pub(crate) fn measure(&self, task: Task) -> Task {
        let (rows, time) = self.counts.get_or_init(|| {
            (MetricBuilder::new(&self.set).output_rows(0), MetricBuilder::new(&self.set).elapsed_compute(0))
        });
        let measured = MeasuredStream {
            task: task.id.clone(),
            has_begun: false,
            inner: task.batches,
            record: TaskRecord::default(),
            cpu: CpuMeter::default(),
            waiting_since: None,
            given_at: None,
            rows: rows.clone(),
            time: time.clone(),
            stage: self.clone(),
        };
        Task { id: task.id, batches: Box::pin(measured), input: task.input }
    }

    /// The metrics that EXPLAIN ANALYZE prints.
    pub(crate) fn metrics(&self) -> MetricsSet {
        let mut set = self.set.clone_inner().aggregate_by_name();
        let mut add = |name: &'static str, value: usize| {
            let count = Count::new();
            count.add(value);
            let value = MetricValue::Count { name: name.into(), count };
            set.push(Arc::new(Metric::new_with_labels(value, None, Vec::<Label>::new())));
        };
        add("tasks", self.ended().count());
        if let Some(schedule) = self.schedule() {
            add("ran_ms", schedule.ran.as_millis() as usize);
            let waited: Duration = schedule.waited.values().sum();
            add("waited_ms", waited.as_millis() as usize);
            let held_back: Duration = schedule.held_back.values().sum();
            if !held_back.is_zero() {
                add("backpressured_ms", held_back.as_millis() as usize);
            }
        }
        let failures = [
            ("failed_rows", self.failures.failed_rows()),
            ("errored_tasks", self.failures.errored_tasks()),
            ("retries", self.failures.retries()),
        ];
        failures.into_iter().filter(|(_, count)| *count > 0).for_each(|(name, count)| add(name, count));
        if self.owner.put_blocks() > 0 {
            add("blocks", self.owner.put_blocks());
            add("spilled_bytes", self.owner.spilled_bytes());
            add("restored_bytes", self.owner.restored_bytes());
            if self.owner.spilled_blocks() > 0 {
                add("spill_micros", self.owner.spill_time().as_micros() as usize);
                add("restore_micros", self.owner.restore_time().as_micros() as usize);
                add("clean_evictions", self.owner.clean_evictions());
                add("dirty_evictions", self.owner.dirty_evictions());
            }
        }
        set
    }
}

struct MeasuredStream {
    task: TaskId,
    has_begun: bool,
    inner: SendableRecordBatchStream,
    record: TaskRecord,
    cpu: CpuMeter,
    waiting_since: Option<Instant>,
    given_at: Option<Instant>,
    rows: Count,
    time: Time,
    stage: StageMetrics,
}

impl Stream for MeasuredStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let start = Instant::now();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.stage.running.lock().insert(self.task.clone(), start);
        }
        let cpu = self.cpu.begin();
        if let Some(since) = self.waiting_since.take() {
            self.record.wall += start - since;
            self.record.waited += start - since;
        }
        if let Some(since) = self.given_at.take() {
            self.record.unasked += start - since;
        }
        let polled = self.inner.as_mut().poll_next(cx);
        let end = Instant::now();
        self.cpu.end(cpu, end - start);
        self.record.wall += end - start;
        self.time.add_duration(end - start);
        match &polled {
            Poll::Ready(Some(Ok(batch))) => {
                let size = BlockMetadata::of(std::slice::from_ref(batch));
                self.record.output.num_rows += size.num_rows;
                self.record.output.size_bytes += size.size_bytes;
                self.rows.add(size.num_rows);
                self.given_at = Some(end);
            }
            Poll::Pending => self.waiting_since = Some(end),
            _ => {}
        }
        polled
    }
}

impl RecordBatchStream for MeasuredStream {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }
}

impl Drop for MeasuredStream {
    fn drop(&mut self) {
        self.stage.running.lock().remove(&self.task);
        self.record.cpu = self.cpu.total();
        self.stage.tasks.lock().push(self.record);
    }
}
