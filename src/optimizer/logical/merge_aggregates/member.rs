//! A plan that is one row of aggregates.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};

use crate::logical::{is_drawn_once, may_fail as may_be_error};
use crate::optimizer::logical::equal_plans::{is_plain, is_same};
use crate::optimizer::logical::together::{columns_of, has_subquery, may_fail};

/// Functions of one argument that leave out nulls.
const LEAVE_OUT_NULLS: [&str; 11] =
    ["avg", "bool_and", "bool_or", "count", "max", "min", "stddev", "stddev_pop", "sum", "var", "var_pop"];

/// Those of them that are grouped by the values where they are DISTINCT.
const OF_VALUES: [&str; 5] = ["avg", "count", "max", "min", "sum"];
/// Parts of the expressions of a member, at most: each column that one mentions twice doubles them.
const MAX_PARTS: usize = 1000;

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
    /// Whether a function or a column may be an error.
    pub(super) may_fail: bool,
}

impl Member {
    /// `None` where the plan is something else, or gives other rows each time.
    pub(super) fn of(plan: &LogicalPlan) -> Result<Option<Self>> {
        let Some(aggregate) = aggregate_below(plan) else { return Ok(None) };
        let Some(functions) = functions_of(aggregate) else { return Ok(None) };
        if !gives_the_same_rows(&aggregate.input)? {
            return Ok(None);
        }
        let (mut conditions, mut rows) = (Vec::new(), &aggregate.input);
        while let LogicalPlan::Filter(filter) = rows.as_ref() {
            conditions.extend(split_conjunction(&filter.predicate).into_iter().cloned());
            rows = &filter.input;
        }
        let Some(outputs) = outputs_of(plan)? else { return Ok(None) };
        let names = aggregate.schema.columns();
        let arguments = functions.iter().flat_map(|function| &function.params.args);
        let may_fail = arguments.into_iter().any(|argument| may_be_error(argument, rows.schema()))
            || outputs.iter().any(|output| may_be_error(output, &aggregate.schema));
        Ok(Some(Self { rows: Arc::clone(rows), conditions, functions, names, outputs, may_fail }))
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
                && self.distinct_values() == other.distinct_values()
    }

    /// Conditions that not all others have.
    pub(super) fn other_conditions(&self, others: &[&Self]) -> Vec<&Expr> {
        let in_all = |condition: &Expr| others.iter().all(|other| other.conditions.contains(condition));
        self.conditions.iter().filter(|condition| !in_all(condition)).collect()
    }

    /// What DISTINCT functions are of. Of other values each row would be grouped once more.
    fn distinct_values(&self) -> BTreeSet<String> {
        let distinct = self.functions.iter().filter(|function| function.params.distinct);
        distinct.flat_map(|function| &function.params.args).map(Expr::to_string).collect()
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

/// The aggregate without groups below projections.
fn aggregate_below(plan: &LogicalPlan) -> Option<&Aggregate> {
    match plan {
        // What is drawn is drawn once for all who read it.
        plan if is_drawn_once(plan) => None,
        LogicalPlan::SubqueryAlias(alias) => aggregate_below(&alias.input),
        LogicalPlan::Projection(projection) => aggregate_below(&projection.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty().then_some(aggregate),
        _ => None,
    }
}

/// The columns of a plan, of those of the aggregate below; `None` where they are others each time, or very long.
fn outputs_of(plan: &LogicalPlan) -> Result<Option<Vec<Expr>>> {
    let mut outputs: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let mut below = plan;
    loop {
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
            _ => return Ok(Some(outputs)),
        };
        let mut parts = 0;
        for output in &outputs {
            output.apply(|_| {
                parts += 1;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let is_other = |output: &Expr| output.is_volatile() || has_subquery(output);
        if parts > MAX_PARTS || outputs.iter().any(is_other) {
            return Ok(None);
        }
    }
}

/// The functions of an aggregate, if they are of all rows in any order and leave out nulls.
fn functions_of(aggregate: &Aggregate) -> Option<Vec<AggregateFunction>> {
    let function = |expr: &Expr| {
        let Expr::AggregateFunction(function) = expr.clone().unalias() else { return None };
        let (params, name) = (&function.params, function.func.name());
        let is_of_nulls = params.order_by.is_empty() && params.null_treatment.is_none() && params.args.len() == 1;
        let is_known = LEAVE_OUT_NULLS.contains(&name) && (!params.distinct || OF_VALUES.contains(&name));
        let is_other = |argument: &Expr| argument.is_volatile() || has_subquery(argument);
        let may_fail = params.filter.as_deref().is_some_and(|filter| may_fail(filter, aggregate.input.schema()));
        (is_known && is_of_nulls && !params.args.iter().any(is_other) && !may_fail).then_some(function)
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
