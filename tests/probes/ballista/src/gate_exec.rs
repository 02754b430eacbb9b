//! An operator that holds its task at a gate, and how it gets to executors.

use std::fmt::{self, Formatter};
use std::path::Path;
use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use futures::{StreamExt, TryStreamExt};

use crate::gates::Gates;

/// Where the gate stands, and what names the task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// Behind the input, whose first value is the name.
    Named = 0,
    /// Before the input is opened. The name is the number that Ballista gives the task.
    BeforeInput = 1,
    /// Behind the input, with such a name.
    AfterInput = 2,
}

#[derive(Clone, Debug)]
pub(crate) struct GateExec {
    input: Arc<dyn ExecutionPlan>,
    place: Place,
    gates: Gates,
}

impl GateExec {
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, place: Place, gates: Gates) -> Self {
        Self { input, place, gates }
    }

    /// The input is read as a whole, and waits here.
    async fn run(self, partition: usize, ctx: Arc<TaskContext>) -> Result<Vec<RecordBatch>> {
        let number = task_number(&ctx)?;
        if self.place == Place::BeforeInput {
            self.gates.pass(&number).await?;
        }
        let batches: Vec<RecordBatch> = self.input.execute(partition, ctx)?.try_collect().await?;
        let name = if self.place == Place::Named { first_value(&batches)? } else { number };
        if self.place != Place::BeforeInput {
            self.gates.pass(&name).await?;
        }
        self.gates.add_done(&name)?;
        Ok(batches)
    }
}

/// Ballista calls a task "TID job/stage.attempt/task.attempt".
fn task_number(ctx: &TaskContext) -> Result<String> {
    let id = ctx.task_id().ok_or_else(|| internal_datafusion_err!("the task has no id"))?;
    let task = id.rsplit('/').next().unwrap_or_default();
    Ok(task.split('.').next().unwrap_or_default().to_owned())
}

fn first_value(batches: &[RecordBatch]) -> Result<String> {
    let column = batches.first().and_then(|batch| batch.column(0).as_primitive_opt::<UInt64Type>());
    let value = column.and_then(|ids| ids.values().first());
    value.map(u64::to_string).ok_or_else(|| internal_datafusion_err!("the task has no value to be named by"))
}

impl DisplayAs for GateExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter) -> fmt::Result {
        write!(f, "GateExec: {:?}", self.place)
    }
}

impl ExecutionPlan for GateExec {
    fn name(&self) -> &str {
        "GateExec"
    }

    /// Asked for each time: a task has a part of the input, and then of this too.
    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.place, self.gates.clone())))
    }

    fn execute(&self, partition: usize, ctx: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batches = futures::stream::once(self.clone().run(partition, ctx));
        let batches = batches.map_ok(|batches| futures::stream::iter(batches.into_iter().map(Ok))).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches.boxed())))
    }
}

/// Carries `GateExec`, and has Ballista's codec for everything else.
#[derive(Debug, Default)]
pub(crate) struct GateCodec {
    inner: BallistaPhysicalExtensionCodec,
}

/// Begins what is ours. A place and a directory follow.
const MAGIC: &[u8] = b"ballista-probe-gate\0";

impl PhysicalExtensionCodec for GateCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some([place, directory @ ..]) = buf.strip_prefix(MAGIC) else {
            return self.inner.try_decode(buf, inputs, ctx, converter);
        };
        let place = match place {
            0 => Place::Named,
            1 => Place::BeforeInput,
            2 => Place::AfterInput,
            other => return Err(internal_datafusion_err!("a gate has no place {other}")),
        };
        let [input] = inputs else {
            return Err(internal_datafusion_err!("a gate has {} inputs", inputs.len()));
        };
        let directory = String::from_utf8_lossy(directory).into_owned();
        Ok(Arc::new(GateExec::new(Arc::clone(input), place, Gates::of(Path::new(&directory)))))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(gate) = node.downcast_ref::<GateExec>() else {
            return self.inner.try_encode(node, buf, converter);
        };
        buf.extend_from_slice(MAGIC);
        buf.push(gate.place as u8);
        buf.extend_from_slice(gate.gates.directory().to_string_lossy().as_bytes());
        Ok(())
    }
}
