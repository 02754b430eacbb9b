//! Computes once what a query has several times: a `WITH` table that groups and is referenced twice, the same subquery
//! in two branches of a union.
//!
//! So it does with `WITH` tables that are drawn by `random()` and read several times, which have a name that says so:
//! all places are to see the same rows.
//!
//! Correct where both give the same rows: the sub-plans are equal to the last expression and read the same tables, and
//! nothing in them is volatile or a node of ours. Only sub-plans that group, or have windows, below filters and
//! projections: they have seen all of their input before they give a row, so that nobody waits longer, and are smaller
//! than it, or took a sort. It comes first, where all references to a `WITH` table are still equal; what they ask of
//! it, each for itself, stays above, until `narrow_shared` asks for it together.
//!
//! ```text
//! Inner Join: a.k = b.m                  Inner Join: a.k = b.m
//!   SubqueryAlias: a                       SubqueryAlias: a
//!     Aggregate: sum(v) by k                 Shared: plan=0
//!       TableScan: t                  ->       Aggregate: sum(v) by k
//!   SubqueryAlias: b                       SubqueryAlias: b
//!     Aggregate: sum(v) by k                 Shared: plan=0
//!       TableScan: t                           Aggregate: sum(v) by k
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::equal_plans::{is_plain, is_same};
use crate::config::BlockyardOptions;
use crate::logical::{SharedNode, extension, is_drawn_once, node_of};

#[derive(Debug)]
pub(super) struct ShareSubplans;

impl OptimizerRule for ShareSubplans {
    fn name(&self) -> &str {
        "share_subplans"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let (mut is_done, mut is_recursive) = (false, false);
        plan.apply_with_subqueries(|node| {
            is_done |= node_of::<SharedNode>(node).is_some();
            is_recursive |= matches!(node, LogicalPlan::RecursiveQuery(_));
            Ok(TreeNodeRecursion::Continue)
        })?;
        if is_done {
            return Ok(Transformed::no(plan));
        }
        let is_on = BlockyardOptions::from_config(&config.options()).optimize_shared_subplans;
        let scope = Scope { is_value: false, all: is_on && !is_recursive };
        let mut found = Vec::new();
        count(&plan, scope, &mut found)?;
        let several: Vec<_> = found.into_iter().filter(|found| found.times > 1).map(|found| found.plan).collect();
        match several.is_empty() {
            true => Ok(Transformed::no(plan)),
            false => shared(plan, scope, &several),
        }
    }
}

/// A sub-plan that can be shared, and how often it comes.
struct Found {
    plan: LogicalPlan,
    times: usize,
}

/// Counts the sub-plans that can be shared. Rows of one run of a recursive query are the input of the next. What is in
/// one is counted where it comes for the first time only: where the other copies are not computed, neither is what is
/// in them.
fn count(plan: &LogicalPlan, scope: Scope, found: &mut Vec<Found>) -> Result<()> {
    if matches!(plan, LogicalPlan::RecursiveQuery(_)) {
        return Ok(());
    }
    if can_be_shared(plan, scope)? {
        if let Some(known) = found.iter_mut().find(|known| is_same(&known.plan, plan)) {
            known.times += 1;
            return Ok(());
        }
        found.push(Found { plan: plan.clone(), times: 1 });
    }
    let scalar = scalar_subqueries(plan)?;
    plan.apply_subqueries(|subquery| {
        count(subquery, scope.of_subquery(subquery, &scalar), found).map(|()| TreeNodeRecursion::Continue)
    })?;
    plan.inputs().into_iter().try_for_each(|input| count(input, scope, found))
}

/// Where a sub-plan stands.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// In a subquery that is a value. The query waits for these, each of which has others of its own: who reads a
    /// shared plan may not wait for the same ones as who runs it.
    is_value: bool,
    /// Whether all are shared that can be, and not only those whose rows are drawn.
    all: bool,
}

impl Scope {
    /// That of a subquery of a plan with these scalar ones.
    fn of_subquery(self, subquery: &LogicalPlan, scalar: &[Arc<LogicalPlan>]) -> Self {
        let is_scalar = |of: &Subquery| scalar.iter().any(|scalar| Arc::ptr_eq(scalar, &of.subquery));
        match subquery {
            LogicalPlan::Subquery(subquery) if is_scalar(subquery) => Self { is_value: true, ..self },
            _ => self,
        }
    }
}

/// The subqueries of an operator that are values.
fn scalar_subqueries(plan: &LogicalPlan) -> Result<Vec<Arc<LogicalPlan>>> {
    let mut scalar = Vec::new();
    plan.apply_expressions(|expression| {
        expression.apply(|part| {
            if let Expr::ScalarSubquery(subquery) = part {
                scalar.push(Arc::clone(&subquery.subquery));
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(scalar)
}

/// Whether a plan groups, or has windows, below filters and projections, and gives the same rows each time; or is to be
/// computed once.
fn can_be_shared(plan: &LogicalPlan, scope: Scope) -> Result<bool> {
    let is_once = is_drawn_once(plan);
    if !scope.all && !is_once {
        return Ok(false);
    }
    let mut below = plan;
    loop {
        below = match below {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Filter(filter) => &filter.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(_) => break,
            _ if is_once => break,
            _ => return Ok(false),
        }
    }
    let (mut reads, mut differs) = (false, !plan.all_out_ref_exprs().is_empty());
    plan.apply_with_subqueries(|node| {
        reads |= matches!(node, LogicalPlan::TableScan(_));
        differs |= matches!(node, LogicalPlan::RecursiveQuery(_)) || !(is_once || is_plain(node));
        differs |= scope.is_value && !scalar_subqueries(node)?.is_empty();
        node.apply_expressions(|expression| {
            differs |= !is_once && expression.is_volatile() || expression.exists(|part| Ok(refers_to_a_row(part)))?;
            Ok(if differs { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(if differs { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok((reads || is_once) && !differs)
}

/// Whether an expression has a subquery that is evaluated for each row. Others are plans of their own.
fn refers_to_a_row(expression: &Expr) -> bool {
    let of_rows = |subquery: &Subquery| !subquery.outer_ref_columns.is_empty();
    match expression {
        Expr::Exists(exists) => of_rows(&exists.subquery),
        Expr::InSubquery(within) => of_rows(&within.subquery),
        Expr::SetComparison(comparison) => of_rows(&comparison.subquery),
        Expr::ScalarSubquery(subquery) => of_rows(subquery),
        other => matches!(other, Expr::OuterReferenceColumn(..)),
    }
}

/// The plan with nodes where the sub-plans begin that it has several times.
fn shared(plan: LogicalPlan, scope: Scope, several: &[LogicalPlan]) -> Result<Transformed<LogicalPlan>> {
    if matches!(plan, LogicalPlan::RecursiveQuery(_)) {
        return Ok(Transformed::no(plan));
    }
    let number = match can_be_shared(&plan, scope)? {
        true => several.iter().position(|known| is_same(known, &plan)),
        false => None,
    };
    let is_subquery = matches!(plan, LogicalPlan::Subquery(_));
    let scalar = scalar_subqueries(&plan)?;
    let below = plan.map_subqueries(|subquery| {
        let scope = scope.of_subquery(&subquery, &scalar);
        shared(subquery, scope, several)
    })?;
    let input_of = |input| {
        let input = shared(input, scope, several)?;
        match is_subquery && node_of::<SharedNode>(&input.data).is_some() {
            true => input.map_data(columns_of),
            false => Ok(input),
        }
    };
    let below = below.transform_sibling(|plan| plan.map_children(input_of))?;
    match number {
        Some(number) => Ok(Transformed::yes(extension(SharedNode::new(below.data, number)))),
        None => Ok(below),
    }
}

/// The columns of a plan under a name. DataFusion asks the first operator of a subquery of IN for its column, and no
/// node of others; and it takes one without a name for the other side of the comparison, too.
fn columns_of(plan: LogicalPlan) -> Result<LogicalPlan> {
    let named = LogicalPlanBuilder::from(plan).alias("shared")?;
    let columns: Vec<_> = named.schema().columns().into_iter().map(Expr::Column).collect();
    named.project(columns)?.build()
}
