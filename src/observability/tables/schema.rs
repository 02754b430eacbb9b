//! The schema of system tables, and what each of them has to say of itself.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::column::Column;
use super::table::{Sources, Table};
use super::{blocks, memory, operators, queries, settings, spills, tasks};
use crate::observability::execution::Observers;
use crate::runtime::Scheduler;
use crate::store::{BlockStore, SharedMemoryPool};

/// Name of the schema with the system tables.
pub(crate) const SYSTEM_SCHEMA: &str = "blockyard";

/// Does something with each table.
trait Visit {
    fn table<T: Table>(&mut self) -> Result<()>;
}

/// All tables, in the order of the reference.
fn visit_all(visit: &mut impl Visit) -> Result<()> {
    visit.table::<queries::Queries>()?;
    visit.table::<operators::Operators>()?;
    visit.table::<tasks::Tasks>()?;
    visit.table::<memory::Memory>()?;
    visit.table::<blocks::Blocks>()?;
    visit.table::<spills::Spills>()?;
    visit.table::<settings::Settings>()
}

/// The schema with the system tables of a session.
pub(crate) fn system_schema(
    store: &Arc<BlockStore>,
    pool: &Arc<SharedMemoryPool>,
    scheduler: &Arc<Scheduler>,
    observers: &Arc<Observers>,
) -> Result<Arc<dyn SchemaProvider>> {
    struct Register(Sources, MemorySchemaProvider);

    impl Visit for Register {
        fn table<T: Table>(&mut self) -> Result<()> {
            let columns = T::columns().iter().map(Column::field).collect::<Vec<_>>();
            let columns = Arc::new(Schema::new(columns));
            let (sources, table) = (self.0.clone(), PhantomData::<T>);
            let snapshot = Arc::new(Snapshot { columns: Arc::clone(&columns), sources, table });
            let table = StreamingTable::try_new(columns, vec![snapshot])?;
            self.1.register_table(T::NAME.to_owned(), Arc::new(table)).map(|_| ())
        }
    }

    let (store, pool, scheduler) = (Arc::clone(store), Arc::clone(pool), Arc::clone(scheduler));
    let sources = Sources { store, pool, scheduler, observers: Arc::clone(observers) };
    let mut register = Register(sources, MemorySchemaProvider::new());
    visit_all(&mut register)?;
    Ok(Arc::new(register.1))
}

/// A system table, as the reference describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemTable {
    /// Its name in the schema `blockyard`.
    pub name: &'static str,
    /// What its rows are.
    pub about: &'static str,
    /// Its columns, in order.
    pub columns: Vec<SystemColumn>,
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

/// The system tables of every session.
pub fn system_tables() -> Vec<SystemTable> {
    struct Describe(Vec<SystemTable>);

    impl Visit for Describe {
        fn table<T: Table>(&mut self) -> Result<()> {
            let describe = |column: Column<T::Row>| {
                let data_type = column.field().data_type().clone();
                SystemColumn { name: column.name, data_type, about: column.about }
            };
            let columns = T::columns().into_iter().map(describe).collect();
            self.0.push(SystemTable { name: T::NAME, about: T::ABOUT, columns });
            Ok(())
        }
    }

    let mut describe = Describe(Vec::new());
    // Nothing is registered, so nothing can fail.
    let _described = visit_all(&mut describe);
    describe.0
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
        let rows = T::rows(&self.sources, &context);
        let columns = T::columns().iter().map(|column| column.values(&rows)).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.columns), columns);
        let batches = stream::iter([batch.map_err(Into::into)]);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.columns), batches))
    }
}
