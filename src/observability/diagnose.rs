//! Adds what joins are expected to give to what EXPLAIN prints, and to what EXPLAIN ANALYZE does, also what they gave
//! and the bottleneck.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::common::Result;
use datafusion::common::display::human_readable::human_readable_count;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, stream};

use super::bottleneck::bottleneck;
use crate::physical::{IntoPlan, Operator, PlanExt, equi_join, equi_joins, stream_of};

/// Runs an `AnalyzeExec`, and then says what the joins of the plan below it were expected to give and gave, and what
/// took the time; of a plan that is only explained, what is expected.
#[derive(Debug)]
pub(crate) struct DiagnoseExec {
    input: Arc<dyn ExecutionPlan>,
    expected: Arc<[String]>,
}

impl DiagnoseExec {
    /// Above an `AnalyzeExec` or an `ExplainExec`, of a plan whose joins are expected to give so many rows, where that
    /// is known.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, joins: &[(Arc<dyn ExecutionPlan>, Option<usize>)]) -> Self {
        let expected = joins.iter().map(|(join, rows)| {
            let rows = rows.map_or_else(|| "unknown".to_owned(), human_readable_count);
            format!("{}: {rows} rows expected", keys_of(join))
        });
        Self { input, expected: expected.collect() }
    }
}

/// The kind and the keys of a join, like `Inner (a = b)`.
fn keys_of(plan: &Arc<dyn ExecutionPlan>) -> String {
    let Some(join) = equi_join(plan) else { return plan.name().to_owned() };
    let text = |key: &Arc<dyn PhysicalExpr>| fmt_sql(key.as_ref()).to_string();
    let on: Vec<String> = join.on().iter().map(|(a, b)| format!("{} = {}", text(a), text(b))).collect();
    format!("{} ({})", join.join_type(), on.join(", "))
}

/// Whether a part of a plan is in one that ran in other processes.
fn ran_elsewhere(plan: &Arc<dyn ExecutionPlan>, part: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.as_operator().is_some_and(Operator::inputs_are_elsewhere) {
        return contains(plan, part);
    }
    plan.children().into_iter().any(|input| ran_elsewhere(input, part))
}

fn contains(plan: &Arc<dyn ExecutionPlan>, part: &Arc<dyn ExecutionPlan>) -> bool {
    Arc::ptr_eq(plan, part) || plan.children().into_iter().any(|input| contains(input, part))
}

impl Operator for DiagnoseExec {
    fn name(&self) -> &'static str {
        "DiagnoseExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self { input: inputs.swap_remove(0), expected: Arc::clone(&self.expected) }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (schema, input) = (self.schema(), Arc::clone(&self.input));
        let (started, threads) = (Instant::now(), context.session_config().target_partitions());
        let analyzed = self.input.execute(partition, context)?;
        let (of, expected) = (Arc::clone(&schema), Arc::clone(&self.expected));
        let said = stream::once(async move {
            let rows = match input.downcast_ref::<AnalyzeExec>() {
                Some(analyzed) => {
                    let plan = analyzed.input();
                    let joins = equi_joins(plan).into_iter().zip(expected.iter());
                    let gave = joins.map(|(join, expected)| match ran_elsewhere(plan, &join) {
                        true => format!("{expected}, given elsewhere"),
                        false => {
                            let gave = join.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0);
                            format!("{expected}, {} given", human_readable_count(gave))
                        }
                    });
                    let bottleneck = bottleneck(plan.as_ref(), started.elapsed(), Duration::ZERO, threads);
                    gave.map(|text| ("Join", text)).chain([("Bottleneck", bottleneck)]).collect()
                }
                None => expected.iter().map(|text| ("Join", text.clone())).collect::<Vec<_>>(),
            };
            let (names, texts): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let columns: [ArrayRef; 2] = [Arc::new(StringArray::from(names)), Arc::new(StringArray::from(texts))];
            let columns = columns.iter().zip(of.fields()).map(|(text, field)| Ok(cast(text, field.data_type())?));
            Ok(RecordBatch::try_new(Arc::clone(&of), columns.collect::<Result<_>>()?)?)
        });
        // What is analyzed has run when its text is there.
        Ok(stream_of(schema, analyzed.chain(said).boxed()))
    }
}
