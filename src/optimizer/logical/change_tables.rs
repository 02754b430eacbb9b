//! Makes INSERT, DELETE, UPDATE and TRUNCATE of stored tables queries for what the table is to hold.
//!
//! DataFusion hands a table the predicates that it finds in the optimized plan, and no others: subqueries have become
//! joins by then, a predicate that is never true has become an empty relation, and a DELETE with one of them would take
//! all rows. As queries, changes mean what a SELECT with the same WHERE means, run on all threads, and spill.
//!
//! ```text
//! Dml: Delete t               Dml: Insert t (delete)
//!   Filter: p            ->     Filter: p IS NOT TRUE
//!     TableScan: t                TableScan: t
//!
//! Dml: Update t               Dml: Insert t (update)
//!   Projection: e AS a   ->     Projection: CASE WHEN changed THEN e ELSE a END AS a, changed IS TRUE AS changed
//!     Filter: p                   Projection: *, p AS changed
//!       TableScan: t                TableScan: t
//! ```
//!
//! Where there are subqueries, rows are numbered, the query of the statement finds the numbers of those that change,
//! and they are joined with all rows. The numbers come last among the columns: what is stored keeps their order.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, Result, TableReference, not_impl_err};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    DmlStatement, EmptyRelation, Expr, JoinType, LogicalPlan, LogicalPlanBuilder, Projection, WriteOp, lit, when,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::sources::{Change, NumberedTable, StoredTable, TableChange};

/// The name under which the rows that change are joined with all rows.
const CHANGES: &str = "changes of the statement";

#[derive(Debug)]
pub(super) struct ChangeTables;

impl OptimizerRule for ChangeTables {
    fn name(&self) -> &str {
        "change_tables"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Dml(dml) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let provider = source_as_provider(&dml.target);
        let Some(table) = provider.ok().and_then(|provider| provider.downcast_ref::<StoredTable>().cloned()) else {
            return Ok(Transformed::no(plan));
        };
        let statement = Statement { name: &dml.table_name, table };
        let (change, input) = match &dml.op {
            WriteOp::Insert(InsertOp::Append) => (Change::Insert, Arc::clone(&dml.input)),
            WriteOp::Insert(InsertOp::Overwrite) => (Change::Overwrite, Arc::clone(&dml.input)),
            WriteOp::Delete => (Change::Delete, Arc::new(statement.without(&dml.input)?)),
            WriteOp::Update => (Change::Update, Arc::new(statement.updated(&dml.input)?)),
            WriteOp::Truncate => (Change::Delete, Arc::new(statement.nothing()?)),
            op => return not_impl_err!("{} of table '{}'", op.name(), statement.table.name()),
        };
        let target = provider_as_source(Arc::new(TableChange::new(statement.table.clone(), change)));
        let op = WriteOp::Insert(if change == Change::Insert { InsertOp::Append } else { InsertOp::Overwrite });
        Ok(Transformed::yes(LogicalPlan::Dml(DmlStatement::new(dml.table_name.clone(), target, op, input))))
    }
}

/// A statement that changes rows of a table.
struct Statement<'a> {
    name: &'a TableReference,
    table: StoredTable,
}

impl Statement<'_> {
    fn nothing(&self) -> Result<LogicalPlan> {
        let schema = Arc::new(DFSchema::try_from_qualified_schema(self.name.clone(), &self.table.schema())?);
        Ok(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema }))
    }

    /// The rows that a DELETE leaves, whose input is those that go.
    fn without(&self, input: &LogicalPlan) -> Result<LogicalPlan> {
        let (predicate, rows) = self.target(input)?;
        let Some(predicate) = predicate else {
            return self.nothing();
        };
        if !has_subquery(&predicate) {
            return LogicalPlanBuilder::from(rows.clone()).filter(predicate.clone().is_not_true())?.build();
        }
        let numbers = self.unused("row");
        let gone = LogicalPlanBuilder::from(self.numbered(input, &numbers)?)
            .project([self.column(&numbers).alias(&numbers)])?
            .alias(CHANGES)?;
        let columns = self.columns();
        LogicalPlanBuilder::from(self.scan_numbered(&numbers)?)
            .join(gone.build()?, JoinType::LeftAnti, self.by(&numbers), None)?
            .sort([self.column(&numbers).sort(true, false)])?
            .project(columns.into_iter().map(Expr::Column).chain([self.column(&numbers)]))?
            .build()
    }

    /// All rows after an UPDATE, and whether it has changed them. Its input is the rows that it changes, as they then
    /// are.
    fn updated(&self, input: &LogicalPlan) -> Result<LogicalPlan> {
        let LogicalPlan::Projection(Projection { expr: values, input: matching, .. }) = input else {
            return not_impl_err!("this form of UPDATE of table '{}'", self.table.name());
        };
        let (predicate, rows) = self.target(matching)?;
        if predicate.iter().chain(values).any(has_subquery) {
            return self.updated_by_number(values, matching);
        }
        let changed = self.unused("changed");
        let flag = || Expr::Column(Column::from_name(&changed));
        let old = rows.schema().columns();
        let all = old.iter().cloned().map(Expr::Column);
        let flagged = all.chain([predicate.unwrap_or_else(|| lit(true)).alias(&changed)]);
        let new = old.iter().zip(values).map(|(old, value)| {
            let value = value.clone().unalias();
            let same = matches!(&value, Expr::Column(column) if column.name == old.name);
            let value = match same {
                true => value,
                false => when(flag(), value).otherwise(Expr::Column(old.clone()))?,
            };
            Ok(value.alias(&old.name))
        });
        let new = new.chain([Ok(flag().is_true().alias(&changed))]).collect::<Result<Vec<_>>>()?;
        LogicalPlanBuilder::from(rows.clone()).project(flagged)?.project(new)?.build()
    }

    fn updated_by_number(&self, values: &[Expr], matching: &LogicalPlan) -> Result<LogicalPlan> {
        let (numbers, flag) = (self.unused("row"), self.unused("changed"));
        let columns = self.columns();
        let matching = self.numbered(matching, &numbers)?;
        let number = matching.schema().qualified_field_with_unqualified_name(&numbers)?;
        let number = Expr::Column(Column::from(number)).alias(&numbers);
        let values = columns.iter().zip(values).map(|(old, value)| value.clone().unalias().alias(&old.name));
        let changes = LogicalPlanBuilder::from(matching).project(values.chain([number]))?.alias(CHANGES)?.build()?;
        let of_changes = |name: &str| Expr::Column(Column::new(Some(CHANGES), name));
        let changed = || of_changes(&numbers).is_not_null();
        let new = columns.iter().map(|old| {
            let value = when(changed(), of_changes(&old.name)).otherwise(Expr::Column(old.clone()))?;
            Ok(value.alias(&old.name))
        });
        let others = [changed().alias(&flag), self.column(&numbers)];
        let new = new.chain(others.map(Ok)).collect::<Result<Vec<_>>>()?;
        LogicalPlanBuilder::from(self.scan_numbered(&numbers)?)
            .join(changes, JoinType::Left, self.by(&numbers), None)?
            .sort([self.column(&numbers).sort(true, false)])?
            .project(new)?
            .build()
    }

    /// The predicate of a statement, and the table below it, under whatever name.
    fn target<'p>(&self, input: &'p LogicalPlan) -> Result<(Option<Expr>, &'p LogicalPlan)> {
        let (predicate, rows) = match input {
            LogicalPlan::Filter(filter) => (Some(filter.predicate.clone()), filter.input.as_ref()),
            LogicalPlan::Limit(_) => return not_impl_err!("LIMIT in a DELETE of table '{}'", self.table.name()),
            other => (None, other),
        };
        let scan = match rows {
            LogicalPlan::SubqueryAlias(alias) => alias.input.as_ref(),
            other => other,
        };
        match scan {
            LogicalPlan::TableScan(scan) if scan.table_name == *self.name => Ok((predicate, rows)),
            _ => not_impl_err!("this form of DELETE or UPDATE of table '{}'", self.table.name()),
        }
    }

    /// The same rows, with their numbers. The table is the last scan of the chain that a statement is.
    fn numbered(&self, input: &LogicalPlan, numbers: &str) -> Result<LogicalPlan> {
        let scan = self.scan_numbered(numbers)?;
        let numbered = |node: LogicalPlan| match node {
            LogicalPlan::TableScan(_) => Ok(Transformed::yes(scan.clone())),
            other => Ok(Transformed::yes(other.recompute_schema()?)),
        };
        input.clone().transform_up(numbered).data()
    }

    fn scan_numbered(&self, numbers: &str) -> Result<LogicalPlan> {
        let table = provider_as_source(Arc::new(NumberedTable::new(self.table.clone(), numbers)));
        LogicalPlanBuilder::scan(self.name.clone(), table, None)?.build()
    }

    /// A name that no column has.
    fn unused(&self, name: &str) -> String {
        let schema = self.table.schema();
        let mut name = name.to_owned();
        while schema.fields().iter().any(|field| *field.name() == name) {
            name.insert(0, '_');
        }
        name
    }

    fn by(&self, numbers: &str) -> (Vec<Column>, Vec<Column>) {
        (vec![Column::new(Some(self.name.clone()), numbers)], vec![Column::new(Some(CHANGES), numbers)])
    }

    fn column(&self, name: &str) -> Expr {
        Expr::Column(Column::new(Some(self.name.clone()), name))
    }

    fn columns(&self) -> Vec<Column> {
        let schema = self.table.schema();
        schema.fields().iter().map(|field| Column::new(Some(self.name.clone()), field.name())).collect()
    }
}

fn has_subquery(expression: &Expr) -> bool {
    let is_subquery = |e: &Expr| {
        matches!(e, Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_))
    };
    expression.exists(|e| Ok(is_subquery(e))).unwrap_or(true)
}
