//! A sink of an application as a table that can be written and not read.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;

use crate::physical::{IntoPlan, SinkExec};
use crate::sinks::AnyDatasink;

/// What INSERT writes to.
#[derive(Debug)]
pub(crate) struct SinkTable {
    sink: Arc<dyn AnyDatasink>,
    schema: SchemaRef,
}

impl SinkTable {
    /// The table of a sink that takes rows with these columns.
    pub(crate) fn new(sink: Arc<dyn AnyDatasink>, schema: SchemaRef) -> Self {
        Self { sink, schema }
    }
}

#[async_trait]
impl TableProvider for SinkTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        _projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan_err!("{} is a sink: it takes rows with INSERT INTO and gives none", self.sink.name())
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match insert_op {
            InsertOp::Append => Ok(SinkExec::new(input, Arc::clone(&self.sink)).into_plan()),
            other => not_impl_err!("{other} of the sink {}: it only takes more rows", self.sink.name()),
        }
    }
}
