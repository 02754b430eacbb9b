//! `EXCEPT ALL` and `INTERSECT ALL`, which count how often a row is there; and `SELECT NULL AS a UNION SELECT ..`.
//!
//! DataFusion takes the type of a union for that of its first query until it optimizes the plan, so that nothing could
//! be done with a column of which that says NULL. Here it is cast to the type of the next query.
//!
//! Of rows that are counted DataFusion asks only whether they are there at all. With a number for each of several equal
//! rows no two are equal, and then that is the right question:
//!
//! ```text
//! 1 1 1 2  EXCEPT ALL  1 1 3        1#1 1#2 1#3 2#1  EXCEPT  1#1 1#2 3#1     =  1#3 2#1  =  1 2
//! ```
//!
//! The operations are rewritten into calls of table functions with names that no other can have, which are planned
//! here.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, ExprSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::{Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, cast};
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, SelectItem, SetExpr, SetOperator,
    SetQuantifier, TableFactor, TableFunctionArgs, Value, visit_relations,
};

use super::names::text_of;
use super::syntax::{named, select_all};

const EXCEPT_ALL: &str = "EXCEPT ALL";
const INTERSECT_ALL: &str = "INTERSECT ALL";
const UNION_ALL: &str = "UNION ALL";
const UNION: &str = "UNION";
/// The name of the column that tells equal rows apart, from 1.
const NUMBER: &str = "__number_of_equal_row";

/// Rewrites the operations of a query. Those that read one of `recursive` stay: they are not unions but runs.
pub(super) fn rewrite(body: &mut SetExpr, recursive: &[String]) {
    let SetExpr::SetOperation { left, op, set_quantifier, right } = body else { return };
    let starts_with_null = has_null(left);
    rewrite(left, recursive);
    rewrite(right, recursive);
    let name = match (op, set_quantifier) {
        (SetOperator::Except | SetOperator::Minus, SetQuantifier::All) => EXCEPT_ALL,
        (SetOperator::Intersect, SetQuantifier::All) => INTERSECT_ALL,
        (SetOperator::Union, _) if !starts_with_null || reads_one_of(right, recursive) => return,
        (SetOperator::Union, SetQuantifier::All) => UNION_ALL,
        (SetOperator::Union, SetQuantifier::None | SetQuantifier::Distinct) => UNION,
        _ => return,
    };
    let side = |side: &SetExpr| {
        let mut query = select_all(named(ObjectName::from(vec![Ident::new("t")]), None))?;
        *query.body = side.clone();
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(SqlExpr::Subquery(Box::new(query)))))
    };
    let (Some(left), Some(right)) = (side(left), side(right)) else { return };
    let args = TableFunctionArgs { args: vec![left, right], settings: None };
    let call = named(ObjectName::from(vec![Ident::with_quote('"', name)]), Some(args));
    if let Some(query) = select_all(call) {
        *body = *query.body;
    }
}

/// Whether the first query has NULL for a column.
fn has_null(body: &SetExpr) -> bool {
    let is_null = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(SqlExpr::Value(value))
        | SelectItem::ExprWithAlias { expr: SqlExpr::Value(value), .. } => value.value == Value::Null,
        _ => false,
    };
    match body {
        SetExpr::Select(select) => select.projection.iter().any(is_null),
        SetExpr::SetOperation { left, .. } => has_null(left),
        SetExpr::Query(query) => has_null(&query.body),
        _ => false,
    }
}

fn reads_one_of(body: &SetExpr, names: &[String]) -> bool {
    let is_one = |relation: &ObjectName| match relation.0.as_slice() {
        [part] if part.as_ident().is_some_and(|ident| names.contains(&text_of(ident))) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    visit_relations(body, is_one).is_break()
}

/// Plans what [`rewrite`] has written.
pub(super) fn plan(relation: &TableFactor, context: &mut dyn RelationPlannerContext) -> Result<Option<LogicalPlan>> {
    let TableFactor::Table { name, args: Some(args), .. } = relation else { return Ok(None) };
    let [name] = name.0.as_slice() else { return Ok(None) };
    let name = name.as_ident().filter(|name| name.quote_style == Some('"')).map(|name| name.value.as_str());
    let Some(name @ (EXCEPT_ALL | INTERSECT_ALL | UNION_ALL | UNION)) = name else { return Ok(None) };
    let [left, right] = args.args.as_slice() else { return plan_err!("{name} is over two queries") };
    let mut side = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(SqlExpr::Subquery(query))) => rows_of(query, context),
        other => plan_err!("{name} is over queries, not over {other}"),
    };
    let (left, right) = (side(left)?, side(right)?);
    if left.schema().fields().len() != right.schema().fields().len() {
        return plan_err!("{name} queries have different number of columns");
    }
    if let UNION_ALL | UNION = name {
        let union = LogicalPlanBuilder::from(typed_like(left, &right)?);
        return if name == UNION { union.union_distinct(right)? } else { union.union(right)? }.build().map(Some);
    }
    let names: Vec<String> = left.schema().fields().iter().map(|field| field.name().clone()).collect();
    if let Some(twice) = names.iter().enumerate().find_map(|(i, name)| names[..i].contains(name).then_some(name)) {
        return not_impl_err!("{name} over two columns of the name '{twice}'; give them different names");
    }
    let (left, right) = (numbered(left, &names)?, numbered(right, &names)?);
    let rows = match name {
        EXCEPT_ALL => LogicalPlanBuilder::except(left, right, true)?,
        _ => LogicalPlanBuilder::intersect(left, right, true)?,
    };
    let columns = rows.schema().columns().into_iter().filter(|column| column.name != NUMBER);
    let columns: Vec<Expr> = columns.map(Expr::Column).collect();
    LogicalPlanBuilder::from(rows).project(columns)?.build().map(Some)
}

/// The rows with columns that are nothing but nulls cast to the types of the columns of others.
fn typed_like(rows: LogicalPlan, others: &LogicalPlan) -> Result<LogicalPlan> {
    let fields = rows.schema().iter().zip(others.schema().fields());
    let typed = fields.map(|((relation, field), other)| {
        let column = Expr::Column(Column::new(relation.cloned(), field.name()));
        match field.data_type() {
            DataType::Null => cast(column, other.data_type().clone()).alias(field.name()),
            _ => column,
        }
    });
    let typed: Vec<Expr> = typed.collect();
    LogicalPlanBuilder::from(rows).project(typed)?.build()
}

fn rows_of(query: &Query, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
    let subquery = Box::new(query.clone());
    context.plan(TableFactor::Derived { lateral: false, subquery, alias: None, sample: None })
}

/// The rows with `names` for their columns, and a number that no two equal rows have.
fn numbered(rows: LogicalPlan, names: &[String]) -> Result<LogicalPlan> {
    let columns = rows.schema().columns();
    let renamed = columns.iter().zip(names).map(|(column, name)| Expr::Column(column.clone()).alias(name));
    let renamed: Vec<Expr> = renamed.collect();
    // A partition has values of the same bits, and 0.0 is equal to -0.0: of both, the sum is 0.0.
    let key = |(column, name): (&Column, &String)| -> Result<Expr> {
        let (key, kind) = (Expr::Column(Column::from_name(name)), rows.schema().data_type(column)?);
        Ok(if kind.is_floating() { key + Expr::Literal(ScalarValue::new_zero(kind)?, None) } else { key })
    };
    let keys = columns.iter().zip(names).map(key).collect::<Result<_>>()?;
    let number = row_number().partition_by(keys).build()?.alias(NUMBER);
    LogicalPlanBuilder::from(rows).project(renamed)?.window(vec![number])?.build()
}
