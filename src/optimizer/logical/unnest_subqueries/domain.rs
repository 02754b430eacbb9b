//! The values of columns outside, and what a subquery is for each of them.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, ScalarValue, not_impl_err};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, Expr, ExprFunctionExt, ExprSchemable, FetchType, Filter, Join, JoinType, Limit,
    LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Sort, SortExpr, SubqueryAlias, Union, Unnest,
    Window, WindowFrameUnits, WindowFunctionDefinition, binary_expr, lit, when,
};
use datafusion::optimizer::OptimizerConfig;

use crate::logical::{SharedNode, is_ours, node_of};

use super::outside::{Outer, depends_on_outside, with_columns};

/// The values that columns outside have together, each once.
pub(super) struct Domain<'a> {
    config: &'a dyn OptimizerConfig,
    values: LogicalPlan,
    /// The columns outside, and what they are called here.
    names: Vec<(Column, String)>,
}

/// A plan with columns of a domain, by their names.
struct Side {
    plan: LogicalPlan,
    names: Vec<String>,
}

impl<'a> Domain<'a> {
    /// The values that some columns have in `rows`.
    pub(super) fn of(rows: &LogicalPlan, columns: &[Outer], config: &'a dyn OptimizerConfig) -> Result<Self> {
        if !has_the_same_values(rows, columns)? {
            return not_impl_err!(
                "a subquery that depends on values that may be others each time, as those of random(), a function, a \
                 window or LIMIT; make a table of the rows outside first"
            );
        }
        let named = |(_, column): &Outer| (column.clone(), config.alias_generator().next("__outer"));
        let names: Vec<(Column, String)> = columns.iter().map(named).collect();
        let values = names.iter().map(|(column, name)| Expr::Column(column.clone()).alias(name));
        let values = LogicalPlanBuilder::from(rows.clone()).project(values)?.distinct()?.build()?;
        Ok(Self { config, values, names })
    }

    /// The columns of the domain among those of a plan.
    pub(super) fn columns(&self, schema: &DFSchema) -> Result<Vec<Expr>> {
        self.names.iter().map(|(_, name)| column_named(schema, name)).collect()
    }

    /// The condition that rows of a subquery are those of a row outside.
    pub(super) fn is_of_row(&self, below: &DFSchema) -> Result<Expr> {
        let outside = self.names.iter().map(|(column, _)| Expr::Column(column.clone()));
        let conditions = outside.zip(self.columns(below)?).map(|(one, other)| is_same(one, other));
        Ok(conditions.reduce(Expr::and).unwrap_or_else(|| lit(true)))
    }

    /// What a plan is for each value of the domain, with the columns of the domain besides.
    pub(super) fn below(&self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        if !depends_on_outside(plan)? {
            return LogicalPlanBuilder::from(plan.clone()).cross_join(self.values.clone())?.build();
        }
        match plan {
            LogicalPlan::Projection(Projection { expr, input, .. }) => {
                let below = self.below(input)?;
                let exprs = [self.exprs(expr, &below, &[input.schema()])?, self.columns(below.schema())?].concat();
                Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(below))?))
            }
            LogicalPlan::Filter(Filter { predicate, input, .. }) => {
                let below = self.below(input)?;
                let predicate = self.expr(predicate, &below, &[input.schema()])?;
                Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(below))?))
            }
            LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => {
                let below = Arc::new(self.below(input)?);
                Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(below, alias.clone())?))
            }
            // Of UNNEST in FROM.
            LogicalPlan::Subquery(subquery) => self.below(&subquery.subquery),
            // The order of a subquery counts where it is cut, and there it is looked at.
            LogicalPlan::Sort(Sort { input, fetch: None, .. }) => self.below(input),
            LogicalPlan::Limit(limit) => self.first_rows(limit),
            LogicalPlan::Aggregate(aggregate) => self.groups(aggregate),
            LogicalPlan::Window(window) => self.windows(window),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(self.below(input)?))))
            }
            LogicalPlan::Distinct(Distinct::On(DistinctOn { on_expr, select_expr, sort_expr, input, .. })) => {
                let (below, rows) = (self.below(input)?, [input.schema()]);
                let columns = self.columns(below.schema())?;
                let on = [columns.clone(), self.exprs(on_expr, &below, &rows)?].concat();
                let select = [self.exprs(select_expr, &below, &rows)?, columns.clone()].concat();
                let sort = sort_expr.as_ref().map(|sort| {
                    let first = columns.iter().map(|column| Ok(column.clone().sort(true, false)));
                    first.chain(sort.iter().map(|by| self.sort(by, &below, &rows))).collect::<Result<Vec<_>>>()
                });
                let distinct = DistinctOn::try_new(on, select, sort.transpose()?, Arc::new(below))?;
                Ok(LogicalPlan::Distinct(Distinct::On(distinct)))
            }
            LogicalPlan::Unnest(Unnest { input, exec_columns, options, .. }) => {
                LogicalPlanBuilder::from(self.below(input)?)
                    .unnest_columns_with_options(exec_columns.clone(), options.clone())?
                    .build()
            }
            LogicalPlan::Union(Union { inputs, schema }) => self.union(inputs, schema),
            LogicalPlan::Join(join) => self.join(join),
            other => not_impl_err!("{} in a subquery that depends on columns outside of it", kind_of(other)),
        }
    }

    /// An expression over a plan with a domain, where it was over `rows`.
    fn expr(&self, expr: &Expr, below: &LogicalPlan, rows: &[&DFSchemaRef]) -> Result<Expr> {
        let known = |column: &Column| {
            let (_, name) = self.names.iter().find(|(outside, _)| outside == column)?;
            let (table, field) = below.schema().iter().find(|(_, field)| field.name() == name)?;
            Some((Arc::clone(field), Column::new(table.cloned(), name)))
        };
        let name = NamePreserver::new_for_projection().save(expr);
        Ok(name.restore(with_columns(expr.clone(), rows, &known)?))
    }

    fn exprs(&self, exprs: &[Expr], below: &LogicalPlan, rows: &[&DFSchemaRef]) -> Result<Vec<Expr>> {
        exprs.iter().map(|expr| self.expr(expr, below, rows)).collect()
    }

    fn sort(&self, by: &SortExpr, below: &LogicalPlan, rows: &[&DFSchemaRef]) -> Result<SortExpr> {
        Ok(SortExpr { expr: self.expr(&by.expr, below, rows)?.unalias(), ..by.clone() })
    }

    /// The first rows for each value.
    fn first_rows(&self, limit: &Limit) -> Result<LogicalPlan> {
        // What is computed of rows is computed of the first ones as well.
        if let LogicalPlan::Projection(Projection { expr, input, .. }) = limit.input.as_ref() {
            let limit = LogicalPlan::Limit(Limit { input: Arc::clone(input), ..limit.clone() });
            return self.below(&LogicalPlan::Projection(Projection::try_new(expr.clone(), Arc::new(limit))?));
        }
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return not_impl_err!("LIMIT of an expression in a subquery that depends on columns outside of it");
        };
        let (input, order) = match limit.input.as_ref() {
            LogicalPlan::Sort(Sort { input, expr, fetch: None }) => (input, expr.clone()),
            _ => (&limit.input, Vec::new()),
        };
        let below = self.below(input)?;
        let order = order.iter().map(|by| self.sort(by, &below, &[input.schema()]));
        let (order, partitions) = (order.collect::<Result<Vec<_>>>()?, self.columns(below.schema())?);
        let name = self.config.alias_generator().next("__row");
        let number = row_number().partition_by(partitions).order_by(order).build()?.alias(&name);
        let kept = columns_of(below.schema());
        let row = Expr::Column(Column::new_unqualified(&name));
        let is_first = row.clone().gt(lit(skip as u64));
        let is_first = match fetch {
            Some(rows) => is_first.and(row.lt_eq(lit(skip.saturating_add(rows) as u64))),
            None => is_first,
        };
        LogicalPlanBuilder::from(below).window([number])?.filter(is_first)?.project(kept)?.build()
    }

    /// Groups for each value. Where all rows are one group, there is one also where there are no rows.
    fn groups(&self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        let Aggregate { input, group_expr, aggr_expr, schema, .. } = aggregate;
        if group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
            return not_impl_err!("GROUPING SETS in a subquery that depends on columns outside of it");
        }
        if aggr_expr.iter().any(|expr| expr.contains_outer() && !expr.any_column_refs()) {
            return not_impl_err!(
                "an aggregate of columns outside of a subquery alone, which is one of the rows outside"
            );
        }
        let below = self.below(input)?;
        let rows = [input.schema()];
        let aggregates = self.exprs(aggr_expr, &below, &rows)?;
        let groups = [self.exprs(group_expr, &below, &rows)?, self.columns(below.schema())?].concat();
        if !group_expr.is_empty() {
            return LogicalPlanBuilder::from(below).aggregate(groups, aggregates)?.build();
        }
        let groups = LogicalPlanBuilder::from(below).aggregate(groups, aggregates)?.build()?;
        let found = self.config.alias_generator().next("__found");
        let Side { plan: groups, names } = self.renamed(groups, vec![lit(true).alias(&found)])?;
        let same = self.columns(self.values.schema())?.into_iter().zip(&names);
        let same = same.map(|(one, name)| is_same(one, Expr::Column(Column::new_unqualified(name))));
        let all = LogicalPlanBuilder::from(self.values.clone()).join_on(groups, JoinType::Left, same)?.build()?;
        let values = schema.iter().zip(aggr_expr).map(|((table, field), aggregate)| {
            let value = Expr::Column(Column::new(table.cloned(), field.name()));
            Ok(match of_no_rows(aggregate, input.schema())? {
                Some(none) => {
                    let found = Expr::Column(Column::new_unqualified(&found));
                    when(found, value)
                        .otherwise(Expr::Literal(none, None))?
                        .alias_qualified(table.cloned(), field.name())
                }
                None => value,
            })
        });
        let columns = [values.collect::<Result<Vec<_>>>()?, self.columns(all.schema())?].concat();
        LogicalPlanBuilder::from(all).project(columns)?.build()
    }

    fn windows(&self, window: &Window) -> Result<LogicalPlan> {
        let below = self.below(&window.input)?;
        let exprs = self.exprs(&window.window_expr, &below, &[window.input.schema()])?;
        let partitions = self.columns(below.schema())?;
        let exprs = exprs.into_iter().zip(&window.window_expr).map(|(expr, before)| {
            let name = before.schema_name().to_string();
            match expr.unalias() {
                Expr::WindowFunction(function) => {
                    let mut function: WindowFunction = *function;
                    function.params.partition_by.extend(partitions.clone());
                    Ok(Expr::WindowFunction(Box::new(function)).alias(name))
                }
                _ => not_impl_err!("a window that is no function"),
            }
        });
        let exprs = exprs.collect::<Result<Vec<_>>>()?;
        Ok(LogicalPlan::Window(Window::try_new(exprs, Arc::new(below))?))
    }

    /// The columns of the inputs go by their places.
    fn union(&self, inputs: &[Arc<LogicalPlan>], schema: &DFSchemaRef) -> Result<LogicalPlan> {
        let inputs = inputs.iter().map(|input| {
            let below = self.below(input)?;
            let columns = [columns_of(input.schema()), self.columns(below.schema())?].concat();
            Ok(Arc::new(LogicalPlanBuilder::from(below).project(columns)?.build()?))
        });
        let union = Union::try_new(inputs.collect::<Result<Vec<_>>>()?)?;
        // It has the names that it had.
        let columns = union.schema.iter().zip(schema.iter()).map(|((_, field), (table, before))| {
            Expr::Column(Column::new_unqualified(field.name())).alias_qualified(table.cloned(), before.name())
        });
        let columns: Vec<Expr> = columns.collect();
        let columns = [columns, self.columns(&union.schema)?].concat();
        LogicalPlanBuilder::from(LogicalPlan::Union(union)).project(columns)?.build()
    }

    fn join(&self, join: &Join) -> Result<LogicalPlan> {
        let conditions = join.on.iter().flat_map(|(left, right)| [left, right]).chain(&join.filter);
        let depends = conditions.into_iter().any(Expr::contains_outer);
        let (of_left, of_right) = (depends_on_outside(&join.left)?, depends_on_outside(&join.right)?);
        let (keeps_left, keeps_right) = match join.join_type {
            JoinType::Inner => (true, true),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (false, true),
            JoinType::Full => (false, false),
        };
        // One side is enough where rows of the other one are nothing without it.
        if !depends && keeps_left && !of_right {
            return self.joined(join, self.below(&join.left)?, join.right.as_ref().clone(), Vec::new());
        }
        if !depends && keeps_right && !of_left {
            return self.joined(join, join.left.as_ref().clone(), self.below(&join.right)?, Vec::new());
        }
        let (left, right) = (self.below(&join.left)?, self.below(&join.right)?);
        if keeps_left {
            let (here, Side { plan, names }) = (self.columns(left.schema())?, self.renamed(right, Vec::new())?);
            return self.joined(join, left, plan, equal(here, names));
        }
        let (there, Side { plan, names }) = (self.columns(right.schema())?, self.renamed(left, Vec::new())?);
        let joined = self.joined(join, plan, right, equal(there.clone(), names.clone()))?;
        if keeps_right {
            return Ok(joined);
        }
        let values = there.into_iter().zip(names).zip(&self.names).map(|((there, name), (_, value))| {
            let here = Expr::Column(Column::new_unqualified(name));
            Ok(when(here.clone().is_null(), there).otherwise(here)?.alias(value))
        });
        let columns = [columns_of(&join.schema), values.collect::<Result<Vec<_>>>()?].concat();
        LogicalPlanBuilder::from(joined).project(columns)?.build()
    }

    /// A join of other sides, and on further conditions.
    fn joined(&self, join: &Join, left: LogicalPlan, right: LogicalPlan, more: Vec<Expr>) -> Result<LogicalPlan> {
        let both = LogicalPlanBuilder::from(left.clone()).cross_join(right.clone())?.build()?;
        let rows = [join.left.schema(), join.right.schema()];
        let expr = |expr: &Expr| self.expr(expr, &both, &rows).map(Expr::unalias);
        let on = join.on.iter().map(|(one, other)| Ok((expr(one)?, expr(other)?))).collect::<Result<Vec<_>>>()?;
        let filter = join.filter.as_ref().map(expr).transpose()?;
        let filter = more.into_iter().chain(filter).reduce(Expr::and);
        Ok(LogicalPlan::Join(Join::try_new(
            Arc::new(left),
            Arc::new(right),
            on,
            filter,
            join.join_type,
            join.join_constraint,
            join.null_equality,
            join.null_aware,
        )?))
    }

    /// A plan with a domain, of which the columns have other names, and with more columns.
    fn renamed(&self, plan: LogicalPlan, more: Vec<Expr>) -> Result<Side> {
        let (mut columns, mut names) = (columns_of(plan.schema()), vec![String::new(); self.names.len()]);
        for column in &mut columns {
            let Expr::Column(Column { name, .. }) = &*column else { continue };
            if let Some(place) = self.names.iter().position(|(_, known)| known == name) {
                names[place] = self.config.alias_generator().next("__outer");
                *column = column.clone().alias(&names[place]);
            }
        }
        columns.extend(more);
        Ok(Side { plan: LogicalPlanBuilder::from(plan).project(columns)?.build()?, names })
    }
}

/// Whether some columns of a plan have the same values each time: it is read once for the domain and once for the rows
/// themselves. Sums of floats may differ in the last digits, and which rows are first among equals too.
fn has_the_same_values(plan: &LogicalPlan, columns: &[Outer]) -> Result<bool> {
    let are_exact = !columns.iter().any(|(field, _)| field.data_type().is_floating() || field.data_type().is_nested());
    let mut is_same = true;
    plan.apply_with_subqueries(|node| {
        is_same &= match node {
            LogicalPlan::Limit(limit) => is_sorted_by_all(&limit.input),
            LogicalPlan::Window(window) => {
                let rows = window.input.schema();
                are_exact && window.window_expr.iter().all(|expr| takes_equals_together(expr, rows))
            }
            LogicalPlan::Distinct(Distinct::On(_)) => false,
            LogicalPlan::Aggregate(_) => are_exact,
            node => !is_ours(node) || node_of::<SharedNode>(node).is_some(),
        };
        node.apply_expressions(|expr| {
            is_same &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is_same)
}

/// Whether rows that are equal in the order are equal.
fn is_sorted_by_all(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Sort(Sort { expr, input, .. }) = plan else { return false };
    has_all_columns(expr.iter().map(|by| &by.expr), input.schema())
}

fn has_all_columns<'a>(exprs: impl Iterator<Item = &'a Expr> + Clone, rows: &DFSchema) -> bool {
    columns_of(rows).iter().all(|column| exprs.clone().any(|expr| expr == column))
}

/// Whether a window says the same of rows that are equal in its order, or there are none but equal ones.
fn takes_equals_together(expr: &Expr, rows: &DFSchema) -> bool {
    let Expr::WindowFunction(function) = expr.clone().unalias() else { return false };
    let WindowFunctionParams { partition_by, order_by, window_frame: frame, .. } = &function.params;
    let (takes_all, goes_by) = (frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded(), frame.units);
    match &function.fun {
        _ if has_all_columns(partition_by.iter().chain(order_by.iter().map(|by| &by.expr)), rows) => true,
        WindowFunctionDefinition::AggregateUDF(_) => takes_all || goes_by != WindowFrameUnits::Rows,
        WindowFunctionDefinition::WindowUDF(function) => {
            matches!(function.name(), "rank" | "dense_rank" | "percent_rank" | "cume_dist")
        }
    }
}

/// What an aggregate is of no rows, where that is not null.
fn of_no_rows(aggregate: &Expr, rows: &DFSchema) -> Result<Option<ScalarValue>> {
    match aggregate.clone().unalias_nested().data {
        Expr::AggregateFunction(function) => {
            let kind = aggregate.get_type(rows)?;
            Ok(Some(function.func.default_value(&kind)?).filter(|value| !value.is_null()))
        }
        _ => not_impl_err!("an aggregate that is no function"),
    }
}

fn equal(columns: Vec<Expr>, names: Vec<String>) -> Vec<Expr> {
    let others = names.into_iter().map(|name| Expr::Column(Column::new_unqualified(name)));
    columns.into_iter().zip(others).map(|(one, other)| is_same(one, other)).collect()
}

/// Null is the same as null.
fn is_same(one: Expr, other: Expr) -> Expr {
    binary_expr(one, Operator::IsNotDistinctFrom, other)
}

/// All columns of a plan, as they are.
pub(super) fn columns_of(schema: &DFSchema) -> Vec<Expr> {
    schema.iter().map(|(table, field)| Expr::Column(Column::new(table.cloned(), field.name()))).collect()
}

/// The column of a name that there is once, whatever its table is called.
fn column_named(schema: &DFSchema, name: &str) -> Result<Expr> {
    match schema.iter().find(|(_, field)| field.name() == name) {
        Some((table, _)) => Ok(Expr::Column(Column::new(table.cloned(), name))),
        None => not_impl_err!("columns outside, which the subquery does not let through"),
    }
}

fn kind_of(plan: &LogicalPlan) -> String {
    let shown = plan.display().to_string();
    shown.split(':').next().unwrap_or_default().to_owned()
}
