//! [`TableChange`]: what a statement does to a stored table, as the table that DataFusion plans an INSERT into.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, internal_err, not_impl_err};
use datafusion::datasource::TableType;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;

use super::stored::{Contents, StoredTable};
use super::unique::check_unique;
use crate::block::Block;
use crate::boxed::{boxed, scan_by};
use crate::physical::{BlockTarget, IntoPlan, StoreExec, block_batches};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};
use crate::tensors::check_same_tensors;
use futures::FutureExt;
use futures::future::BoxFuture;

/// Blocks up to this many bytes are joined when rows come a few at a time.
const SMALL_BLOCK_BYTES: usize = 1 << 20;

/// What a statement does with the rows of its query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// They are added.
    Insert,
    /// They are all that the table holds from now on.
    Overwrite,
    /// They are what stays; those that do not are reported. More columns than the table has are left out.
    Delete,
    /// They are all rows of the table. The column after those of the table says which of them the statement has
    /// changed.
    Update,
}

/// A stored table together with what is to be done to it.
#[derive(Debug, Clone)]
pub(crate) struct TableChange {
    table: StoredTable,
    change: Change,
    /// What the table held when the statement was planned.
    before: Option<Arc<Contents>>,
}

impl TableChange {
    /// A change of `table`.
    pub(crate) fn new(table: StoredTable, change: Change) -> Self {
        Self { table, change, before: None }
    }

    pub(super) fn table(&self) -> &StoredTable {
        &self.table
    }

    /// The same change, of a table that holds `contents`.
    pub(super) fn pinned(&self, contents: Arc<Contents>) -> Self {
        Self { before: Some(contents), ..self.clone() }
    }
}

impl TableChange {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        state: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        self.table.scan(state, projection, filters, limit)
    }

    /// The insertion of rows.
    fn insert_rows<'a>(
        &'a self,
        state: &'a dyn Session,
        input: Arc<dyn ExecutionPlan>,
        _insert_op: InsertOp,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            let Some(state) = state.as_any().downcast_ref::<SessionState>() else {
                return not_impl_err!("changing a stored table in a session that is not DataFusion's own");
            };
            for (column, given) in self.table.schema().fields().iter().zip(input.schema().fields()) {
                check_same_tensors([column, given])?;
            }
            let before = self.before.clone().unwrap_or_else(|| self.table.contents());
            let target = Planned { table: self.table.clone(), change: self.change, before, state: state.clone() };
            Ok(StoreExec::new(input, Arc::new(target)).into_plan())
        }
        .boxed()
    }
}

impl TableProvider for TableChange {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    scan_by!(Self::scan_rows);

    boxed! {
        fn insert_into<'b>(
            &self,
            session: &'b dyn Session,
            input: Arc<dyn ExecutionPlan>,
            insert_op: InsertOp,
        ) -> Result<Arc<dyn ExecutionPlan>> = Self::insert_rows;
    }
}

/// A change that can be executed.
struct Planned {
    table: StoredTable,
    change: Change,
    before: Arc<Contents>,
    state: SessionState,
}

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Planned({self})")
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.table.name();
        match self.change {
            Change::Insert => write!(f, "insert into {name}"),
            Change::Overwrite => write!(f, "overwrite {name}"),
            Change::Delete => write!(f, "delete from {name}"),
            Change::Update => write!(f, "update {name}"),
        }
    }
}

impl BlockTarget for Planned {
    fn prepare(&self, block: Block) -> Result<(Block, usize)> {
        let schema = self.table.schema();
        let width = schema.fields().len();
        let mut changed = 0;
        let mut batches = Vec::new();
        for batch in block.into_batches() {
            changed += match self.change {
                Change::Update => changed_rows(&batch, width)?,
                _ => batch.num_rows(),
            };
            batches.push(self.conform(&schema, &batch)?);
        }
        Ok((Block::new(schema, batches), changed))
    }

    fn commit<'a>(
        &'a self,
        blocks: Vec<BlockHandle>,
        changed: usize,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<usize>> {
        async move {
            if self.change == Change::Insert {
                return self.append(blocks, changed, context).await;
            }
            check_unique(&self.table, &blocks, &self.state, context).await?;
            let (before, after) = (self.before.num_rows(), num_rows(&blocks));
            let reported = match self.change {
                Change::Delete if after > before => {
                    return internal_err!("a DELETE made {after} rows of {before} in table '{}'", self.table.name());
                }
                Change::Delete => before - after,
                Change::Update if after != before => {
                    return internal_err!("an UPDATE made {after} rows of {before} in table '{}'", self.table.name());
                }
                _ => changed,
            };
            self.table.replace(&self.before, blocks)?;
            Ok(reported)
        }
        .boxed()
    }
}

impl Planned {
    /// The columns of a batch as those of the table.
    fn conform(&self, schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = batch.columns()[..schema.fields().len()].to_vec();
        for (field, column) in schema.fields().iter().zip(&columns) {
            if !field.is_nullable() && column.logical_null_count() > 0 {
                return exec_err!(
                    "column '{}' of table '{}' takes no nulls, but a row of the statement has one",
                    field.name(),
                    self.table.name()
                );
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
    }

    /// Adds blocks to what the table holds by now, whoever has changed it meanwhile.
    async fn append(&self, blocks: Vec<BlockHandle>, rows: usize, context: &Arc<TaskContext>) -> Result<usize> {
        loop {
            let before = self.table.contents();
            let joined = join(before.blocks(), &blocks, context).await?;
            check_unique(&self.table, &joined, &self.state, context).await?;
            if self.table.try_replace(&before, joined) {
                return Ok(rows);
            }
        }
    }
}

fn num_rows(blocks: &[BlockHandle]) -> usize {
    blocks.iter().map(|block| block.metadata().num_rows).sum()
}

/// Rows that an UPDATE has changed: a column says so.
fn changed_rows(batch: &RecordBatch, column: usize) -> Result<usize> {
    match batch.columns().get(column).and_then(|c| c.as_boolean_opt()) {
        Some(changed) => Ok(changed.true_count()),
        None => internal_err!("an UPDATE does not say which rows it has changed"),
    }
}

/// The blocks of a table with new ones after them. Small neighbours become one block, when the earlier one is not much
/// larger: a table that is filled row by row has few blocks, and each row is copied a few times only.
async fn join(before: &[BlockHandle], added: &[BlockHandle], context: &Arc<TaskContext>) -> Result<Vec<BlockHandle>> {
    let mut blocks = before.to_vec();
    if before.is_empty() {
        blocks.extend_from_slice(added);
        return Ok(blocks);
    }
    let mut added = added.iter().filter(|block| block.metadata().num_rows > 0).cloned();
    let Some(mut next) = added.next() else {
        return Ok(blocks);
    };
    let bytes = |block: &BlockHandle| block.metadata().size_bytes;
    while let Some(last) = blocks.pop_if(|last| {
        bytes(last) + bytes(&next) <= SMALL_BLOCK_BYTES && last.metadata().num_rows <= 2 * next.metadata().num_rows
    }) {
        next = one_block(last, next, context).await?;
    }
    blocks.push(next);
    blocks.extend(added);
    Ok(blocks)
}

/// Two blocks as one, with one batch.
async fn one_block(first: BlockHandle, second: BlockHandle, context: &Arc<TaskContext>) -> Result<BlockHandle> {
    let schema = Arc::clone(first.schema());
    let mut batches: Vec<RecordBatch> = block_batches(first).try_collect().await?;
    batches.extend(block_batches(second).try_collect::<Vec<_>>().await?);
    let batch = concat_batches(&schema, &batches)?;
    let owner = Arc::new(Owner::default());
    owner.describe(crate::store::QueryPool::query_of(context), || "Materialize".to_owned());
    BlockStore::of_task(context)?.put(Block::new(schema, vec![batch]), NextUse::Kept, &owner)
}
