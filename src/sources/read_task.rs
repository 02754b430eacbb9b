//! Tasks of a source: what each says of its rows, which is looked at while it runs.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, stream};

use crate::physical::{FilesOfTask, stream_of};

/// A part of the rows of a [`Datasource`](crate::Datasource). It may run several times.
#[derive(Debug, Clone)]
pub struct ReadTask {
    /// Gives the rows, each time that it runs.
    pub stream: Arc<dyn PartitionStream>,
    /// Exact number of its rows, if that is known. A task that gives another number fails.
    pub rows: Option<usize>,
    /// About how many bytes its rows take in memory, if that is known.
    pub bytes: Option<usize>,
    /// Bytes that it holds while it runs, beside the batches that it gives.
    pub held_bytes: usize,
    /// Where its rows are from, as errors tell it.
    pub origin: Option<TaskOrigin>,
}

/// Where rows of a task are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOrigin {
    /// A path, a URL, or whatever else tells a user where to look.
    pub file: String,
    /// Number of its first row there, from 0 on.
    pub first_row: usize,
}

impl From<TaskOrigin> for FilesOfTask {
    fn from(origin: TaskOrigin) -> Self {
        Self { paths: origin.file.into(), first_row: origin.first_row }
    }
}

impl<T: PartitionStream + 'static> From<Arc<T>> for ReadTask {
    fn from(stream: Arc<T>) -> Self {
        Self { stream, rows: None, bytes: None, held_bytes: 0, origin: None }
    }
}

impl ReadTask {
    /// The rows with the columns `schema` that `run` gives each time it is called.
    pub fn new<F>(schema: SchemaRef, run: F) -> Self
    where
        F: Fn(Arc<TaskContext>) -> SendableRecordBatchStream + Send + Sync + 'static,
    {
        Arc::new(Function { schema, run }).into()
    }

    /// No rows.
    pub(super) fn without_rows(schema: SchemaRef) -> Self {
        let columns = Arc::clone(&schema);
        Self {
            rows: Some(0),
            ..Self::new(schema, move |_| Box::pin(EmptyRecordBatchStream::new(Arc::clone(&columns))))
        }
    }

    /// Bytes of a row, if that is known.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        self.rows.filter(|rows| *rows > 0).zip(self.bytes).map(|(rows, bytes)| bytes.div_ceil(rows))
    }
}

/// A function as a task.
struct Function<F> {
    schema: SchemaRef,
    run: F,
}

impl<F> fmt::Debug for Function<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTask").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl<F> PartitionStream for Function<F>
where
    F: Fn(Arc<TaskContext>) -> SendableRecordBatchStream + Send + Sync,
{
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        (self.run)(context)
    }
}

/// The rows of a task, which fails where they are not what it has said.
pub(super) fn checked(source: &str, number: usize, task: &ReadTask, schema: &SchemaRef) -> Arc<dyn PartitionStream> {
    let (stream, rows, schema) = (Arc::clone(&task.stream), task.rows, Arc::clone(schema));
    Arc::new(Checked { name: format!("{source} task {number}"), stream, rows, schema })
}

#[derive(Debug)]
struct Checked {
    name: String,
    stream: Arc<dyn PartitionStream>,
    rows: Option<usize>,
    schema: SchemaRef,
}

impl PartitionStream for Checked {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (name, said, schema) = (self.name.clone(), self.rows, Arc::clone(&self.schema));
        let rows = (self.stream.execute(context), 0, name, schema);
        let next = move |(mut batches, rows, name, schema): (SendableRecordBatchStream, usize, String, SchemaRef)| async move {
            match batches.next().await.transpose()? {
                None if said.is_some_and(|said| said != rows) => {
                    exec_err!("{name} gave {rows} rows, and said that it has {}", said.unwrap_or_default())
                }
                None => Ok(None),
                Some(batch) => {
                    check_columns(&name, &schema, &batch)?;
                    let rows = rows + batch.num_rows();
                    Ok(Some((batch, (batches, rows, name, schema))))
                }
            }
        };
        stream_of(Arc::clone(&self.schema), stream::try_unfold(rows, next).boxed())
    }
}

fn check_columns(name: &str, said: &SchemaRef, batch: &RecordBatch) -> Result<()> {
    let given = batch.schema_ref();
    let is_same = || {
        let pairs = given.fields().iter().zip(said.fields());
        given.fields().len() == said.fields().len()
            && pairs.clone().all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type())
    };
    match Arc::ptr_eq(given, said) || is_same() {
        true => Ok(()),
        false => exec_err!("{name} gave rows with the columns {given}, and said that it has {said}"),
    }
}
