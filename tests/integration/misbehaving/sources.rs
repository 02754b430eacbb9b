//! The sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use blockyard::{Datasource, ReadPlan, ReadRequest};
use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;

/// 100 ids in batches of other sizes each time; the first two times it breaks off on the way.
#[derive(Debug, Clone, Default)]
pub(super) struct BreaksOff {
    pub(super) opened: Arc<AtomicUsize>,
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
}

#[async_trait]
impl Datasource for BreaksOff {
    fn name(&self) -> &str {
        "ReadBreaksOff"
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        Ok(vec![Arc::new(Task { source: self.clone(), schema: schema() }).into()].into())
    }
}

#[derive(Debug)]
struct Task {
    source: BreaksOff,
    schema: SchemaRef,
}

impl PartitionStream for Task {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let time = self.source.opened.fetch_add(1, SeqCst);
        let size = [30, 7, 9][time.min(2)];
        let batch = |first: i64| {
            let ids = Int64Array::from_iter_values(first..(first + size).min(100));
            Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as _)])?)
        };
        let mut batches: Vec<Result<RecordBatch>> = (0..100).step_by(size as usize).map(batch).collect();
        if time < 2 {
            batches.truncate(2 + 6 * time);
            batches.push(Err(exec_datafusion_err!("connection reset by peer")));
        }
        Box::pin(RecordBatchStreamAdapter::new(schema(), futures::stream::iter(batches)))
    }
}

/// Tasks of one row, each of which waits until so many of them run.
#[derive(Debug, Clone)]
pub(super) struct Meets {
    pub(super) tasks: usize,
    pub(super) barrier: Arc<tokio::sync::Barrier>,
}

#[async_trait]
impl Datasource for Meets {
    fn name(&self) -> &str {
        "ReadMeets"
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        let task = |_| Arc::new(MeetingTask { source: self.clone(), schema: schema() }).into();
        Ok((0..self.tasks).map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct MeetingTask {
    source: Meets,
    schema: SchemaRef,
}

impl PartitionStream for MeetingTask {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let barrier = Arc::clone(&self.source.barrier);
        let row = futures::stream::once(async move {
            barrier.wait().await;
            Ok(RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(vec![1])) as _)])?)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema(), row))
    }
}

/// Panics when it is planned.
#[derive(Debug)]
pub(super) struct Panics;

#[async_trait]
impl Datasource for Panics {
    fn name(&self) -> &str {
        "ReadPanics"
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        panic!("no plan")
    }
}

/// All consumers hear of it, who would wait for ever for a dealer that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_hear_of_a_dealer_that_panics() {
    let dataset = crate::fixtures::context().read_datasource(Arc::new(Panics), None).unwrap();
    let options = blockyard::SplitOptions { batch_size: Some(4), ..Default::default() };
    for mut split in dataset.streaming_split(2, options).unwrap() {
        let heard = async { split.next_epoch().await.map(drop) };
        let error = heard.await.unwrap_err().to_string();
        assert!(error.contains("dealing rows panicked: no plan"), "{error}");
    }
}
