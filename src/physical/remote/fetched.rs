//! The rows that an exchange gives some tasks of a stage, as a plan.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

/// Gives the rows anew each time it is called.
type Fetch = Arc<dyn Fn() -> SendableRecordBatchStream + Send + Sync>;

/// What `fetch` gives, rows with columns of `schema`, as a plan with one partition.
pub(crate) fn fetched(schema: SchemaRef, fetch: Fetch) -> Result<Arc<dyn ExecutionPlan>> {
    let rows = Arc::new(Fetched { schema: Arc::clone(&schema), fetch });
    Ok(Arc::new(StreamingTableExec::try_new(schema, vec![rows], None, None, false, None)?))
}

struct Fetched {
    schema: SchemaRef,
    fetch: Fetch,
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetched")
    }
}

impl PartitionStream for Fetched {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        (self.fetch)()
    }
}
