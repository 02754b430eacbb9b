//! Front door 1: the Dataset API. A dataset is a lazy plan; its methods build nodes, and nothing runs before it is
//! consumed.

mod all_to_all;
mod consume;
mod context;
mod cursor;
mod describe;
mod grouped;
mod iterate;
mod order;
mod pipeline;
mod repeatable;
mod replay;
mod split;
mod streaming_split;
mod transform;
mod write;

pub use context::{DataContext, Paths};
pub use grouped::GroupedDataset;
pub use iterate::{Batches, BlockingBatches, Epoch, Epochs, IterOptions, IterStats};
pub use order::{SortKey, asc, desc};
pub use pipeline::DatasetPipeline;
use repeatable::repeatable;
pub(crate) use replay::Replay;
pub use split::{TestSize, TrainTestSplit};
pub(crate) use streaming_split::Split;
pub use streaming_split::{Deal, OnLost, SplitBarrier, SplitIterator, SplitOptions};
pub use transform::Predicate;
pub use write::WriteOptions;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use datafusion::common::{Column, Result};
use datafusion::dataframe::DataFrame;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan};
use parking_lot::Mutex;

use crate::error::unknown_name;
use crate::logical::cpus_of_token;
use crate::observability::Execution;
use crate::sources::StoredBlocks;

/// A lazy collection of rows in blocks. Cloning is cheap; clones share the plan and the stats of the last execution.
///
/// The settings of a dataset are those that its session had when it was created.
#[derive(Clone)]
pub struct Dataset {
    context: DataContext,
    state: SessionState,
    plan: LogicalPlan,
    /// The blocks, of a materialized dataset.
    materialized: Option<Arc<StoredBlocks>>,
    /// The last execution, for `stats`.
    last: Arc<Mutex<Option<Execution>>>,
    /// How often it was run.
    epochs: Arc<AtomicU64>,
}

impl Dataset {
    pub(crate) fn new(context: DataContext, state: SessionState, plan: LogicalPlan) -> Self {
        // A plan that goes on at a token runs as the one did that gave it.
        let state = match cpus_of_token(&plan) {
            Some(cpus) => repeatable(state, Some(cpus)),
            None => state,
        };
        Self { context, state, plan, materialized: None, last: Arc::default(), epochs: Arc::default() }
    }

    /// A dataset with the same settings and another plan.
    fn with_plan(&self, plan: LogicalPlan) -> Self {
        Self::new(self.context.clone(), self.state.clone(), plan)
    }

    /// The plan as it was built, before any rule.
    pub fn logical_plan(&self) -> &LogicalPlan {
        &self.plan
    }

    /// The session that the dataset belongs to.
    pub fn context(&self) -> &DataContext {
        &self.context
    }

    /// The same rows as a DataFrame of DataFusion.
    pub fn into_dataframe(self) -> DataFrame {
        DataFrame::new(self.state, self.plan)
    }

    /// Applies a method of DataFrame.
    fn via_dataframe(&self, apply: impl FnOnce(DataFrame) -> Result<DataFrame>) -> Result<Self> {
        let (_, plan) = apply(self.clone().into_dataframe())?.into_parts();
        Ok(self.with_plan(plan))
    }

    /// The column of this name, exactly as written; the error suggests the nearest one.
    fn column(&self, name: &str, owner: &str) -> Result<Expr> {
        let schema = self.plan.schema();
        let found = schema.iter().find(|(_, field)| field.name() == name);
        match found {
            Some((qualifier, field)) => Ok(Expr::Column(Column::from((qualifier, field)))),
            None => {
                let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
                Err(unknown_name("column", name, owner, &names))
            }
        }
    }

    fn columns_of(&self, names: &[&str], owner: &str) -> Result<Vec<Expr>> {
        names.iter().map(|name| self.column(name, owner)).collect()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.plan.schema().fields().iter();
        let columns: Vec<_> = fields.map(|f| format!("{}: {}", f.name(), f.data_type())).collect();
        write!(f, "Dataset({})", columns.join(", "))
    }
}
