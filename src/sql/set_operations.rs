//! `EXCEPT ALL` and `INTERSECT ALL`, which count how often a row is there.
//!
//! DataFusion asks only whether it is there at all. With a number for each of several equal rows no two are equal, and
//! then that is the right question:
//!
//! ```text
//! 1 1 1 2  EXCEPT ALL  1 1 3        1#1 1#2 1#3 2#1  EXCEPT  1#1 1#2 3#1     =  1#3 2#1  =  1 2
//! ```
//!
//! The operation is rewritten into a call of a table function with a name that no other can have, which is planned
//! here.

use datafusion::common::{Column, ExprSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::{Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, SetExpr, SetOperator, SetQuantifier,
    TableFactor, TableFunctionArgs,
};

use super::syntax::{named, select_all};

const EXCEPT_ALL: &str = "EXCEPT ALL";
const INTERSECT_ALL: &str = "INTERSECT ALL";
/// The name of the column that tells equal rows apart, from 1.
const NUMBER: &str = "__number_of_equal_row";

/// Rewrites the operations of a query.
pub(super) fn rewrite(body: &mut SetExpr) {
    let SetExpr::SetOperation { left, op, set_quantifier, right } = body else { return };
    rewrite(left);
    rewrite(right);
    let name = match (op, set_quantifier) {
        (SetOperator::Except | SetOperator::Minus, SetQuantifier::All) => EXCEPT_ALL,
        (SetOperator::Intersect, SetQuantifier::All) => INTERSECT_ALL,
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

/// Plans what [`rewrite`] has written.
pub(super) fn plan(relation: &TableFactor, context: &mut dyn RelationPlannerContext) -> Result<Option<LogicalPlan>> {
    let TableFactor::Table { name, args: Some(args), .. } = relation else { return Ok(None) };
    let [name] = name.0.as_slice() else { return Ok(None) };
    let name = name.as_ident().filter(|name| name.quote_style == Some('"')).map(|name| name.value.as_str());
    let Some(name @ (EXCEPT_ALL | INTERSECT_ALL)) = name else { return Ok(None) };
    let [left, right] = args.args.as_slice() else { return plan_err!("{name} is over two queries") };
    let mut side = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(SqlExpr::Subquery(query))) => rows_of(query, context),
        other => plan_err!("{name} is over queries, not over {other}"),
    };
    let (left, right) = (side(left)?, side(right)?);
    if left.schema().fields().len() != right.schema().fields().len() {
        return plan_err!("{name} queries have different number of columns");
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
