//! The jobs that are run.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::Outcome;
use crate::gate_exec::{GateExec, Place};
use crate::gates::Gates;

/// Of the stage that makes rows.
pub(crate) const TASKS: u64 = 12;
pub(crate) const ROWS: u64 = TASKS * ROWS_PER_TASK;
const ROWS_PER_TASK: u64 = 100;
/// Tasks of the stage behind the shuffle.
const BUCKETS: usize = 6;

/// The numbers from 0 to `ROWS`, shuffled to a second stage that has the gates.
pub(crate) fn shuffle(gates: &Gates, place: Place) -> Outcome<Arc<dyn ExecutionPlan>> {
    let of_task = |task: u64| (task * ROWS_PER_TASK..(task + 1) * ROWS_PER_TASK).collect();
    let rows = source((0..TASKS).map(of_task))?;
    let by_hash = Partitioning::Hash(vec![Arc::new(Column::new("id", 0))], BUCKETS);
    let shuffled = Arc::new(RepartitionExec::try_new(rows, by_hash)?);
    let gate = Arc::new(GateExec::new(shuffled, place, gates.clone()));
    Ok(Arc::new(CoalescePartitionsExec::new(gate)))
}

/// One stage with a task, and a gate, for each of the names.
pub(crate) fn one_stage(gates: &Gates, names: impl Iterator<Item = u64>) -> Outcome<Arc<dyn ExecutionPlan>> {
    let input = source(names.map(|name| vec![name]))?;
    Ok(Arc::new(GateExec::new(input, Place::Named, gates.clone())))
}

/// A partition for each list of ids.
fn source(ids: impl Iterator<Item = Vec<u64>>) -> Outcome<Arc<dyn ExecutionPlan>> {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::UInt64, false)]));
    let batch = |ids: Vec<u64>| {
        let column = Arc::new(UInt64Array::from(ids));
        Ok(vec![RecordBatch::try_new(Arc::clone(&schema), vec![column])?])
    };
    let partitions = ids.map(batch).collect::<Outcome<Vec<_>>>()?;
    Ok(MemorySourceConfig::try_new_exec(&partitions, schema, None)?)
}
