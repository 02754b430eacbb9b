//! The schema of system tables, and what each of them has to say of itself.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider, TableProvider};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::column::Column;
use super::system_tables;
use super::table::{Sources, Table};
use crate::cloud::CloudStores;
use crate::observability::execution::Observers;
use crate::runtime::Scheduler;
use crate::store::{BlockStore, SharedMemoryPool};

/// Name of the schema with the system tables.
pub(crate) const SYSTEM_SCHEMA: &str = "blockyard";

/// A system table, as the reference describes it.
#[derive(Debug, Clone)]
pub struct SystemTable {
    /// Its name in the schema `blockyard`.
    pub name: &'static str,
    /// What its rows are.
    pub about: &'static str,
    /// Its columns, in order.
    pub columns: Vec<SystemColumn>,
    provider: fn(&Sources) -> Result<Arc<dyn TableProvider>>,
}

/// A column of such a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemColumn {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub data_type: DataType,
    /// What it says.
    pub about: &'static str,
}

impl SystemTable {
    /// What `T` says of itself.
    pub(super) fn of<T: Table>() -> Self {
        let column = |column: Column<T::Row>| {
            let data_type = column.field().data_type().clone();
            SystemColumn { name: column.name, data_type, about: column.about }
        };
        let columns = T::columns().into_iter().map(column).collect();
        Self { name: T::NAME, about: T::ABOUT, columns, provider: provider::<T> }
    }
}

/// The schema with the system tables of a session.
pub(crate) fn system_schema(
    store: &Arc<BlockStore>,
    pool: &Arc<SharedMemoryPool>,
    scheduler: &Arc<Scheduler>,
    observers: &Arc<Observers>,
    stores: &Arc<CloudStores>,
) -> Result<Arc<dyn SchemaProvider>> {
    let (store, pool, scheduler) = (Arc::clone(store), Arc::clone(pool), Arc::clone(scheduler));
    let (observers, stores) = (Arc::clone(observers), Arc::clone(stores));
    let sources = Sources { store, pool, scheduler, observers, stores };
    let schema = MemorySchemaProvider::new();
    for table in system_tables() {
        schema.register_table(table.name.to_owned(), (table.provider)(&sources)?)?;
    }
    Ok(Arc::new(schema))
}

fn provider<T: Table>(sources: &Sources) -> Result<Arc<dyn TableProvider>> {
    let columns = Arc::new(Schema::new(T::columns().iter().map(Column::field).collect::<Vec<_>>()));
    let snapshot = Snapshot { columns: Arc::clone(&columns), sources: sources.clone(), table: PhantomData::<T> };
    Ok(Arc::new(StreamingTable::try_new(columns, vec![Arc::new(snapshot)])?))
}

/// The rows of a table when somebody asks for them.
struct Snapshot<T> {
    columns: SchemaRef,
    sources: Sources,
    table: PhantomData<T>,
}

impl<T: Table> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", T::NAME)
    }
}

impl<T: Table> PartitionStream for Snapshot<T> {
    fn schema(&self) -> &SchemaRef {
        &self.columns
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (sources, schema) = (self.sources.clone(), Arc::clone(&self.columns));
        let batch = async move {
            let rows = T::rows(sources, context).await?;
            let columns = T::columns().iter().map(|column| column.values(&rows)).collect();
            Ok(RecordBatch::try_new(schema, columns)?)
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.columns), stream::once(batch)))
    }
}
