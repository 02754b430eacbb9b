//! Groups rows before they are joined, where that leaves fewer rows and shorter keys.
//!
//! ```text
//! AggregateExec: final, by name                  AggregateExec: final, by name
//!   AggregateExec: partial, by name, sum(v)        ProjectionExec: name, states of sum(v)
//!     HashJoinExec: id = key                 ->      HashJoinExec: id = key
//!       customers: id, name                            customers: id, name
//!       sales: key, v                                  AggregateExec: partial, by key, sum(v)
//!                                                        sales: key, v
//! ```
//!
//! Correct because what the functions take is of one side of the inner joins, and rows of that side with the same keys
//! find the same rows of the other sides: the state of a group stands for its rows wherever they would have gone, as
//! often as they would. What sums of floating-point numbers add first is another matter, as it is with more threads.
//!
//! Done where rows are many and, by what is expected of them, the keys below the joins are cheaper to group by than
//! those above, which are often texts. A partial aggregate gives rows as they are once it has seen that they do not
//! return. Off with `optimize_group_before_joins`.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::update_expr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, replace_children_if_necessary};

use super::estimate::{MANY_ROWS, estimate};
use crate::config::BlockyardOptions;
use crate::physical::{PlanExt, RollUpExec};

/// What the work has to become, as a part of what it was.
const CHEAPER: f64 = 0.6;
/// What a key costs for each row that is grouped by it: to copy, to hash, to compare. As much as two functions.
const PLAIN: f64 = 2.0;
const TEXT: f64 = 8.0;
/// Functions of which states can be put together as often as a row is found.
const FUNCTIONS: [&str; 7] = ["sum", "count", "min", "max", "avg", "bool_and", "bool_or"];

#[derive(Debug)]
pub(super) struct GroupBeforeJoins;

impl PhysicalOptimizerRule for GroupBeforeJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_group_before_joins {
            return Ok(plan);
        }
        let threads = config.execution.target_partitions.max(1);
        let rewrite = |node: Arc<dyn ExecutionPlan>| match below_merging(&node) {
            Some(partial) => Ok(match grouped_before(partial, threads)? {
                Some(states) => Transformed::yes(replace_children_if_necessary(node, vec![states])?),
                None => Transformed::no(node),
            }),
            None => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "group_before_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The first phase of an aggregate whose states can be made elsewhere, below what merges them.
fn below_merging(plan: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    let is_final = |mode: &AggregateMode| matches!(mode, AggregateMode::Final | AggregateMode::FinalPartitioned);
    let merges = plan.downcast_ref::<AggregateExec>().is_some_and(|last| is_final(last.mode()));
    if !merges && !plan.is_operator::<RollUpExec>() {
        return None;
    }
    let first = plan.children().first()?.downcast_ref::<AggregateExec>()?;
    if *first.mode() != AggregateMode::Partial {
        return None;
    }
    let is_plain = |function: &Arc<AggregateFunctionExpr>| {
        FUNCTIONS.contains(&function.fun().name())
            && !function.is_distinct()
            && function.order_bys().is_empty()
            && !function.expressions().iter().any(is_volatile)
    };
    let groups = first.group_expr();
    let is_hashed = *first.input_order_mode() == InputOrderMode::Linear && first.limit_options().is_none();
    let is_sound = groups.is_single() && !groups.is_empty() && !groups.input_exprs().iter().any(is_volatile);
    (is_hashed && is_sound && first.aggr_expr().iter().all(is_plain)).then_some(first)
}

type Expr = Arc<dyn PhysicalExpr>;

/// What is wanted of a plan, as expressions over its columns.
#[derive(Debug, Clone)]
struct Wanted {
    /// What rows are grouped by.
    keys: Vec<Expr>,
    /// The arguments of each function, and its filter.
    functions: Vec<(Vec<Expr>, Option<Expr>)>,
}

impl Wanted {
    fn of(aggregate: &AggregateExec) -> Self {
        let functions = aggregate.aggr_expr().iter().map(|function| function.expressions());
        Self {
            keys: aggregate.group_expr().input_exprs(),
            functions: functions.zip(aggregate.filter_expr().iter().cloned()).collect(),
        }
    }

    /// The same with other functions' expressions.
    fn functions_over(&self, over: &mut impl FnMut(&Expr) -> Option<Expr>) -> Option<Vec<(Vec<Expr>, Option<Expr>)>> {
        let function = |(args, filter): &(Vec<Expr>, Option<Expr>)| {
            let args = args.iter().map(&mut *over).collect::<Option<_>>()?;
            let filter = match filter {
                Some(filter) => Some(over(filter)?),
                None => None,
            };
            Some((args, filter))
        };
        self.functions.iter().map(function).collect()
    }

    /// What it costs for each row to be grouped.
    fn cost(&self, schema: &Schema) -> Option<f64> {
        let types = self.keys.iter().map(|key| key.data_type(schema).ok()).collect::<Option<Vec<_>>>()?;
        Some(self.functions.len() as f64 + types.iter().map(cost_of).sum::<f64>())
    }

    /// The same over the input of a projection.
    fn below(&self, projection: &ProjectionExec) -> Option<Self> {
        let mut below = |expr: &Expr| match collect_columns(expr).is_empty() {
            true => Some(Arc::clone(expr)),
            false => update_expr(expr, projection.expr(), true).ok().flatten(),
        };
        let keys = self.keys.iter().map(&mut below).collect::<Option<_>>()?;
        Some(Self { keys, functions: self.functions_over(&mut below)? })
    }
}

/// A join, and what is wanted of the side that is grouped.
struct Level<'a> {
    join: &'a HashJoinExec,
    side: JoinSide,
    /// Of that side. Its keys are the columns that are wanted above and those that are joined.
    wanted: Wanted,
    /// What is wanted above. Its columns are numbers of keys, and behind them those of the other side.
    above: Vec<Expr>,
    /// For each pair of joined keys the number of that of the side.
    joined: Vec<usize>,
}

/// Where columns of the other side begin in what is wanted above a join.
const OTHERS: usize = 1 << 32;

impl<'a> Level<'a> {
    fn of(join: &'a HashJoinExec, wanted: &Wanted) -> Option<Self> {
        if *join.join_type() != JoinType::Inner || join.filter().is_some() || join.null_aware {
            return None;
        }
        let width = join.left().schema().fields().len();
        let place = |column: usize| join.projection.as_ref().map_or(Some(column), |p| p.get(column).copied());
        let side_of = |column: usize| if column < width { JoinSide::Left } else { JoinSide::Right };
        let sides = |expr: &Expr| -> Option<Vec<JoinSide>> {
            collect_columns(expr).iter().map(|column| place(column.index()).map(side_of)).collect()
        };
        let mut taken = wanted.functions.iter().flat_map(|(args, filter)| args.iter().chain(filter));
        let side = taken.clone().find_map(|expr| sides(expr)?.first().copied()).unwrap_or(JoinSide::Right);
        if !taken.all(|expr| sides(expr).is_some_and(|sides| sides.iter().all(|of| *of == side))) {
            return None;
        }
        let first = if side == JoinSide::Left { 0 } else { width };
        let of_side = |expr: &Expr| over(expr, &|column| place(column).map(|place| place - first));
        let functions = wanted.functions_over(&mut |expr| of_side(expr))?;
        let mut level =
            Self { join, side, wanted: Wanted { keys: Vec::new(), functions }, above: Vec::new(), joined: Vec::new() };
        for key in &wanted.keys {
            let of = sides(key)?;
            let above = match of.iter().all(|of| *of == side) && !of.is_empty() {
                true => column(level.key(of_side(key)?)),
                false => {
                    let columns = collect_columns(key);
                    let of_side = columns.iter().filter(|c| place(c.index()).map(side_of) == Some(side));
                    let numbers: Vec<(usize, usize)> = of_side
                        .map(|c| {
                            let below = Column::new(c.name(), place(c.index())? - first);
                            Some((c.index(), level.key(Arc::new(below))))
                        })
                        .collect::<Option<_>>()?;
                    let others = if side == JoinSide::Left { width } else { 0 };
                    over(key, &|at| match numbers.iter().find(|(column, _)| *column == at) {
                        Some((_, number)) => Some(*number),
                        None => place(at).map(|place| place - others + OTHERS),
                    })?
                }
            };
            level.above.push(above);
        }
        for (left, right) in join.on() {
            let number = level.key(Arc::clone(if side == JoinSide::Left { left } else { right }));
            level.joined.push(number);
        }
        Some(level)
    }

    /// The number of a key of the side.
    fn key(&mut self, key: Expr) -> usize {
        let known = self.wanted.keys.iter().position(|known| known.as_ref() == key.as_ref());
        known.unwrap_or_else(|| {
            self.wanted.keys.push(key);
            self.wanted.keys.len() - 1
        })
    }

    fn input(&self) -> &'a Arc<dyn ExecutionPlan> {
        if self.side == JoinSide::Left { self.join.left() } else { self.join.right() }
    }

    /// What it costs to group here, and to put the states of so many groups together above.
    fn cost(&self, threads: usize, last: f64) -> Option<f64> {
        let expected = estimate(self.input())?;
        let schema = self.input().schema();
        let mut groups = 1.0;
        for key in &self.wanted.keys {
            let values = key.downcast_ref::<Column>().map(|column| expected.distinct(column.index()));
            groups *= values.unwrap_or(expected.rows);
        }
        // Each thread meets those of its rows.
        let of_thread = expected.rows / threads as f64;
        let given = threads as f64 * groups * -(-of_thread / groups).exp_m1();
        Some(expected.rows * self.wanted.cost(&schema)? + given * last)
    }

    /// The join of states instead of rows.
    fn joined(&self, grouped: Grouped) -> Result<Grouped> {
        let is_left = self.side == JoinSide::Left;
        let (mut left, mut right) = (Arc::clone(self.join.left()), Arc::clone(self.join.right()));
        let width = if is_left { grouped.plan.schema().fields().len() } else { left.schema().fields().len() };
        *(if is_left { &mut left } else { &mut right }) = Arc::clone(&grouped.plan);
        let on = self.join.on().iter().zip(&self.joined).map(|((left, right), number)| {
            let key = Arc::clone(&grouped.keys[*number]);
            if is_left { (key, Arc::clone(right)) } else { (Arc::clone(left), key) }
        });
        let (mode, nulls) = (*self.join.partition_mode(), self.join.null_equality());
        let join = HashJoinExec::try_new(left, right, on.collect(), None, &JoinType::Inner, None, mode, nulls, false)?;
        let (of_side, of_others) = if is_left { (0, width) } else { (width, 0) };
        let shifted: Vec<_> = grouped.keys.iter().map(|key| over(key, &|column| Some(column + of_side))).collect();
        let above = self.above.iter().map(|wanted| {
            Arc::clone(wanted).transform_up(|part| {
                let Some(column) = part.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
                let made = match column.index() {
                    other if other >= OTHERS => Column::new(column.name(), other - OTHERS + of_others),
                    number => return Ok(shifted[number].clone().map_or(Transformed::no(part), Transformed::yes)),
                };
                Ok(Transformed::yes(Arc::new(made) as Expr))
            })
        });
        let keys = above.map(TransformedResult::data).collect::<Result<_>>()?;
        let states = grouped.states.iter().map(|state| state + of_side).collect();
        Ok(Grouped { plan: Arc::new(join), keys, states })
    }
}

/// States of groups.
struct Grouped {
    plan: Arc<dyn ExecutionPlan>,
    /// What was wanted, over the columns of the plan.
    keys: Vec<Expr>,
    /// Columns of the plan.
    states: Vec<usize>,
}

/// A column of which only the number counts.
fn column(number: usize) -> Expr {
    Arc::new(Column::new("key", number))
}

/// An expression over columns of other numbers.
fn over(expr: &Expr, number: &impl Fn(usize) -> Option<usize>) -> Option<Expr> {
    let mut is_known = true;
    let made = Arc::clone(expr).transform_up(|part| {
        let Some(column) = part.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
        let found = number(column.index());
        is_known &= found.is_some();
        let made = found.map(|number| Arc::new(Column::new(column.name(), number)) as Expr);
        Ok(made.map_or(Transformed::no(part), Transformed::yes))
    });
    made.ok().filter(|_| is_known).map(|made| made.data)
}

fn cost_of(data_type: &DataType) -> f64 {
    if data_type.is_primitive() || *data_type == DataType::Boolean { PLAIN } else { TEXT }
}

/// The states that the first phase of an aggregate gives, made below the joins where that is worth it.
fn grouped_before(partial: &AggregateExec, threads: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let wanted = Wanted::of(partial);
    let Some(depth) = depth(partial, &wanted, threads) else { return Ok(None) };
    let Some(grouped) = grouped(partial.input(), &wanted, partial, depth)? else { return Ok(None) };
    let schema = partial.schema();
    let given = grouped.plan.schema();
    let states = grouped.states.iter().map(|state| Arc::new(Column::new(given.field(*state).name(), *state)) as Expr);
    let columns = grouped.keys.iter().cloned().chain(states).zip(schema.fields());
    let columns: Vec<_> = columns.map(|(expr, field)| ProjectionExpr { expr, alias: field.name().clone() }).collect();
    let states = ProjectionExec::try_new(columns, grouped.plan)?;
    let made = states.schema();
    let is_same =
        made.fields().len() == schema.fields().len()
            && made.fields().iter().zip(schema.fields()).all(|(made, given)| {
                made.data_type() == given.data_type() && (given.is_nullable() || !made.is_nullable())
            });
    Ok(is_same.then(|| Arc::new(states) as _))
}

/// How many joins are passed to where it is cheapest to group, if that is cheaper enough than above them.
fn depth(partial: &AggregateExec, wanted: &Wanted, threads: usize) -> Option<usize> {
    let each = wanted.cost(&partial.input().schema())?;
    let rows = estimate(partial.input())?.rows;
    let (mut best, mut depth) = (None, 0);
    let (mut plan, mut wanted) = (partial.input(), wanted.clone());
    loop {
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            (plan, wanted) = match wanted.below(projection) {
                Some(below) => (projection.input(), below),
                None => break,
            };
            continue;
        }
        let Some(level) = plan.downcast_ref::<HashJoinExec>().and_then(|join| Level::of(join, &wanted)) else { break };
        let cost = level.cost(threads, each)?;
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, depth));
        }
        (plan, wanted, depth) = (level.input(), level.wanted, depth + 1);
    }
    best.filter(|(cost, _)| rows >= MANY_ROWS && *cost < CHEAPER * rows * each).map(|(_, depth)| depth)
}

/// The states of what is wanted of a plan, grouped below so many joins and one more.
fn grouped(
    plan: &Arc<dyn ExecutionPlan>,
    wanted: &Wanted,
    partial: &AggregateExec,
    depth: usize,
) -> Result<Option<Grouped>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return match wanted.below(projection) {
            Some(wanted) => grouped(projection.input(), &wanted, partial, depth),
            None => Ok(None),
        };
    }
    let Some(level) = plan.downcast_ref::<HashJoinExec>().and_then(|join| Level::of(join, wanted)) else {
        return Ok(None);
    };
    let below = match depth {
        0 => grouped_here(level.input(), &level.wanted, partial)?,
        depth => grouped(level.input(), &level.wanted, partial, depth - 1)?,
    };
    below.map(|below| level.joined(below)).transpose()
}

/// The states of what is wanted of a plan, grouped over it.
fn grouped_here(input: &Arc<dyn ExecutionPlan>, wanted: &Wanted, partial: &AggregateExec) -> Result<Option<Grouped>> {
    let schema = input.schema();
    // Filters on a column reach the input by its name.
    let is_alone = |name: &str| schema.fields().iter().filter(|field| field.name() == name).count() == 1;
    let named = wanted.keys.iter().enumerate().map(|(number, key)| match key.downcast_ref::<Column>() {
        Some(column) => is_alone(column.name()).then(|| (Arc::clone(key), column.name().to_owned())),
        None => Some((Arc::clone(key), format!("__key_{number}"))),
    });
    let Some(keys) = named.collect::<Option<Vec<_>>>() else { return Ok(None) };
    let mut functions = Vec::with_capacity(wanted.functions.len());
    for (function, (args, _)) in partial.aggr_expr().iter().zip(&wanted.functions) {
        let anew = AggregateExprBuilder::new(Arc::new(function.fun().clone()), args.clone())
            .schema(Arc::clone(&schema))
            .alias(function.name())
            .with_ignore_nulls(function.ignore_nulls())
            .build()?;
        functions.push(Arc::new(anew));
    }
    let filters = wanted.functions.iter().map(|(_, filter)| filter.clone()).collect();
    let names: Vec<_> = keys.iter().map(|(_, name)| name.clone()).collect();
    let groups = PhysicalGroupBy::new_single(keys);
    let aggregate =
        AggregateExec::try_new(AggregateMode::Partial, groups, functions, filters, Arc::clone(input), schema)?;
    let width = aggregate.schema().fields().len();
    let keys = names.iter().enumerate().map(|(place, name)| Arc::new(Column::new(name, place)) as Expr).collect();
    Ok(Some(Grouped { keys, states: (names.len()..width).collect(), plan: Arc::new(aggregate) }))
}
