//! [`StoredTable`]: a list of blocks with a version.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Constraint, Constraints, Result, Statistics, exec_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use crate::boxed::scan_by;
use crate::sources::blocks::StoredBlocks;
use crate::sources::datasource::DatasourceTable;
use crate::store::BlockHandle;
use futures::FutureExt;
use futures::future::BoxFuture;

/// A table whose rows are blocks of the store. Clones are the same table.
#[derive(Debug, Clone)]
pub(crate) struct StoredTable(Arc<Definition>);

#[derive(Debug)]
struct Definition {
    name: String,
    schema: SchemaRef,
    /// What rows have to comply with.
    constraints: Constraints,
    /// Those of them that DataFusion may rely on.
    planned: Constraints,
    defaults: HashMap<String, Expr>,
    contents: Mutex<Arc<Contents>>,
}

/// What a table held at some time.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// How often the table was changed before.
    version: u64,
    blocks: Arc<[BlockHandle]>,
}

impl Contents {
    pub(super) fn blocks(&self) -> &Arc<[BlockHandle]> {
        &self.blocks
    }

    pub(super) fn num_rows(&self) -> usize {
        self.blocks.iter().map(|block| block.metadata().num_rows).sum()
    }
}

impl StoredTable {
    /// A table without rows.
    pub(crate) fn try_new(
        name: &str,
        schema: SchemaRef,
        constraints: Constraints,
        defaults: HashMap<String, Expr>,
    ) -> Result<Self> {
        for (index, field) in schema.fields().iter().enumerate() {
            if schema.fields()[..index].iter().any(|other| other.name() == field.name()) {
                return plan_err!(
                    "table '{name}' would have two columns '{0}'; give one of them another name",
                    field.name()
                );
            }
        }
        // DataFusion takes rows that are null in a unique column for one row.
        let without_nulls = |indices: &[usize]| indices.iter().all(|i| !schema.field(*i).is_nullable());
        let planned = constraints.iter().filter(|constraint| match constraint {
            Constraint::PrimaryKey(indices) | Constraint::Unique(indices) => without_nulls(indices),
        });
        let planned = Constraints::new_unverified(planned.cloned().collect());
        let contents = Mutex::default();
        Ok(Self(Arc::new(Definition { name: name.to_owned(), schema, constraints, planned, defaults, contents })))
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Exact number of rows now.
    pub(crate) fn num_rows(&self) -> usize {
        self.contents().num_rows()
    }

    /// What rows have to comply with.
    pub(super) fn rules(&self) -> &Constraints {
        &self.0.constraints
    }

    /// What it holds now.
    pub(super) fn contents(&self) -> Arc<Contents> {
        Arc::clone(&self.0.contents.lock())
    }

    /// Whether both are the same table.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Puts other blocks in the place of `before`. Returns whether the table still held that.
    pub(super) fn try_replace(&self, before: &Contents, blocks: Vec<BlockHandle>) -> bool {
        let mut contents = self.0.contents.lock();
        let same = contents.version == before.version;
        if same {
            *contents = Arc::new(Contents { version: before.version + 1, blocks: blocks.into() });
        }
        same
    }

    /// As [`Self::try_replace`]; an error when somebody else was faster.
    pub(super) fn replace(&self, before: &Contents, blocks: Vec<BlockHandle>) -> Result<()> {
        match self.try_replace(before, blocks) {
            true => Ok(()),
            false => exec_err!(
                "table '{}' was changed by another statement while this one ran, which therefore changed nothing; \
                 run it again",
                self.name()
            ),
        }
    }

    /// Some contents of it, as a table that never changes.
    pub(super) fn frozen(&self, contents: &Contents) -> DatasourceTable {
        frozen(self.schema(), contents.blocks())
    }
}

/// Blocks as a table.
pub(super) fn frozen(schema: SchemaRef, blocks: &[BlockHandle]) -> DatasourceTable {
    let blocks = StoredBlocks::new("InputDataBuffer", schema, blocks.to_vec());
    DatasourceTable::new(Arc::new(blocks), None)
}

impl StoredTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        state: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move { self.frozen(&self.contents()).scan(state, projection, filters, limit).await }.boxed()
    }
}

impl TableProvider for StoredTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0.schema)
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.0.planned)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.0.defaults.get(column)
    }

    scan_by!(Self::scan_rows);

    fn statistics(&self) -> Option<Statistics> {
        let mut statistics = Statistics::new_unknown(&self.0.schema);
        statistics.num_rows = Precision::Exact(self.num_rows());
        Some(statistics)
    }
}
