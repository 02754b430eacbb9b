//! A plan that is one row of aggregates.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};

use crate::optimizer::logical::equal_plans::{is_plain, is_same};
use crate::optimizer::logical::together::{columns_of, has_subquery, may_fail};

/// Functions of one argument that leave out nulls.
const LEAVE_OUT_NULLS: [&str; 11] =
    ["avg", "bool_and", "bool_or", "count", "max", "min", "stddev", "stddev_pop", "sum", "var", "var_pop"];

/// Aggregates of all rows of a plan.
pub(super) struct Member {
    /// The rows,
    pub(super) rows: Arc<LogicalPlan>,
    /// of which those are meant that pass all of these.
    pub(super) conditions: Vec<Expr>,
    /// What is computed of them,
    pub(super) functions: Vec<AggregateFunction>,
    /// under these names,
    pub(super) names: Vec<Column>,
    /// and the columns of the member, of these.
    pub(super) outputs: Vec<Expr>,
}

impl Member {
    /// `None` where the plan is something else, or gives other rows each time.
    pub(super) fn of(plan: &LogicalPlan) -> Result<Option<Self>> {
        let mut outputs: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
        let mut below = plan;
        let aggregate = loop {
            below = match below {
                LogicalPlan::SubqueryAlias(alias) => {
                    let columns: Vec<_> = alias.input.schema().columns().into_iter().map(Expr::Column).collect();
                    outputs = replaced(outputs, &alias.schema, &columns)?;
                    &alias.input
                }
                LogicalPlan::Projection(projection) => {
                    outputs = replaced(outputs, &projection.schema, &projection.expr)?;
                    &projection.input
                }
                LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => break aggregate,
                _ => return Ok(None),
            }
        };
        let Some(functions) = functions_of(aggregate) else { return Ok(None) };
        let (mut conditions, mut rows) = (Vec::new(), &aggregate.input);
        while let LogicalPlan::Filter(filter) = rows.as_ref() {
            conditions.extend(split_conjunction(&filter.predicate).into_iter().cloned());
            rows = &filter.input;
        }
        let is_steady = !outputs.iter().any(has_subquery) && gives_the_same_rows(&aggregate.input)?;
        let names = aggregate.schema.columns();
        Ok(is_steady.then(|| Self { rows: Arc::clone(rows), conditions, functions, names, outputs }))
    }

    /// Whether both are better computed together.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        if !is_same(&self.rows, &other.rows) {
            return false;
        }
        let (mine, others) = (self.other_conditions(&[other]), other.other_conditions(&[self]));
        let can_move = |condition: &&Expr| {
            let tables: BTreeSet<_> = columns_of(condition).into_iter().map(|column| column.relation).collect();
            tables.len() == 1 && !may_fail(condition, self.rows.schema())
        };
        let about = |member: &Self| member.conditions.iter().map(columns_of).collect::<BTreeSet<_>>();
        mine.is_empty() && others.is_empty()
            || mine.iter().chain(&others).all(can_move)
                && about(self) == about(other)
                && self.wide_columns() == other.wide_columns()
    }

    /// Conditions that not all others have.
    pub(super) fn other_conditions(&self, others: &[&Self]) -> Vec<&Expr> {
        let in_all = |condition: &Expr| others.iter().all(|other| other.conditions.contains(condition));
        self.conditions.iter().filter(|condition| !in_all(condition)).collect()
    }

    /// Columns of values that may be large, of which functions are.
    fn wide_columns(&self) -> BTreeSet<Column> {
        let is_wide = |column: &Column| {
            let field = self.rows.schema().field_from_column(column);
            let is_narrow = |of: &DataType| of.primitive_width().is_some() || *of == DataType::Boolean;
            !field.is_ok_and(|field| is_narrow(field.data_type()))
        };
        let arguments = self.functions.iter().flat_map(|function| &function.params.args);
        arguments.flat_map(columns_of).filter(is_wide).collect()
    }
}

/// The functions of an aggregate, if they are of all rows in any order and leave out nulls.
fn functions_of(aggregate: &Aggregate) -> Option<Vec<AggregateFunction>> {
    let function = |expr: &Expr| {
        let Expr::AggregateFunction(function) = expr.clone().unalias() else { return None };
        let params = &function.params;
        let is_of_nulls = params.order_by.is_empty() && params.null_treatment.is_none() && params.args.len() == 1;
        let is_known = LEAVE_OUT_NULLS.contains(&function.func.name()) && is_of_nulls;
        let has_subquery = params.args.iter().any(has_subquery);
        let may_fail = params.filter.as_deref().is_some_and(|filter| may_fail(filter, aggregate.input.schema()));
        (is_known && !has_subquery && !may_fail).then_some(function)
    };
    aggregate.aggr_expr.iter().map(function).collect()
}

/// Expressions of the columns of a node as expressions of what is below it, where column `i` of the node is `below[i]`.
fn replaced(exprs: Vec<Expr>, schema: &DFSchema, below: &[Expr]) -> Result<Vec<Expr>> {
    let replace = |expr: Expr| {
        let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
        let of = below[schema.index_of_column(column)?].clone().unalias();
        Ok(Transformed::new(of, true, TreeNodeRecursion::Jump))
    };
    exprs.into_iter().map(|expr| Ok(expr.transform_down(replace)?.data)).collect()
}

/// Whether a plan gives the same rows each time, and no more than it says itself.
fn gives_the_same_rows(plan: &LogicalPlan) -> Result<bool> {
    let (mut reads, mut differs) = (false, !plan.all_out_ref_exprs().is_empty());
    plan.apply_with_subqueries(|node| {
        differs |= !is_plain(node) || matches!(node, LogicalPlan::Limit(_));
        if let LogicalPlan::TableScan(scan) = node {
            reads = true;
            differs |= scan.fetch.is_some();
        }
        node.apply_expressions(|expr| {
            // Values are waited for before anything runs, and these would wait for others.
            differs |= expr.is_volatile() || expr.exists(|part| Ok(matches!(part, Expr::ScalarSubquery(_))))?;
            Ok(if differs { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(if differs { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(reads && !differs)
}
