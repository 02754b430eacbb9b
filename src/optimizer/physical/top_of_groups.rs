//! Drops rows early of which only the first of each group are asked for.
//!
//! ```text
//! FilterExec: n <= 3                                      FilterExec: n <= 3
//!   BoundedWindowAggExec: row_number() OVER (g, v) AS n     BoundedWindowAggExec: row_number() OVER (g, v) AS n
//!     (repartition, sort)                             ->      (repartition, sort)
//!       rows                                                    GroupTopKExec: row_number <= 3
//!                                                                 rows
//! ```
//!
//! Correct because no row is dropped that the window would number so, and what windows of the same operator say of the
//! others does not depend on rows behind them: they number rows too, or are of frames that end with the row. The
//! condition stays, as does the window.
//!
//! Not without a group, where all rows are sorted as one, nor for keys of floating-point numbers, of which 0.0 and -0.0
//! would be one group here and two there. Not for few rows, nor where files say that each row has a group of its own.
//! Off with `optimize_top_of_groups`.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Operator, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, InListExpr, Literal};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::estimate::estimate;
use crate::config::BlockyardOptions;
use crate::physical::{GroupTopKExec, IntoPlan, Ranking, TopOfGroups, ranking_of};

/// Fewer rows are sorted as soon as looked at.
const MANY_ROWS: f64 = 10_000.0;
/// More rows of each group are not kept in order.
const MOST_ROWS: u64 = 1024;

#[derive(Debug)]
pub(super) struct TopOfGroupsRule;

impl PhysicalOptimizerRule for TopOfGroupsRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_top_of_groups {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(Transformed::no(node)) };
            let asked = split_conjunction(filter.predicate()).into_iter().filter_map(last_asked_for);
            let below = asked.filter_map(|(column, k)| with_top(filter.input(), column, k).transpose()).next();
            match below.transpose()? {
                Some(below) => Ok(Transformed::yes(replace_children_if_necessary(node, vec![below])?)),
                None => Ok(Transformed::no(node)),
            }
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "top_of_groups"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A column of which a condition keeps values up to some number, if only these.
fn last_asked_for(condition: &Arc<dyn PhysicalExpr>) -> Option<(usize, u64)> {
    if let Some(list) = condition.downcast_ref::<InListExpr>() {
        let values: Option<Vec<u64>> = list.list().iter().map(number).collect();
        return (!list.negated()).then_some((column(list.expr())?, values?.into_iter().max()?));
    }
    let compared = condition.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (compared.left(), compared.right());
    let (column, op, number) = match (number(right), number(left)) {
        (Some(number), _) => (column(left)?, *compared.op(), number),
        (_, Some(number)) => (column(right)?, compared.op().swap()?, number),
        (None, None) => return None,
    };
    match op {
        Operator::Eq | Operator::LtEq => Some((column, number)),
        Operator::Lt => Some((column, number.checked_sub(1)?)),
        _ => None,
    }
}

/// The column that an expression is, or is as another type of whole numbers.
fn column(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) if cast.cast_type().is_integer() => column(cast.expr()),
        Some(_) => None,
        None => Some(expr.downcast_ref::<Column>()?.index()),
    }
}

fn number(expr: &Arc<dyn PhysicalExpr>) -> Option<u64> {
    let value = expr.downcast_ref::<Literal>()?.value();
    match value.data_type().is_integer().then(|| value.cast_to(&DataType::UInt64))? {
        Ok(ScalarValue::UInt64(number)) => number,
        _ => None,
    }
}

/// The plan of some projections and a window that numbers rows in a column, over rows of which those are dropped that
/// it would number behind `k`; `None` if it is another one.
fn with_top(plan: &Arc<dyn ExecutionPlan>, column: usize, k: u64) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let below = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => match projection.expr()[column].expr.downcast_ref::<Column>() {
            Some(column) => with_top(projection.input(), column.index(), k)?,
            None => None,
        },
        None => below_window(plan.as_ref(), column, k)?,
    };
    below.map(|below| replace_children_if_necessary(Arc::clone(plan), vec![below])).transpose()
}

fn below_window(plan: &dyn ExecutionPlan, column: usize, k: u64) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (windows, input) = match (plan.downcast_ref::<WindowAggExec>(), plan.downcast_ref::<BoundedWindowAggExec>()) {
        (Some(window), _) => (window.window_expr(), window.input()),
        (_, Some(window)) => (window.window_expr(), window.input()),
        (None, None) => return Ok(None),
    };
    let window = column.checked_sub(input.schema().fields().len()).and_then(|place| windows.get(place));
    let Some((window, ranking)) = window.and_then(|window| Some((window, ranking_of(window.as_ref())?))) else {
        return Ok(None);
    };
    let see_no_more = windows.iter().all(|other| has_keys_of(window, other) && sees_none_behind(other, ranking));
    if k == 0 || k > MOST_ROWS || !see_no_more {
        return Ok(None);
    }
    let top = TopOfGroups {
        partition_by: window.partition_by().to_vec(),
        order_by: window.order_by().to_vec(),
        ranking,
        k: k as usize,
    };
    let is_worthwhile = top.can_be_kept(&input.schema()) && has_large_groups(input, &top.partition_by);
    Ok(is_worthwhile.then(|| GroupTopKExec::new(Arc::clone(input), top).into_plan()))
}

fn has_keys_of(window: &Arc<dyn WindowExpr>, other: &Arc<dyn WindowExpr>) -> bool {
    window.partition_by() == other.partition_by() && window.order_by() == other.order_by()
}

/// Whether what a window says of the rows that `ranking` numbers first does not depend on rows behind them.
fn sees_none_behind(window: &Arc<dyn WindowExpr>, ranking: Ranking) -> bool {
    if ranking_of(window.as_ref()).is_some() {
        return true;
    }
    let is_of_frame =
        window.as_any().is::<PlainAggregateWindowExpr>() || window.as_any().is::<SlidingAggregateWindowExpr>();
    let frame = window.get_window_frame();
    // All peers of a row are numbered like it, or some of them behind it.
    let has_all = ranking != Ranking::Rows || frame.units == WindowFrameUnits::Rows;
    is_of_frame && has_all && matches!(frame.end_bound, WindowFrameBound::CurrentRow | WindowFrameBound::Preceding(_))
}

/// Whether groups may have several rows, and all together have many.
fn has_large_groups(input: &Arc<dyn ExecutionPlan>, keys: &[Arc<dyn PhysicalExpr>]) -> bool {
    let Some(expected) = estimate(input) else { return true };
    let is_unique =
        |key: &Arc<dyn PhysicalExpr>| key.downcast_ref::<Column>().is_some_and(|key| expected.is_unique(key.index()));
    expected.rows >= MANY_ROWS && !keys.iter().any(is_unique)
}
