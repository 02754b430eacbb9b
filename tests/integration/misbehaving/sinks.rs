//! Sinks that fail, and sources that do not give what they say.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use blockyard::{Datasink, Datasource, ReadPlan, ReadRequest, ReadTask, TaskOrigin, WriteJob};
use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fixtures::context;

/// What a sink does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Each block is written the second time.
    ResetsOnce,
    FailsToWrite,
    FailsToCommit,
    /// A write that does not end.
    Hangs,
    Ignores,
}

/// A sink that notes what it is told.
#[derive(Debug, Clone)]
struct Notes {
    does: Does,
    tried: Arc<Mutex<HashSet<String>>>,
    committed: Arc<AtomicUsize>,
    aborted: Arc<Mutex<Vec<String>>>,
    hangs: Arc<Notify>,
    was_aborted: Arc<Notify>,
}

impl Notes {
    fn new(does: Does) -> Self {
        Self {
            does,
            tried: Arc::default(),
            committed: Arc::default(),
            aborted: Arc::default(),
            hangs: Arc::default(),
            was_aborted: Arc::default(),
        }
    }
}

#[async_trait]
impl Datasink for Notes {
    type Job = Self;

    fn name(&self) -> &str {
        "WriteNotes"
    }

    async fn begin(&self, _schema: SchemaRef) -> Result<Option<Self>> {
        Ok((self.does != Does::Ignores).then(|| self.clone()))
    }
}

#[async_trait]
impl WriteJob for Notes {
    type Written = usize;

    async fn write(&self, block: &str, rows: SendableRecordBatchStream) -> Result<usize> {
        let is_first = self.tried.lock().insert(block.to_owned());
        let batches: Vec<RecordBatch> = rows.try_collect().await?;
        match self.does {
            Does::ResetsOnce if is_first => exec_err!("connection reset by peer"),
            Does::FailsToWrite => exec_err!("there is no such place"),
            Does::Hangs => {
                self.hangs.notify_one();
                std::future::pending().await
            }
            _ => Ok(batches.iter().map(RecordBatch::num_rows).sum()),
        }
    }

    async fn commit(&self, written: Vec<usize>) -> Result<()> {
        if self.does == Does::FailsToCommit {
            return exec_err!("somebody else was faster");
        }
        self.committed.fetch_add(written.iter().sum(), SeqCst);
        Ok(())
    }

    async fn abort(&self, error: &DataFusionError) -> Result<()> {
        self.aborted.lock().push(error.to_string());
        self.was_aborted.notify_one();
        Ok(())
    }
}

#[tokio::test]
async fn a_block_that_is_written_again_counts_once() {
    let (sink, context) = (Notes::new(Does::ResetsOnce), context());
    let ds = context.range_in_blocks(1000, 10).unwrap();
    assert_eq!(ds.write_datasink(sink.clone()).await.unwrap(), 1000);
    assert_eq!(sink.committed.load(SeqCst), 1000);
    assert_eq!((sink.tried.lock().len(), sink.aborted.lock().len()), (10, 0));
    let ignores = Notes::new(Does::Ignores);
    assert_eq!(ds.write_datasink(ignores.clone()).await.unwrap(), 0);
    assert!(ignores.tried.lock().is_empty());
}

#[tokio::test]
async fn a_sink_that_fails_is_told_so_once() {
    for (does, expected) in
        [(Does::FailsToWrite, "there is no such place"), (Does::FailsToCommit, "somebody else was faster")]
    {
        let (sink, context) = (Notes::new(does), context());
        let error = context.range_in_blocks(1000, 10).unwrap().write_datasink(sink.clone()).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let aborted = sink.aborted.lock().clone();
        assert!(aborted.len() == 1 && aborted[0].contains(expected), "{aborted:?}");
        assert_eq!(sink.committed.load(SeqCst), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cancelled_is_aborted() {
    let (sink, context) = (Notes::new(Does::Hangs), context());
    let ds = context.range_in_blocks(1000, 10).unwrap();
    {
        let (write, hangs) = (std::pin::pin!(ds.write_datasink(sink.clone())), std::pin::pin!(sink.hangs.notified()));
        let written = futures::future::select(write, hangs).await;
        assert!(matches!(written, futures::future::Either::Right(_)), "it cannot have ended");
    }
    sink.was_aborted.notified().await;
    assert_eq!(*sink.aborted.lock(), ["Execution error: the write was cancelled"]);
}

#[tokio::test]
async fn a_sink_is_no_source() {
    let (context, sink) = (context(), Notes::new(Does::Ignores));
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    context.register_sink("notes", schema, sink).unwrap();
    let error = crate::fixtures::sql_error(&context, "SELECT * FROM notes").await;
    assert!(error.contains("WriteNotes is a sink"), "{error}");
    let error = crate::fixtures::sql_error(&context, "INSERT OVERWRITE notes SELECT id FROM range(1)").await;
    assert!(error.contains("only takes more rows"), "{error}");
}

/// What a source gives in place of what it has said.
#[derive(Debug, Clone, Copy)]
enum Lie {
    FewerRows,
    OtherColumns,
    Fails,
}

#[derive(Debug)]
struct Lies(Lie);

#[async_trait]
impl Datasource for Lies {
    fn name(&self) -> &str {
        "ReadLies"
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
    }

    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        let (lie, schema) = (self.0, self.schema());
        let task = |number: usize| {
            let columns = Arc::clone(&schema);
            let task = ReadTask::new(Arc::clone(&schema), move |_| {
                let ids = Int64Array::from(vec![1, 2]);
                let batch = match lie {
                    Lie::FewerRows | Lie::OtherColumns if number == 0 => {
                        RecordBatch::try_from_iter([("id", Arc::new(ids) as _)])
                    }
                    Lie::FewerRows => RecordBatch::try_from_iter([("id", Arc::new(ids.slice(0, 1)) as _)]),
                    Lie::OtherColumns => RecordBatch::try_from_iter([("ids", Arc::new(ids) as _)]),
                    Lie::Fails => Err(datafusion::arrow::error::ArrowError::ComputeError("odd rows".to_owned())),
                };
                let batch = batch.map_err(|e| exec_datafusion_err!("{e}"));
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&columns), futures::stream::iter([batch])))
            });
            let origin = TaskOrigin { file: format!("/lies/{number}"), first_row: 0 };
            ReadTask { rows: Some(2), origin: Some(origin), ..task }
        };
        Ok((0..2).map(task).collect::<Vec<_>>().into())
    }
}

#[tokio::test]
async fn a_source_that_gives_something_else_is_an_error() {
    for (lie, expected) in [
        (Lie::FewerRows, "ReadLies task 1 gave 1 rows, and said that it has 2"),
        (Lie::OtherColumns, "ReadLies task 1 gave rows with the columns"),
        (Lie::Fails, "running ReadLies task 0 over /lies/0"),
    ] {
        let ds = context().read_datasource(Arc::new(Lies(lie)), None).unwrap();
        let error = ds.take_all().await.unwrap_err().strip_backtrace();
        assert!(error.contains(expected), "{error}");
    }
}
