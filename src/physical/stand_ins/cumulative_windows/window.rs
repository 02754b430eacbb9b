//! Which windows are cumulative, and what evaluates them.

use std::sync::Arc;

use datafusion::arrow::array::downcast_primitive;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float64Type, Int64Type, Schema, UInt64Type,
};
use datafusion::common::{Result, internal_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::{WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, WindowExpr};

use super::CumulativeWindow;
use super::accumulated::Accumulated;
use super::counted::Counted;
use super::folded::{Average, Extreme, Folded, Sum};
use super::ranked::{Ranked, Ranking, ranking_of};
use super::walk::Until;
use crate::aggregates::is_sum;

/// How the text of a window of an aggregate ends that has no `FILTER`. DataFusion has no other way to ask.
const WITHOUT_FILTER: &str = "filter: None }";

/// Whether a window is one of an aggregate that has a `FILTER`.
pub(crate) fn has_filter(window: &dyn WindowExpr) -> bool {
    let is_plain = window.as_any().is::<PlainAggregateWindowExpr>();
    let is_of_aggregate = is_plain || window.as_any().is::<SlidingAggregateWindowExpr>();
    is_of_aggregate && !format!("{window:?}").ends_with(WITHOUT_FILTER)
}

/// Whether windows can be evaluated from row to row, in one operator.
pub(crate) fn are_cumulative(windows: &[Arc<dyn WindowExpr>]) -> bool {
    let until: Option<Vec<_>> = windows.iter().map(|window| until(window.as_ref())).collect();
    // Those who wait for their peers would have to wait on for the partition, each with what is said of it.
    until.is_some_and(|until| !(until.contains(&Until::Peers) && until.contains(&Until::Partition)))
}

/// Whether a window numbers rows by those that are equal in the order.
pub(super) fn ranks_peers(window: &dyn WindowExpr) -> bool {
    matches!(ranking_of(window), Some(Ranking::Ranks | Ranking::DenseRanks))
}

/// Until where a window sees its partition, if from its beginning.
pub(super) fn until(window: &dyn WindowExpr) -> Option<Until> {
    if ranking_of(window).is_some() {
        return Some(Until::Row);
    }
    let plain = window.as_any().downcast_ref::<PlainAggregateWindowExpr>()?;
    if !plain.get_aggregate_expr().order_bys().is_empty() || has_filter(window) {
        return None;
    }
    let frame = window.get_window_frame();
    // All rows are peers where there is no order.
    let all_are_peers = frame.units != WindowFrameUnits::Rows && window.order_by().is_empty();
    let begins = frame.start_bound.is_unbounded()
        || (all_are_peers && matches!(frame.start_bound, WindowFrameBound::CurrentRow));
    let until = match (&frame.end_bound, frame.units) {
        (WindowFrameBound::CurrentRow, WindowFrameUnits::Rows) => Until::Row,
        (WindowFrameBound::CurrentRow, _) if all_are_peers => Until::Partition,
        (WindowFrameBound::CurrentRow, _) => Until::Peers,
        (bound, _) if bound.is_unbounded() => Until::Partition,
        _ => return None,
    };
    begins.then_some(until)
}

/// What evaluates a window over rows of `schema`.
///
/// # Errors
///
/// Where it is not cumulative.
pub(super) fn evaluating(window: &dyn WindowExpr, schema: &Schema) -> Result<Box<dyn CumulativeWindow>> {
    if let Some(ranking) = ranking_of(window) {
        return Ok(Box::new(Ranked::new(ranking)));
    }
    let plain = window.as_any().downcast_ref::<PlainAggregateWindowExpr>();
    let (Some(plain), Some(until)) = (plain, until(window)) else {
        return internal_err!("window {} is not cumulative", window.name());
    };
    let aggregate = plain.get_aggregate_expr();
    if let [argument] = aggregate.expressions().as_slice()
        && !aggregate.is_distinct()
        && let Some(window) = in_a_loop(aggregate, argument, until, schema)?
    {
        return Ok(window);
    }
    Ok(Box::new(Accumulated::try_new(aggregate.clone(), until)?))
}

/// One that needs no accumulator.
fn in_a_loop(
    aggregate: &AggregateFunctionExpr,
    argument: &Arc<dyn PhysicalExpr>,
    until: Until,
    schema: &Schema,
) -> Result<Option<Box<dyn CumulativeWindow>>> {
    let function = aggregate.fun().inner();
    let (from, to) = (argument.data_type(schema)?, aggregate.field().data_type().clone());
    let (name, argument) = (aggregate.name(), Arc::clone(argument));
    Ok(if function.is::<Count>() {
        Some(Box::new(Counted { argument, until, count: 0 }))
    } else if is_sum(aggregate.fun()) {
        match (&from, &to) {
            (DataType::Int64, DataType::Int64) => Some(Folded::<Sum<Int64Type>>::window(name, argument, to, until)),
            (DataType::UInt64, DataType::UInt64) => Some(Folded::<Sum<UInt64Type>>::window(name, argument, to, until)),
            (DataType::Float64, DataType::Float64) => {
                Some(Folded::<Sum<Float64Type>>::window(name, argument, to, until))
            }
            (DataType::Decimal128(_, from), DataType::Decimal128(_, scale)) if from == scale => {
                Some(Folded::<Sum<Decimal128Type>>::window(name, argument, to, until))
            }
            _ => None,
        }
    } else if function.is::<Avg>() && (&from, &to) == (&DataType::Float64, &DataType::Float64) {
        Some(Folded::<Average>::window(name, argument, to, until))
    } else if function.is::<Min>() && from == to {
        extreme::<false>(name, argument, to, until)
    } else if function.is::<Max>() && from == to {
        extreme::<true>(name, argument, to, until)
    } else {
        None
    })
}

/// The smallest or greatest of values in whose order there is no doubt.
fn extreme<const GREATEST: bool>(
    name: &str,
    argument: Arc<dyn PhysicalExpr>,
    data_type: DataType,
    until: Until,
) -> Option<Box<dyn CumulativeWindow>> {
    fn of<T: ArrowPrimitiveType, const GREATEST: bool>(
        name: &str,
        argument: Arc<dyn PhysicalExpr>,
        data_type: DataType,
        until: Until,
    ) -> Box<dyn CumulativeWindow> {
        Folded::<Extreme<T, GREATEST>>::window(name, argument, data_type, until)
    }
    let is_interval = matches!(data_type, DataType::Interval(_));
    if data_type.is_floating() || is_interval {
        return None;
    }
    macro_rules! of_type {
        ($type:ty) => {
            Some(of::<$type, GREATEST>(name, argument, data_type, until))
        };
    }
    downcast_primitive! {
        data_type => (of_type),
        _ => None,
    }
}
