//! Windows with exact arithmetic in what they take, are partitioned and ordered by. See [`super`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use super::exprs::Exact;
use crate::physical::has_filter;

/// Windows with exact arithmetic; none if the node is another one, or they have been so.
pub(super) fn exact_windows(
    node: &Arc<dyn ExecutionPlan>,
    exact: &mut Exact<'_>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(windows) = node.downcast_ref::<WindowAggExec>() {
        let exprs = of_all(windows.window_expr(), exact)?;
        let (input, is_partitioned) = (Arc::clone(windows.input()), !windows.partition_keys().is_empty());
        return exact.then(|| Ok(Arc::new(WindowAggExec::try_new(exprs, input, is_partitioned)?)));
    }
    if let Some(windows) = node.downcast_ref::<BoundedWindowAggExec>() {
        let exprs = of_all(windows.window_expr(), exact)?;
        let (input, is_partitioned) = (Arc::clone(windows.input()), !windows.partition_keys().is_empty());
        let order = windows.input_order_mode.clone();
        return exact.then(|| Ok(Arc::new(BoundedWindowAggExec::try_new(exprs, input, order, is_partitioned)?)));
    }
    Ok(None)
}

fn of_all(windows: &[Arc<dyn WindowExpr>], exact: &mut Exact<'_>) -> Result<Vec<Arc<dyn WindowExpr>>> {
    windows.iter().map(|window| of_window(window, exact)).collect()
}

fn of_window(window: &Arc<dyn WindowExpr>, exact: &mut Exact<'_>) -> Result<Arc<dyn WindowExpr>> {
    if has_filter(window.as_ref()) {
        // Nothing says which one it is: what it takes, and its keys, are computed below.
        return Ok(Arc::clone(window));
    }
    let partition_by = exact.of_all(window.partition_by())?;
    let order_by = exact.of_keys(window.order_by())?;
    let frame = Arc::clone(window.get_window_frame());
    if let Some(plain) = window.as_any().downcast_ref::<PlainAggregateWindowExpr>() {
        let aggregate = of_call(plain.get_aggregate_expr(), exact)?;
        return Ok(Arc::new(PlainAggregateWindowExpr::new(aggregate, &partition_by, &order_by, frame, None)));
    }
    if let Some(sliding) = window.as_any().downcast_ref::<SlidingAggregateWindowExpr>() {
        let aggregate = of_call(sliding.get_aggregate_expr(), exact)?;
        return Ok(Arc::new(SlidingAggregateWindowExpr::new(aggregate, &partition_by, &order_by, frame, None)));
    }
    match window.as_any().downcast_ref::<StandardWindowExpr>() {
        Some(standard) => {
            let function = Arc::clone(standard.get_standard_func_expr());
            Ok(Arc::new(StandardWindowExpr::new(function, &partition_by, &order_by, frame)))
        }
        None => Ok(Arc::clone(window)),
    }
}

fn of_call(call: &AggregateFunctionExpr, exact: &mut Exact<'_>) -> Result<Arc<AggregateFunctionExpr>> {
    let args = exact.of_all(&call.expressions())?;
    let keys = exact.of_keys(call.order_bys())?.into_iter().map(|key| key.expr).collect();
    Ok(Arc::new(call.with_new_expressions(args, keys).unwrap_or_else(|| call.clone())))
}
