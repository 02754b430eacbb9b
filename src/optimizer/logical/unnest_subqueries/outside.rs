//! The columns outside of a subquery that it depends on.

use std::sync::Arc;

use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, TableReference};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery, SubqueryAlias};

/// A column outside.
pub(super) type Outer = (FieldRef, Column);

/// All columns outside that a plan depends on, each once. Those of subqueries in it are among them where nothing
/// between has a column of that name.
pub(super) fn outer_columns(plan: &LogicalPlan) -> Result<Vec<Outer>> {
    let mut found = Vec::new();
    collect(plan, &mut found)?;
    Ok(found)
}

/// Whether a plan has other rows for each row outside.
pub(in super::super) fn depends_on_outside(plan: &LogicalPlan) -> Result<bool> {
    Ok(!outer_columns(plan)?.is_empty())
}

fn collect(plan: &LogicalPlan, found: &mut Vec<Outer>) -> Result<()> {
    let inputs = plan.inputs();
    let is_inside = |column: &Column| inputs.iter().any(|input| input.schema().has_column(column));
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::OuterReferenceColumn(field, column) = expr {
                add(found, (Arc::clone(field), column.clone()));
            }
            if let Some(subquery) = subquery_of(expr) {
                let outer = outer_columns(&subquery.subquery)?;
                outer.into_iter().filter(|(_, column)| !is_inside(column)).for_each(|column| add(found, column));
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    match plan {
        LogicalPlan::Join(join) if lateral(&join.right).is_some() => {
            collect(&join.left, found)?;
            let outer = outer_columns(&join.right)?;
            let is_left = |column: &Column| join.left.schema().has_column(column);
            outer.into_iter().filter(|(_, column)| !is_left(column)).for_each(|column| add(found, column));
            Ok(())
        }
        _ => inputs.into_iter().try_for_each(|input| collect(input, found)),
    }
}

fn add(found: &mut Vec<Outer>, outer: Outer) {
    if !found.iter().any(|(_, column)| *column == outer.1) {
        found.push(outer);
    }
}

/// Whether all of some columns are in a schema.
pub(super) fn has_all(schema: &DFSchema, columns: &[Outer]) -> bool {
    columns.iter().all(|(_, column)| schema.has_column(column))
}

/// The subquery of an expression that has one.
pub(super) fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. })
        | Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

/// The right side of a join that may depend on the rows of the left one, and its name.
pub(super) fn lateral(plan: &LogicalPlan) -> Option<(&Subquery, Option<&TableReference>)> {
    match plan {
        LogicalPlan::Subquery(subquery) => Some((subquery, None)),
        LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => match input.as_ref() {
            LogicalPlan::Subquery(subquery) => Some((subquery, Some(alias))),
            _ => None,
        },
        _ => None,
    }
}

/// An expression over rows of `rows`, with other columns in the place of those outside: where `known` knows one. In
/// subqueries these are then columns outside.
pub(super) fn with_columns(
    expr: Expr,
    rows: &[&DFSchemaRef],
    known: &dyn Fn(&Column) -> Option<Outer>,
) -> Result<Expr> {
    let expr = expr.transform_down(|expr| match expr {
        Expr::OuterReferenceColumn(_, ref column) => {
            Ok(known(column).map_or(Transformed::no(expr), |(_, column)| Transformed::yes(Expr::Column(column))))
        }
        expr => in_subquery(expr, rows, known),
    });
    Ok(expr?.data)
}

/// The same for the subquery of an expression, which sees the columns of `rows` first.
fn in_subquery(
    expr: Expr,
    rows: &[&DFSchemaRef],
    known: &dyn Fn(&Column) -> Option<Outer>,
) -> Result<Transformed<Expr>> {
    if subquery_of(&expr).is_none() {
        return Ok(Transformed::no(expr));
    }
    let known = |column: &Column| known(column).filter(|_| !rows.iter().any(|schema| schema.has_column(column)));
    let changed = |subquery: &Subquery| within(subquery, &known);
    let expr = match expr {
        Expr::Exists(Exists { subquery, negated }) => Expr::Exists(Exists { subquery: changed(&subquery)?, negated }),
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            Expr::InSubquery(InSubquery { expr, subquery: changed(&subquery)?, negated })
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
            Expr::SetComparison(SetComparison { expr, subquery: changed(&subquery)?, op, quantifier })
        }
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(changed(&subquery)?),
        expr => expr,
    };
    // What an IN looks for is further down.
    Ok(Transformed::yes(expr))
}

fn within(subquery: &Subquery, known: &dyn Fn(&Column) -> Option<Outer>) -> Result<Subquery> {
    let plan = subquery.subquery.as_ref().clone().transform_down(|plan| {
        let schemas: Vec<DFSchemaRef> = plan.inputs().iter().map(|input| Arc::clone(input.schema())).collect();
        let rows: Vec<&DFSchemaRef> = schemas.iter().collect();
        // What is above a projection knows its columns by name.
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let expr = expr.transform_down(|expr| match expr {
                Expr::OuterReferenceColumn(_, ref column) => Ok(known(column)
                    .map_or(Transformed::no(expr), |(field, column)| {
                        Transformed::yes(Expr::OuterReferenceColumn(field, column))
                    })),
                expr => in_subquery(expr, &rows, known),
            })?;
            Ok(expr.update_data(|expr| name.restore(expr)))
        })
    })?;
    let outer_ref_columns = plan.data.all_out_ref_exprs();
    Ok(Subquery { subquery: Arc::new(plan.data), outer_ref_columns, spans: subquery.spans.clone() })
}
