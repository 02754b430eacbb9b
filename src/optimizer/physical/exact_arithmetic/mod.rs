//! Makes arithmetic of whole numbers fail where a result has no room in its type.
//!
//! DataFusion begins anew at the other end: `2147483647 + 1` is -2147483648 in 32 bits, and the product of two prices
//! in cents is any number. Here that is an error. Results that always have room, as that of two 32-bit numbers in 64
//! bits, are computed as before. Plans read the same, but for `-x`, which is `0 - x`. Conditions beside it keep it from
//! rows of which it would be an error: see [`patient`].
//!
//! It sees to projections, filters, aggregates, sorts, joins, and windows of aggregates. What other windows take is
//! computed below them (`compute_keys`).
//!
//! [`patient`]: crate::physical::patient

mod exprs;
mod joins;
mod patient_conditions;
mod windows;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;

pub(super) use self::patient_conditions::PatientConditions;

use self::exprs::Exact;
use self::joins::with_condition;
use self::windows::exact_windows;

#[derive(Debug)]
pub(super) struct ExactArithmetic;

impl PhysicalOptimizerRule for ExactArithmetic {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            Ok(exact_node(&node)?.map_or_else(|| Transformed::no(node), Transformed::yes))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "exact_arithmetic"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A node with exact arithmetic; none if it has been so.
fn exact_node(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let input = node.children().first().map(|input| input.schema());
    let Some(schema) = input else { return Ok(None) };
    let mut exact = Exact::over(&schema);
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        let column =
            |column: &ProjectionExpr| Ok(ProjectionExpr { expr: exact.of(&column.expr)?, alias: column.alias.clone() });
        let columns: Vec<_> = projection.expr().iter().map(column).collect::<Result<_>>()?;
        return exact.then(|| Ok(Arc::new(ProjectionExec::try_new(columns, Arc::clone(projection.input()))?)));
    }
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let predicate = exact.of_all_of(filter.predicate())?;
        return exact.then(|| Ok(Arc::new(FilterExecBuilder::from(filter).with_predicate(predicate).build()?)));
    }
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        let keys = exact.of_keys(sort.expr())?;
        let Some(keys) = LexOrdering::new(keys) else { return Ok(None) };
        let sorted = || SortExec::new(keys, Arc::clone(sort.input())).with_fetch(sort.fetch());
        return exact.then(|| Ok(Arc::new(sorted().with_preserve_partitioning(sort.preserve_partitioning()))));
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        return of_aggregate(aggregate);
    }
    if let Some(join) = with_condition(node, |condition, schema| Exact::over(schema).of_all_of(condition))? {
        return Ok(Some(join));
    }
    exact_windows(node, &mut exact)
}

fn of_aggregate(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (given, merged) = (aggregate.input_schema(), aggregate.input().schema());
    // Of states, too, the functions are those of the rows.
    let mut of_rows = Exact::over(&given);
    let mut functions = aggregate.aggr_expr().to_vec();
    for function in &mut functions {
        let mut of_call = Exact::over(&given);
        let args = of_call.of_all(&function.expressions())?;
        let keys = of_call.of_keys(function.order_bys())?.into_iter().map(|key| key.expr).collect();
        if of_call.has_changed
            && let Some(anew) = function.with_new_expressions(args, keys)
        {
            (*function, of_rows.has_changed) = (Arc::new(anew), true);
        }
    }
    let filters = aggregate.filter_expr().iter().map(|filter| filter.as_ref().map(|it| of_rows.of(it)).transpose());
    let filters: Vec<_> = filters.collect::<Result<_>>()?;
    let mut of_input = Exact::over(&merged);
    let group_by = aggregate.group_expr();
    let mut keys = |keys: &[(Arc<dyn PhysicalExpr>, String)]| -> Result<Vec<_>> {
        keys.iter().map(|(key, name)| Ok((of_input.of(key)?, name.clone()))).collect()
    };
    let (keys, nulls) = (keys(group_by.expr())?, keys(group_by.null_expr())?);
    if !of_rows.has_changed && !of_input.has_changed {
        return Ok(None);
    }
    let group_by = PhysicalGroupBy::new(keys, nulls, group_by.groups().to_vec(), group_by.has_grouping_set());
    let input = Arc::clone(aggregate.input());
    let exact = AggregateExec::try_new(*aggregate.mode(), group_by, functions, filters, input, given)?;
    Ok(Some(Arc::new(exact)))
}
