//! All rows in order.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::{StreamExt, TryStreamExt, stream};

use super::Scheme;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::exchange::buckets::{Batches, Buckets, MapInput};
use crate::physical::exchange::distributed::{
    Distributed, Extent, Fetched, Fetching, KeptBy, RowRange, TaskRows, TaskSizes,
};
use crate::physical::exchange::sort_keys::RowPlace;
use crate::physical::exchange::sorted::{self, COPIES, SortedRows, Sorting};
use crate::physical::operator::TaskIdentity;
use crate::runtime::on_io_thread;

/// What processes sort at once has at least so many bytes.
const MIN_PART_BYTES: usize = 1 << 20;

/// Rows sorted, in blocks of neighbours.
#[derive(Debug)]
pub(crate) struct RangeScheme {
    /// The order.
    pub(crate) order: LexOrdering,
    /// Values of the first key at which a block begins; as many blocks as the sizes ask for where it is not said.
    pub(crate) boundaries: Option<Vec<ScalarValue>>,
}

impl fmt::Display for RangeScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.boundaries {
            None => write!(f, "range({})", self.order),
            Some(boundaries) => {
                let boundaries: Vec<_> = boundaries.iter().map(ToString::to_string).collect();
                write!(f, "range({}, boundaries=[{}])", self.order, boundaries.join(", "))
            }
        }
    }
}

#[async_trait]
impl Scheme for RangeScheme {
    fn map_name(&self) -> &'static str {
        "SortMap"
    }

    fn reduce_name(&self) -> &'static str {
        "SortReduce"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let sorted = sorted::map_side(&input, &self.order, self.boundaries.as_deref()).await?;
        input.balance.take(sorted.num_rows());
        Ok(Arc::new(sorted))
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        match self.boundaries {
            // As many as fit the memory.
            None => TaskIdentity::Unsteady,
            Some(_) => TaskIdentity::Own { is_whole: true },
        }
    }

    // So a sort below may go.
    fn needs_order(&self) -> bool {
        false
    }

    fn keys(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.order.iter().map(|key| &key.expr).collect()
    }

    fn distributed(&self) -> Option<&dyn Distributed> {
        self.boundaries.is_none().then_some(self)
    }
}

impl Distributed for RangeScheme {
    fn kept_by(&self) -> KeptBy {
        KeptBy::Keys(self.order.clone())
    }

    fn tasks(&self, units: &[&Extent], sizes: TaskSizes, context: &TaskContext) -> Result<Vec<TaskRows>> {
        let total: usize = units.iter().map(|unit| unit.bytes).sum();
        let threads = context.session_config().target_partitions();
        let most = BlockyardOptions::from_task(context).block_bytes(threads);
        let even = (total / sizes.least.max(1)).max(MIN_PART_BYTES);
        let target = most.min(even);
        let mut tasks: Vec<TaskRows> = Vec::new();
        for part in parts(units, sizes.sorted_bytes.min(even)) {
            match tasks.last_mut() {
                Some(task) if task.bytes + part.bytes <= target => {
                    task.ranges.extend(part.ranges);
                    task.bytes += part.bytes;
                }
                _ => tasks.push(part),
            }
        }
        Ok(tasks)
    }

    fn rows(&self, _id: TaskId, rows: TaskRows, fetching: Fetching) -> Result<Batches> {
        let (threads, order) = (fetching.context.session_config().target_partitions(), &self.order);
        let (schema, owner) = (Arc::clone(&fetching.schema), Arc::clone(&fetching.owner));
        let sorting = Sorting::new(order.iter().cloned().collect(), schema, &fetching.context, threads, &owner)?;
        let bytes = rows.bytes / rows.ranges.len().max(1);
        let sorted = stream::iter(rows.ranges).then(move |range| {
            let (fetching, sorting) = (fetching.clone(), sorting.clone());
            async move {
                let Fetched { batches, reserved } = fetching.all(range, bytes, COPIES).await?;
                on_io_thread(move || {
                    let keys = batches.iter().map(|batch| sorting.order.keys(batch)).collect::<Result<Vec<_>>>()?;
                    Ok(sorting.merged(batches, &keys, reserved))
                })
                .await
            }
        });
        Ok(sorted.map_ok(|merged| stream::iter(merged.batches())).try_flatten().boxed())
    }
}

/// All rows of units, in parts of about `target` bytes each.
fn parts(units: &[&Extent], target: usize) -> Vec<TaskRows> {
    let mut keys = Vec::new();
    for (number, unit) in units.iter().enumerate() {
        keys.extend(unit.keys.iter().map(|known| (&known.key, number, known.row, known.bytes)));
    }
    keys.sort_unstable();
    let (mut parts, mut from, mut bytes) = (Vec::new(), None::<RowPlace>, 0);
    for (key, run, row, more) in keys {
        if bytes > 0 && bytes + more > target {
            let place = RowPlace { key: key.clone(), run, row };
            let before = from.replace(place.clone());
            parts.push(TaskRows { ranges: vec![RowRange::Places(before, Some(place))], bytes });
            bytes = 0;
        }
        bytes += more;
    }
    parts.push(TaskRows { ranges: vec![RowRange::Places(from, None)], bytes });
    parts
}

#[async_trait]
impl Buckets for SortedRows {
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>> {
        Ok((index < self.num_tasks()).then(|| (TaskId::root(index), self.rows_of(index))))
    }
}
