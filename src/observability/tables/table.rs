//! What a system table is.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::Column;
use crate::cloud::CloudStores;
use crate::observability::execution::Observers;
use crate::runtime::Scheduler;
use crate::store::{BlockStore, SharedMemoryPool};

/// What the tables look at.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    pub(super) store: Arc<BlockStore>,
    pub(super) pool: Arc<SharedMemoryPool>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) observers: Arc<Observers>,
    pub(super) stores: Arc<CloudStores>,
}

/// A system table.
pub(super) trait Table: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// What its rows are.
    const ABOUT: &'static str;
    /// What is known of a row.
    type Row: Send;

    /// The rows, now.
    fn rows(sources: Sources, context: Arc<TaskContext>) -> impl Future<Output = Result<Vec<Self::Row>>> + Send;

    /// The columns.
    fn columns() -> Vec<Column<Self::Row>>;
}
