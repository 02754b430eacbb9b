//! Turns DISTINCT aggregates that stand beside others into groups of their values, which spill.
//!
//! DataFusion keeps the values of a DISTINCT aggregate in a set for each group, in memory only and partly uncounted;
//! where all aggregates are over the same values it groups by these first. Here every other combination is grouped
//! so, too: a grouping set for each aggregate that wants its values once, and one for all that do not.
//!
//! ```text
//! Aggregate: groupBy=[g], aggr=[count(DISTINCT a), count(DISTINCT b), avg(c)]
//!
//! Aggregate: groupBy=[g], aggr=[count(a) FILTER (set a), count(b) FILTER (set b), first_value(avg(c)) FILTER (set g)]
//!   Aggregate: groupBy=[GROUPING SETS ((g, a), (g, b), (g))], aggr=[avg(c)]
//! ```
//!
//! Correct because a grouping set has each value once in each group, and because the last set has one row for each
//! group.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, GroupingSet};
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit, when};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// Functions that leave out nulls, and of which the argument alone says what they give.
const OF_VALUES: [&str; 3] = ["count", "sum", "avg"];
/// Functions to which it does not matter how often a value comes.
const OF_EXTREMES: [&str; 2] = ["min", "max"];
/// Functions whose results are no smaller than their input: they would have it once for every grouping set.
const COLLECTING: [&str; 5] = ["array_agg", "string_agg", "median", "percentile_cont", "nth_value"];
/// More columns than this do not fit the number of a grouping set.
const MAX_KEYS: usize = 60;

#[derive(Debug)]
pub(super) struct GroupDistinct;

impl OptimizerRule for GroupDistinct {
    fn name(&self) -> &str {
        "group_distinct"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Aggregate(aggregate) = &plan else { return Ok(Transformed::no(plan)) };
        match Split::of(aggregate) {
            Some(split) => Ok(Transformed::yes(split.plan(aggregate)?)),
            None => Ok(Transformed::no(plan)),
        }
    }
}

/// What an aggregate function wants.
enum Wanted {
    /// The values of a key, once each: which key, and the function of them.
    Distinct(usize, AggregateFunction),
    /// All rows.
    All(AggregateFunction),
}

/// An aggregate, taken apart.
struct Split {
    /// What DISTINCT values are of.
    keys: Vec<Expr>,
    wanted: Vec<Wanted>,
}

impl Split {
    /// `None` where nothing has to be done, or nothing can be.
    fn of(aggregate: &Aggregate) -> Option<Self> {
        if aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
            return None;
        }
        let mut split = Self { keys: Vec::new(), wanted: Vec::new() };
        for function in &aggregate.aggr_expr {
            let Expr::AggregateFunction(function) = function else { return None };
            let AggregateFunctionParams { args, distinct, filter, order_by, null_treatment } = &function.params;
            let name = function.func.name();
            let mut plain = function.clone();
            plain.params.distinct = false;
            if !distinct || OF_EXTREMES.contains(&name) {
                if COLLECTING.contains(&name) || !order_by.is_empty() {
                    return None;
                }
                split.wanted.push(Wanted::All(plain));
                continue;
            }
            let [argument] = args.as_slice() else { return None };
            if !OF_VALUES.contains(&name) || !order_by.is_empty() || null_treatment.is_some() {
                return None;
            }
            let key = match filter {
                // The functions leave out nulls.
                Some(filter) => when(filter.as_ref().clone(), argument.clone()).end().ok()?,
                None => argument.clone(),
            };
            plain.params.filter = None;
            let place = split.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                split.keys.push(key);
                split.keys.len() - 1
            });
            split.wanted.push(Wanted::Distinct(place, plain));
        }
        let fits = aggregate.group_expr.len() + split.keys.len() <= MAX_KEYS;
        (fits && !split.keys.is_empty() && !split.is_left_to_datafusion(aggregate)).then_some(split)
    }

    /// Whether DataFusion groups by the values itself: where they are of one kind, and the rest can be taken
    /// together again.
    fn is_left_to_datafusion(&self, aggregate: &Aggregate) -> bool {
        let simple = |function: &Expr| match function {
            Expr::AggregateFunction(AggregateFunction { func, params }) => {
                let again = ["sum", "min", "max"].contains(&func.name());
                params.filter.is_none() && (again || params.distinct)
            }
            _ => false,
        };
        self.keys.len() == 1 && aggregate.aggr_expr.iter().all(simple)
    }

    fn plan(self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        // What is computed gets a name, and is computed once.
        let mut columns = Vec::new();
        let mut named = |expr: Expr, name: String| {
            columns.push(expr.alias(&name));
            Expr::Column(Column::from_name(name))
        };
        let groups: Vec<Expr> =
            aggregate.group_expr.iter().enumerate().map(|(i, e)| named(e.clone(), format!("group_{i}"))).collect();
        let keys: Vec<Expr> =
            self.keys.iter().enumerate().map(|(i, e)| named(e.clone(), format!("distinct_{i}"))).collect();
        let mut of_all = Vec::new();
        let mut results = Vec::new();
        for (index, wanted) in self.wanted.into_iter().enumerate() {
            match wanted {
                Wanted::Distinct(key, mut function) => {
                    function.params.args = vec![keys[key].clone()];
                    results.push((function, Some(key), None));
                }
                Wanted::All(mut function) => {
                    let arguments = std::mem::take(&mut function.params.args).into_iter().enumerate();
                    let argument = |(i, argument): (usize, Expr)| match argument {
                        Expr::Literal(..) => argument,
                        argument => named(argument, format!("argument_{index}_{i}")),
                    };
                    function.params.args = arguments.map(argument).collect();
                    let filter = function.params.filter.take();
                    let filter = filter.map(|filter| Box::new(named(*filter, format!("filter_{index}"))));
                    function.params.filter = filter;
                    let field = aggregate.schema.field(groups.len() + index);
                    let empty = function.func.default_value(field.data_type())?;
                    let name = format!("value_{index}");
                    of_all.push(Expr::AggregateFunction(function).alias(&name));
                    let value = vec![Expr::Column(Column::from_name(name))];
                    let first = AggregateFunction::new_udf(first_value_udaf(), value, false, None, vec![], None);
                    results.push((first, None, Some(empty)));
                }
            }
        }
        let with = |key: &Expr| groups.iter().cloned().chain([key.clone()]).collect::<Vec<_>>();
        let sets: Vec<_> = keys.iter().map(with).chain([groups.clone()]).collect();
        let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input)).project(columns)?.build()?;
        let sets = Expr::GroupingSet(GroupingSet::GroupingSets(sets));
        let inner = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), vec![sets], of_all)?);

        // Of a set, its number has a bit for each key that it lacks, the first key's the highest.
        let number = Expr::Column(Column::from_name(Aggregate::INTERNAL_GROUPING_ID));
        let number_type = number.get_type(inner.schema())?;
        let none = (1u64 << keys.len()) - 1;
        let number_of = |key: Option<usize>| key.map_or(none, |key| none & !(1 << (keys.len() - 1 - key)));
        let mut outer = Vec::new();
        for (index, (mut function, key, _)) in results.iter().cloned().enumerate() {
            let set = ScalarValue::UInt64(Some(number_of(key))).cast_to(&number_type)?;
            function.params.filter = Some(Box::new(number.clone().eq(lit(set))));
            outer.push(Expr::AggregateFunction(function).alias(format!("result_{index}")));
        }
        let outer = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(inner), groups.clone(), outer)?);

        with_names(aggregate, outer, &groups, results.into_iter().map(|(.., empty)| empty).collect())
    }
}

/// The columns of `aggregate`, from groups and results that have names of their own, each with what it is without any
/// rows.
fn with_names(
    aggregate: &Aggregate,
    outer: LogicalPlan,
    groups: &[Expr],
    empties: Vec<Option<ScalarValue>>,
) -> Result<LogicalPlan> {
    let given = aggregate.schema.iter().enumerate().map(|(place, (qualifier, field))| {
        let value = match place.checked_sub(groups.len()) {
            None => groups[place].clone(),
            Some(index) => {
                let result = Expr::Column(Column::from_name(format!("result_{index}")));
                match empties[index].as_ref().filter(|empty| !empty.is_null()) {
                    // Without any rows there is no group either, and nothing was counted.
                    Some(empty) => coalesce(vec![result, lit(empty.clone())]),
                    None => result,
                }
            }
        };
        value.alias_qualified(qualifier.cloned(), field.name())
    });
    LogicalPlanBuilder::from(outer).project(given.collect::<Vec<_>>())?.build()
}
