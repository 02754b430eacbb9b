//! A limit inside a stage: no task has to give more rows than all of them together.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use futures::{StreamExt, TryStreamExt, stream};

use super::{MapStep, StepTask};
use crate::physical::tasks::stream_of;

/// Ends each task after a number of rows, so that what is below stops early. The exact limit is taken above.
#[derive(Debug)]
pub(crate) struct LimitStep {
    fetch: usize,
    known: EquivalenceProperties,
}

impl LimitStep {
    /// At most `fetch` rows per task, of which something is `known`.
    pub(crate) fn new(fetch: usize, known: EquivalenceProperties) -> Self {
        Self { fetch, known }
    }
}

impl MapStep for LimitStep {
    fn name(&self) -> String {
        format!("Limit({})", self.fetch)
    }

    fn schema(&self) -> &SchemaRef {
        self.known.schema()
    }

    fn known(&self) -> Option<&EquivalenceProperties> {
        Some(&self.known)
    }

    fn cardinality(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn said(&self) -> Option<String> {
        Some(self.name())
    }

    fn keeps_first(&self, rows: usize) -> bool {
        self.fetch >= rows
    }

    fn run(&self, batches: SendableRecordBatchStream, _task: StepTask) -> Result<SendableRecordBatchStream> {
        Ok(limited(batches, self.fetch))
    }
}

/// The first `fetch` rows of a stream. It ends without polling for more.
pub(crate) fn limited(batches: SendableRecordBatchStream, fetch: usize) -> SendableRecordBatchStream {
    let schema = batches.schema();
    let rows = stream::try_unfold((batches, fetch), |(mut batches, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(batch) = batches.try_next().await? else {
            return Ok(None);
        };
        let rows = batch.num_rows().min(left);
        Ok(Some((batch.slice(0, rows), (batches, left - rows))))
    });
    stream_of(Arc::clone(&schema), rows.boxed())
}
