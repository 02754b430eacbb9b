//! All rows in order.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::Scheme;
use crate::block::TaskId;
use crate::physical::exchange::buckets::{Batches, Buckets, MapInput};
use crate::physical::exchange::sorted::{self, SortedRows};
use crate::physical::operator::TaskIdentity;

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
}

#[async_trait]
impl Buckets for SortedRows {
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>> {
        Ok((index < self.num_tasks()).then(|| (TaskId::root(index), self.rows_of(index))))
    }
}
