//! What a write takes itself: encoding, and waiting for where it goes; not the rows that it waits for.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

/// The metric of the time in which anything was written, on a CPU or not.
const WRITE_TIME: &str = "write_time";

/// Adds up the time of writing. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WriteClock {
    wall: Time,
    cpu: Time,
}

impl WriteClock {
    /// A clock that shows among these metrics.
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let wall = MetricBuilder::new(metrics).subset_time(WRITE_TIME, 0);
        Self { wall, cpu: MetricBuilder::new(metrics).elapsed_compute(0) }
    }

    /// Counts work that does not wait for rows.
    pub(crate) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let (wall, cpu) = (Instant::now(), ThreadTime::now());
        let result = work();
        self.cpu.add_duration(cpu.elapsed());
        self.wall.add_duration(wall.elapsed());
        result
    }

    /// Counts a future, from its first poll to its end, without what it waits for `input`.
    pub(crate) async fn time_future<F: Future>(&self, input: &InputTime, work: F) -> F::Output {
        let mut work = pin!(work);
        let (started, mut cpu) = (Instant::now(), Duration::ZERO);
        let result = poll_fn(|context| {
            let begun = ThreadTime::now();
            let polled = work.as_mut().poll(context);
            cpu += begun.elapsed();
            polled
        });
        let result = result.await;
        self.cpu.add_duration(cpu.saturating_sub(input.cpu()));
        self.wall.add_duration(started.elapsed().saturating_sub(input.wall()));
        result
    }
}

/// Time in which a write was there, if the metrics have one.
pub(crate) fn write_time(metrics: &MetricsSet) -> Option<Duration> {
    metrics.sum_by_name(WRITE_TIME).map(|time| Duration::from_nanos(time.as_usize() as u64))
}

/// Time that the rows of a write took to come. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct InputTime(Arc<(AtomicU64, AtomicU64)>);

impl InputTime {
    fn wall(&self) -> Duration {
        Duration::from_nanos(self.0.0.load(Relaxed))
    }

    fn cpu(&self) -> Duration {
        Duration::from_nanos(self.0.1.load(Relaxed))
    }

    /// The same rows, whose time is counted.
    pub(crate) fn of(
        &self,
        batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let (time, mut batches, mut since) = (Arc::clone(&self.0), Box::pin(batches), None);
        futures::stream::poll_fn(move |context| {
            let (started, cpu) = (*since.get_or_insert_with(Instant::now), ThreadTime::now());
            let polled = batches.as_mut().poll_next(context);
            time.1.fetch_add(cpu.elapsed().as_nanos() as u64, Relaxed);
            if polled.is_ready() {
                time.0.fetch_add(started.elapsed().as_nanos() as u64, Relaxed);
                since = None;
            }
            polled
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::record_batch;
    use futures::{TryStreamExt, stream};

    #[tokio::test]
    async fn what_the_input_takes_is_not_the_time_of_the_write() {
        let metrics = ExecutionPlanMetricsSet::new();
        let (clock, input) = (WriteClock::new(&metrics), InputTime::default());
        let batch = record_batch!(("x", Int32, [1, 2, 3])).unwrap();
        // The input computes until the clock of the thread has moved by as much.
        let compute = || {
            let begun = ThreadTime::now();
            while begun.elapsed() < Duration::from_millis(20) {}
        };
        let batches = stream::iter([batch.clone(), batch]).map(move |batch| {
            compute();
            Ok(batch)
        });
        let rows = clock.time_future(&input, input.of(batches).try_fold(0, |n, b| async move { Ok(n + b.num_rows()) }));
        assert_eq!(rows.await.unwrap(), 6);
        assert!(input.cpu() >= Duration::from_millis(40) && input.wall() >= input.cpu());
        let computed = metrics.clone_inner().elapsed_compute().unwrap() as u64;
        assert!(Duration::from_nanos(computed) < Duration::from_millis(20), "{computed}");
        clock.time(compute);
        let after = metrics.clone_inner().elapsed_compute().unwrap() as u64;
        assert!(after - computed >= 20_000_000, "{after}");
        assert!(write_time(&metrics.clone_inner()).unwrap() >= Duration::from_millis(20));
    }
}
