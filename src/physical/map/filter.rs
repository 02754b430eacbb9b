//! A filter by expression inside a stage.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::execution_plan::CardinalityEffect;

use super::conditions::Conditions;
use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::physical::said::said;

/// Keeps the rows for which a predicate is true.
#[derive(Debug)]
pub(crate) struct FilterStep {
    predicate: Arc<dyn PhysicalExpr>,
    known: EquivalenceProperties,
}

impl FilterStep {
    /// Filters rows, of which something is `known` then.
    pub(crate) fn new(predicate: Arc<dyn PhysicalExpr>, known: EquivalenceProperties) -> Self {
        Self { predicate, known }
    }
}

impl MapStep for FilterStep {
    fn name(&self) -> String {
        format!("Filter({})", fmt_sql(self.predicate.as_ref()))
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
        Some(format!("Filter({})", said([&self.predicate])?))
    }

    fn is_filter(&self) -> bool {
        true
    }

    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream> {
        // Small batches that a selective filter leaves are put together.
        let kept = BatchCoalescer::new(Arc::clone(self.schema()), task.context.session_config().batch_size());
        let push = FilterPush { conditions: Conditions::of(&self.predicate, self.schema())?, kept };
        Ok(push_stream(Arc::clone(self.schema()), batches, &task, push))
    }

    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.predicate]
    }
}

struct FilterPush {
    conditions: Conditions,
    kept: BatchCoalescer,
}

impl Push for FilterPush {
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let keep = self.conditions.hold(&batch)?;
        match keep.true_count() {
            0 => {}
            n if n == batch.num_rows() && self.kept.is_empty() => out.push_back(batch),
            _ => self.kept.push_batch_with_filter(batch, &keep)?,
        }
        out.extend(std::iter::from_fn(|| self.kept.next_completed_batch()));
        Ok(())
    }

    fn finish(&mut self, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        self.kept.finish_buffered_batch()?;
        out.extend(std::iter::from_fn(|| self.kept.next_completed_batch()));
        Ok(())
    }
}
