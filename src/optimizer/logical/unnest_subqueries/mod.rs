//! Subqueries that depend on rows outside, as joins: those that DataFusion does not join, or joins wrongly.
//!
//! DataFusion takes the conditions on columns outside out of a subquery and makes a join of them. That is right where
//! nothing stands between a condition and the join that its place matters to (`simple.rs`). Here the columns outside
//! are brought into the subquery instead: each of their values once, a *domain*, crossed with what the subquery reads.
//! From there on the subquery is one for all rows outside, in groups by the domain.
//!
//! ```text
//! o.., (S of o.k)     o LEFT JOIN (S' with d) ON o.k IS NOT DISTINCT FROM d,  d of SELECT DISTINCT k FROM o
//!
//! S                   S'
//! rows                rows x d
//! Filter(.. o.k ..)   Filter(.. d ..)
//! groups by g         groups by g, d
//! one group           d LEFT JOIN groups by d: of no rows the count is 0
//! windows             each PARTITION BY d too
//! LIMIT n             row_number() OVER (PARTITION BY d ..) <= n
//! join of two         join of both, of equal d
//! ```

mod domain;
mod outside;
mod simple;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, Expr, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Projection, Subquery, SubqueryAlias,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use self::domain::{Domain, columns_of};
pub(super) use self::outside::depends_on_outside;
use self::outside::{has_all, lateral, outer_columns};
pub(super) use self::simple::{Asked, is_simple};
use crate::logical::{has_node, has_part, is_subquery};

#[derive(Debug)]
pub(super) struct UnnestSubqueries;

impl OptimizerRule for UnnestSubqueries {
    fn name(&self) -> &str {
        "unnest_subqueries"
    }

    /// From the top: what a subquery knows of rows outside is then known to the subqueries in it.
    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // Of some that depend on a side of a join it is not said.
        let may_have_any = |node: &LogicalPlan| {
            matches!(node, LogicalPlan::Subquery(_))
                || has_part(node, |part| is_subquery(part) || matches!(part, Expr::OuterReferenceColumn(..)))
        };
        if !has_node(&plan, may_have_any) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_down_with_subqueries(|plan| match plan {
            LogicalPlan::Filter(filter) => {
                let mut joined = Joined::new(&filter.input, config);
                let predicate = joined.expr(filter.predicate.clone())?;
                let Some(joined) = joined.done() else { return Ok(Transformed::no(LogicalPlan::Filter(filter))) };
                let joined = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(joined))?);
                Ok(Transformed::yes(only(joined, filter.input.schema())?))
            }
            LogicalPlan::Projection(projection) => {
                let mut joined = Joined::new(&projection.input, config);
                let exprs = joined.exprs(&projection.expr)?;
                Ok(match joined.done() {
                    Some(joined) => {
                        Transformed::yes(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(joined))?))
                    }
                    None => Transformed::no(LogicalPlan::Projection(projection)),
                })
            }
            LogicalPlan::Aggregate(aggregate) => {
                // DataFusion joins none of these.
                let mut joined = Joined { takes_simple: true, ..Joined::new(&aggregate.input, config) };
                let groups = joined.exprs(&aggregate.group_expr)?;
                let aggregates = joined.exprs(&aggregate.aggr_expr)?;
                Ok(match joined.done() {
                    Some(joined) => Transformed::yes(LogicalPlan::Aggregate(Aggregate::try_new(
                        Arc::new(joined),
                        groups,
                        aggregates,
                    )?)),
                    None => Transformed::no(LogicalPlan::Aggregate(aggregate)),
                })
            }
            LogicalPlan::Join(join) => unnested(join, config),
            plan => Ok(Transformed::no(plan)),
        })
    }
}

/// Rows with what subqueries say of them.
struct Joined<'a> {
    config: &'a dyn OptimizerConfig,
    rows: &'a LogicalPlan,
    joined: Option<LogicalPlan>,
    /// Whether subqueries are joined here that DataFusion joins as it should elsewhere.
    takes_simple: bool,
    /// The subqueries that are joined, and the columns with their values.
    values: Vec<(Subquery, Column)>,
}

impl<'a> Joined<'a> {
    fn new(rows: &'a LogicalPlan, config: &'a dyn OptimizerConfig) -> Self {
        Self { config, rows, joined: None, takes_simple: false, values: Vec::new() }
    }

    /// The expression with columns in the place of subqueries.
    fn expr(&mut self, expr: Expr) -> Result<Expr> {
        let expr = expr.transform_down(|expr| match &expr {
            Expr::ScalarSubquery(subquery) => Ok(match self.value(subquery)? {
                Some(value) => Transformed::new(Expr::Column(value), true, TreeNodeRecursion::Jump),
                None => Transformed::no(expr),
            }),
            _ => Ok(Transformed::no(expr)),
        });
        Ok(expr?.data)
    }

    /// The same for some, which keep their names.
    fn exprs(&mut self, exprs: &[Expr]) -> Result<Vec<Expr>> {
        let names = NamePreserver::new_for_projection();
        exprs.iter().map(|expr| Ok(names.save(expr).restore(self.expr(expr.clone())?))).collect()
    }

    fn done(self) -> Option<LogicalPlan> {
        self.joined
    }

    /// The column with the value of a subquery; `None` where it is left to DataFusion.
    fn value(&mut self, subquery: &Subquery) -> Result<Option<Column>> {
        if let Some((_, value)) = self.values.iter().find(|(known, _)| known == subquery) {
            return Ok(Some(value.clone()));
        }
        let plan = subquery.subquery.as_ref();
        let has_one_row = plan.max_rows().is_some_and(|rows| rows <= 1);
        let columns = outer_columns(plan)?;
        let is_known = !columns.is_empty() && has_all(self.rows.schema(), &columns);
        if !has_one_row || !is_known || !self.takes_simple && is_simple(plan, Asked::Value)? {
            return Ok(None);
        }
        let domain = Domain::of(self.rows, &columns, self.config)?;
        let below = domain.below(plan)?;
        let name = self.config.alias_generator().next("__value");
        let value = Expr::Column(Column::from(plan.schema().qualified_field(0))).alias(&name);
        let values = [vec![value], domain.columns(below.schema())?].concat();
        let below = LogicalPlanBuilder::from(below).project(values)?.build()?;
        let rows = self.joined.take().unwrap_or_else(|| self.rows.clone());
        let is_same = domain.is_of_row(below.schema())?;
        self.joined = Some(LogicalPlanBuilder::from(rows).join_on(below, JoinType::Left, [is_same])?.build()?);
        self.values.push((subquery.clone(), Column::new_unqualified(name)));
        Ok(self.values.last().map(|(_, value)| value.clone()))
    }
}

/// A join with a subquery that depends on the rows of the other side.
fn unnested(join: Join, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    // One that depends on them only in its own subqueries is not marked.
    let marked = lateral(&join.right);
    let (plan, alias) = marked.map_or((join.right.as_ref(), None), |(marked, alias)| (marked.subquery.as_ref(), alias));
    let columns = outer_columns(plan)?;
    let is_known = !columns.is_empty() && has_all(join.left.schema(), &columns);
    let is_possible = matches!(join.join_type, JoinType::Inner | JoinType::Left) && is_known;
    if !is_possible || marked.is_some() && is_simple(plan, Asked::Rows)? {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let domain = Domain::of(&join.left, &columns, config)?;
    let mut below = domain.below(plan)?;
    if let Some(alias) = alias {
        below = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(below), alias.clone())?);
    }
    let on = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
    let conditions = [domain.is_of_row(below.schema())?].into_iter().chain(on).chain(join.filter.clone());
    let left = LogicalPlanBuilder::from(Arc::clone(&join.left));
    let joined = left.join_on(below, join.join_type, conditions)?.build()?;
    Ok(Transformed::yes(only(joined, &join.schema)?))
}

/// Rows with these columns alone.
fn only(rows: LogicalPlan, columns: &DFSchema) -> Result<LogicalPlan> {
    LogicalPlanBuilder::from(rows).project(columns_of(columns))?.build()
}
