//! Makes columns of volatile expressions by which rows are sorted, grouped, joined or put into windows, or that are
//! looked for in ranges and lists.
//!
//! Such keys are evaluated more than once: when runs are sorted and when they are merged, when rows are sent to a
//! partition and when its groups are found, and `BETWEEN` for each of its ends. `random()` gives another value each
//! time, and rows would be lost or appear twice. A column is computed once per row, and goes with it. Expressions in
//! grouping sets stay as they are.
//!
//! ```text
//! Sort: random()              Projection: t.a
//!   Scan: t [a]        ->       Sort: "random()"
//!                                 Projection: t.a, random() AS "random()"
//!                                   Scan: t [a]
//! ```
//!
//! So it does for keys of sorts in which a subquery is a value: DataFusion does not see that rows are sorted by them,
//! and refuses the plan.
//!
//! It stands before all others: what a rule of DataFusion copies from a sort is then a column.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{AggregateFunction, Between, InList, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Aggregate, Expr, Filter, Join, LogicalPlan, Projection, Sort, SortExpr, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::has_part;

#[derive(Debug)]
pub(super) struct EvaluateOnce;

impl OptimizerRule for EvaluateOnce {
    fn name(&self) -> &str {
        "evaluate_once"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let may_be_drawn = |part: &Expr| part.is_volatile_node() || matches!(part, Expr::ScalarSubquery(_));
        if !has_part(&plan, may_be_drawn) {
            return Ok(Transformed::no(plan));
        }
        let rewritten = match &plan {
            LogicalPlan::Sort(sort) => sorted(sort)?,
            LogicalPlan::Window(window) => windows(window)?,
            LogicalPlan::Aggregate(aggregate) => grouped(aggregate)?,
            LogicalPlan::Join(join) => joined(join)?,
            LogicalPlan::Filter(filter) => filtered(filter)?,
            LogicalPlan::Projection(projection) => projected(projection)?,
            _ => None,
        };
        Ok(rewritten.map_or_else(|| Transformed::no(plan), Transformed::yes))
    }
}

fn sorted(sort: &Sort) -> Result<Option<LogicalPlan>> {
    let mut columns = Columns::of(&sort.input);
    let keys = sort.expr.iter().cloned().map(|key| columns.of_key(key)).collect();
    let Some(input) = columns.below()? else { return Ok(None) };
    let sorted = LogicalPlan::Sort(Sort { expr: keys, input: Arc::new(input), fetch: sort.fetch });
    Ok(Some(LogicalPlan::Projection(Projection::new_from_schema(Arc::new(sorted), Arc::clone(sort.input.schema())))))
}

fn windows(window: &Window) -> Result<Option<LogicalPlan>> {
    let mut columns = Columns::of(&window.input);
    let expressions = window.window_expr.iter().cloned();
    let expressions = expressions.map(|expr| keeping_name(expr, |expr| columns.of_window(expr)));
    let expressions = expressions.collect::<Result<Vec<_>>>()?;
    let Some(input) = columns.below()? else { return Ok(None) };
    let windows = LogicalPlan::Window(Window::try_new(expressions, Arc::new(input))?);
    Ok(Some(LogicalPlan::Projection(Projection::new_from_schema(Arc::new(windows), Arc::clone(&window.schema)))))
}

fn grouped(aggregate: &Aggregate) -> Result<Option<LogicalPlan>> {
    let mut columns = Columns::of(&aggregate.input);
    let groups = aggregate.group_expr.iter().cloned().map(|group| match group {
        // Their names tell which columns they have.
        Expr::GroupingSet(_) => Ok(group),
        group => keeping_name(group, |group| Ok(columns.of_expr(group))),
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    let calls = aggregate.aggr_expr.iter().cloned();
    let calls = calls.map(|call| keeping_name(call, |call| columns.of_aggregate(call)));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let Some(input) = columns.below()? else { return Ok(None) };
    let schema = Arc::clone(&aggregate.schema);
    Ok(Some(LogicalPlan::Aggregate(Aggregate::try_new_with_schema(Arc::new(input), groups, calls, schema)?)))
}

fn joined(join: &Join) -> Result<Option<LogicalPlan>> {
    let (mut left, mut right) = (Columns::of(&join.left), Columns::of(&join.right));
    let on = join.on.iter().cloned().map(|(of_left, of_right)| (left.of_expr(of_left), right.of_expr(of_right)));
    let on = on.collect();
    let (left, right) = match (left.below()?, right.below()?) {
        (None, None) => return Ok(None),
        (left, right) => (left.map(Arc::new), right.map(Arc::new)),
    };
    let joined = LogicalPlan::Join(Join::try_new(
        left.unwrap_or_else(|| Arc::clone(&join.left)),
        right.unwrap_or_else(|| Arc::clone(&join.right)),
        on,
        join.filter.clone(),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?);
    Ok(Some(LogicalPlan::Projection(Projection::new_from_schema(Arc::new(joined), Arc::clone(&join.schema)))))
}

fn filtered(filter: &Filter) -> Result<Option<LogicalPlan>> {
    let mut columns = Columns::of(&filter.input);
    let predicate = columns.of_ranges(filter.predicate.clone())?;
    let Some(input) = columns.below()? else { return Ok(None) };
    let filtered = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?);
    let schema = Arc::clone(filter.input.schema());
    Ok(Some(LogicalPlan::Projection(Projection::new_from_schema(Arc::new(filtered), schema))))
}

fn projected(projection: &Projection) -> Result<Option<LogicalPlan>> {
    let mut columns = Columns::of(&projection.input);
    let values = projection.expr.iter().cloned();
    let values = values.map(|value| keeping_name(value, |value| columns.of_ranges(value)));
    let values = values.collect::<Result<Vec<_>>>()?;
    let Some(input) = columns.below()? else { return Ok(None) };
    let schema = Arc::clone(&projection.schema);
    Ok(Some(LogicalPlan::Projection(Projection::try_new_with_schema(values, Arc::new(input), schema)?)))
}

/// An expression that gives a column of the same name, however it is computed now.
fn keeping_name(expr: Expr, rewrite: impl FnOnce(Expr) -> Result<Expr>) -> Result<Expr> {
    let name = NamePreserver::new_for_projection().save(&expr);
    Ok(name.restore(rewrite(expr)?))
}

/// Columns that are computed below an operator.
struct Columns<'a> {
    input: &'a Arc<LogicalPlan>,
    computed: Vec<Expr>,
    taken: HashSet<String>,
}

impl<'a> Columns<'a> {
    fn of(input: &'a Arc<LogicalPlan>) -> Self {
        let taken = input.schema().fields().iter().map(|field| field.name().clone()).collect();
        Self { input, computed: Vec::new(), taken }
    }

    /// The expression, or the column that it becomes. Equal expressions have values of their own.
    fn of_expr(&mut self, expr: Expr) -> Expr {
        match expr.is_volatile() && !expr.contains_outer() {
            true => self.column(expr),
            false => expr,
        }
    }

    /// The column of an expression.
    fn column(&mut self, expr: Expr) -> Expr {
        let expr = expr.unalias();
        let plain = expr.schema_name().to_string();
        let mut name = plain.clone();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{plain}:{number}");
        }
        self.computed.push(expr.alias(&name));
        Expr::Column(Column::from_name(name))
    }

    fn of_key(&mut self, key: SortExpr) -> SortExpr {
        let is_value =
            |part: &Expr| Ok(matches!(part, Expr::ScalarSubquery(value) if value.outer_ref_columns.is_empty()));
        // DataFusion takes no operator for sorted by an expression of such a value.
        let expr = match key.expr.exists(is_value).unwrap_or(false) && !key.expr.contains_outer() {
            true => self.column(key.expr),
            false => self.of_expr(key.expr),
        };
        SortExpr { expr, ..key }
    }

    fn of_window(&mut self, expr: Expr) -> Result<Expr> {
        let rewrite = |expr: Expr| {
            let Expr::WindowFunction(window) = expr else { return Ok(Transformed::no(expr)) };
            let WindowFunction { fun, mut params } = *window;
            params.args = params.args.into_iter().map(|expr| self.of_expr(expr)).collect();
            params.partition_by = params.partition_by.into_iter().map(|expr| self.of_expr(expr)).collect();
            params.order_by = params.order_by.into_iter().map(|key| self.of_key(key)).collect();
            let window = Expr::WindowFunction(Box::new(WindowFunction { fun, params }));
            Ok(Transformed::new(window, true, TreeNodeRecursion::Jump))
        };
        Ok(expr.transform_down(rewrite)?.data)
    }

    fn of_aggregate(&mut self, expr: Expr) -> Result<Expr> {
        let rewrite = |expr: Expr| {
            let Expr::AggregateFunction(call) = expr else { return Ok(Transformed::no(expr)) };
            let AggregateFunction { func, mut params } = call;
            params.order_by = params.order_by.into_iter().map(|key| self.of_key(key)).collect();
            let call = Expr::AggregateFunction(AggregateFunction { func, params });
            Ok(Transformed::new(call, true, TreeNodeRecursion::Jump))
        };
        Ok(expr.transform_down(rewrite)?.data)
    }

    /// The expression with columns for what is compared with both ends of a range, or with each value of a list.
    fn of_ranges(&mut self, expr: Expr) -> Result<Expr> {
        let rewrite = |expr: Expr| {
            Ok(match expr {
                Expr::Between(between) if between.expr.is_volatile() => {
                    let expr = Box::new(self.of_expr(*between.expr));
                    Transformed::yes(Expr::Between(Between { expr, ..between }))
                }
                Expr::InList(list) if list.expr.is_volatile() => {
                    let expr = Box::new(self.of_expr(*list.expr));
                    Transformed::yes(Expr::InList(InList { expr, ..list }))
                }
                expr => Transformed::no(expr),
            })
        };
        Ok(expr.transform_up(rewrite)?.data)
    }

    /// The input with the columns, if there are any.
    fn below(self) -> Result<Option<LogicalPlan>> {
        if self.computed.is_empty() {
            return Ok(None);
        }
        let all = self.input.schema().columns().into_iter().map(Expr::Column).chain(self.computed);
        Ok(Some(LogicalPlan::Projection(Projection::try_new(all.collect(), Arc::clone(self.input))?)))
    }
}
