//! A projection inside a stage.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::execution_plan::CardinalityEffect;

use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::physical::said::said;

/// Computes columns from each row.
#[derive(Debug)]
pub(crate) struct ProjectStep {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    known: EquivalenceProperties,
}

impl ProjectStep {
    /// `expressions` give the columns of which something is `known`.
    pub(crate) fn new(expressions: Vec<Arc<dyn PhysicalExpr>>, known: EquivalenceProperties) -> Self {
        Self { expressions, known }
    }
}

impl MapStep for ProjectStep {
    fn name(&self) -> String {
        let show = |(expression, field): (&Arc<dyn PhysicalExpr>, &FieldRef)| {
            let text = fmt_sql(expression.as_ref()).to_string();
            let plain = expression.downcast_ref::<Column>().is_some_and(|c| c.name() == field.name());
            if plain || text == *field.name() { field.name().clone() } else { format!("{text} as {}", field.name()) }
        };
        let shown: Vec<_> = self.expressions.iter().zip(self.schema().fields()).map(show).collect();
        format!("Project({})", shown.join(", "))
    }

    fn schema(&self) -> &SchemaRef {
        self.known.schema()
    }

    fn known(&self) -> Option<&EquivalenceProperties> {
        Some(&self.known)
    }

    fn cardinality(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn said(&self) -> Option<String> {
        Some(format!("Project({})", said(&self.expressions)?))
    }

    fn keeps_row_numbers(&self) -> bool {
        true
    }

    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream> {
        let push = ProjectPush { expressions: self.expressions.clone(), schema: Arc::clone(self.schema()) };
        Ok(push_stream(Arc::clone(self.schema()), batches, &task, push))
    }

    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.expressions.iter().collect()
    }
}

struct ProjectPush {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
}

impl Push for ProjectPush {
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let rows = batch.num_rows();
        let columns =
            self.expressions.iter().map(|e| e.evaluate(&batch)?.into_array(rows)).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        out.push_back(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?);
        Ok(())
    }
}
