//! Which plans give the same rows.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{LogicalPlan, TableScan};

/// Whether both give the same rows.
pub(super) fn is_same(one: &LogicalPlan, other: &LogicalPlan) -> bool {
    one == other && have_same_sources(one, other)
}

/// Whether the scans of equal plans are of the same tables, and not only of the same name.
fn have_same_sources(one: &LogicalPlan, other: &LogicalPlan) -> bool {
    let (ones, others) = (scans(one), scans(other));
    ones.len() == others.len() && ones.iter().zip(&others).all(|(one, other)| is_same_source(one, other))
}

/// The scans of a plan and its subqueries, in an order that is that of its text.
fn scans(plan: &LogicalPlan) -> Vec<TableScan> {
    let mut scans = Vec::new();
    let _infallible = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            scans.push(scan.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    scans
}

/// Whether two scans are of one table, and not only of one name.
pub(super) fn is_same_source(one: &TableScan, other: &TableScan) -> bool {
    match (source_as_provider(&one.source), source_as_provider(&other.source)) {
        (Ok(one), Ok(other)) => Arc::ptr_eq(&one, &other),
        _ => Arc::ptr_eq(&one.source, &other.source),
    }
}

/// Nodes of DataFusion that do nothing but to give rows.
pub(super) fn is_plain(plan: &LogicalPlan) -> bool {
    use LogicalPlan::{
        Aggregate, Distinct, EmptyRelation, Filter, Join, Limit, Projection, Repartition, Sort, SubqueryAlias,
        TableScan, Union, Unnest, Values, Window,
    };
    matches!(
        plan,
        Aggregate(_)
            | Distinct(_)
            | EmptyRelation(_)
            | Filter(_)
            | Join(_)
            | Limit(_)
            | Projection(_)
            | Repartition(_)
            | Sort(_)
            | LogicalPlan::Subquery(_)
            | SubqueryAlias(_)
            | TableScan(_)
            | Union(_)
            | Unnest(_)
            | Values(_)
            | Window(_)
    )
}
