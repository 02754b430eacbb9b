//! A stored table with the number of each row as one more column: how a statement names the rows that it changes.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::TableType;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use super::stored::{Contents, StoredTable};
use crate::boxed::scan_by;
use crate::sources::blocks::StoredBlocks;
use crate::sources::datasource::DatasourceTable;
use futures::FutureExt;
use futures::future::BoxFuture;

/// A stored table with a column more, the last: the number of the row, from 0 on.
#[derive(Debug)]
pub(crate) struct NumberedTable {
    table: StoredTable,
    schema: SchemaRef,
}

impl NumberedTable {
    /// The rows of `table`, numbered in `column`.
    pub(crate) fn new(table: StoredTable, column: &str) -> Self {
        let number = Arc::new(Field::new(column, DataType::UInt64, false));
        let fields: Vec<_> = table.schema().fields().iter().cloned().chain([number]).collect();
        Self { table, schema: Arc::new(Schema::new(fields)) }
    }

    /// The table whose rows are numbered.
    pub(super) fn table(&self) -> &StoredTable {
        &self.table
    }

    /// Some contents of it, as a table that never changes.
    pub(super) fn frozen(&self, contents: &Contents) -> DatasourceTable {
        let blocks = StoredBlocks::numbered("InputDataBuffer", self.schema(), contents.blocks().to_vec());
        DatasourceTable::new(Arc::new(blocks), None)
    }
}

impl NumberedTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        state: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move { self.frozen(&self.table.contents()).scan(state, projection, filters, limit).await }.boxed()
    }
}

impl TableProvider for NumberedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    scan_by!(Self::scan_rows);
}
