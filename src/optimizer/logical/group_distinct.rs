//! Turns DISTINCT aggregates that stand beside others into groups of their values, which spill.
//!
//! DataFusion keeps the values of a DISTINCT aggregate in a set for each group, in memory only and partly uncounted;
//! where all aggregates are over the same values it groups by these first. Here every other combination is grouped
//! so, too: a grouping set for each aggregate that wants its values once, and one for all that do not, if any.
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
//!
//! The same values under several conditions are one set, in which marks say which of the conditions a value has met:
//!
//! ```text
//! Aggregate: aggr=[count(DISTINCT a) FILTER (x), count(DISTINCT a) FILTER (y)]
//!
//! Aggregate: aggr=[count(a) FILTER (bool_or(x)), count(a) FILTER (bool_or(y))]
//!   Aggregate: groupBy=[CASE WHEN x OR y THEN a END AS a], aggr=[bool_or(x), bool_or(y)]
//! ```

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::bool_and_or::bool_or;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, GroupingSet};
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{Aggregate, Case, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit, when};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// Functions that leave out nulls, and of which the argument alone says what they give.
const OF_VALUES: [&str; 3] = ["count", "sum", "avg"];
/// Functions to which it does not matter how often a value comes.
const OF_EXTREMES: [&str; 2] = ["min", "max"];
/// Functions whose results are no smaller than their input: they would have it once for every grouping set.
const COLLECTING: [&str; 5] = ["array_agg", "string_agg", "median", "percentile_cont", "nth_value"];
/// More columns than this do not fit the number of a grouping set.
const MAX_KEYS: usize = 60;
/// Each row is asked all conditions of a key. More than this cost more than sets of the values.
const MAX_CONDITIONS: usize = 32;

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
    /// The values of a key, once each: which key, which of its conditions they have to meet, and the function of them.
    Distinct(usize, usize, AggregateFunction),
    /// All rows.
    All(AggregateFunction),
}

/// What DISTINCT values are of.
struct Key {
    value: Expr,
    /// Conditions that somebody asks of the rows; none where it is of all.
    conditions: Vec<Option<Expr>>,
}

impl Key {
    /// The value, where some of the conditions are met.
    fn expr(&self) -> Result<Expr> {
        let any = self.conditions.iter().cloned().collect::<Option<Vec<_>>>().and_then(disjunction);
        any.map_or_else(|| Ok(self.value.clone()), |any| when(any, self.value.clone()).end())
    }

    /// The conditions of which a mark says whether they were met, by their places.
    fn marks(&self) -> impl Iterator<Item = (usize, &Expr)> {
        let of_one = self.conditions.len() == 1;
        let marks = self.conditions.iter().enumerate().filter(move |_| !of_one);
        marks.filter_map(|(place, condition)| condition.as_ref().map(|condition| (place, condition)))
    }
}

/// An aggregate, taken apart.
struct Split {
    keys: Vec<Key>,
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
            let Expr::AggregateFunction(function) = function.clone().unalias() else { return None };
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
            // The functions leave out nulls.
            let (mut value, mut condition) = of_some(argument, filter.as_deref());
            // What is another one each time is asked once, for one of them.
            if let Some(drawn) = condition.take_if(|condition| condition.is_volatile()) {
                value = when(drawn, value).end().ok()?;
            }
            plain.params.filter = None;
            let is_known = |key: &Key| key.value == value && !value.is_volatile();
            let new = || Key { value: value.clone(), conditions: Vec::new() };
            let key = place_in(&mut split.keys, is_known, new);
            let conditions = &mut split.keys[key].conditions;
            let place = place_in(conditions, |known| *known == condition, || condition.clone());
            split.wanted.push(Wanted::Distinct(key, place, plain));
        }
        let fits = aggregate.group_expr.len() + split.keys.len() <= MAX_KEYS
            && split.keys.iter().all(|key| key.conditions.len() <= MAX_CONDITIONS);
        (fits && !split.keys.is_empty() && !split.is_left_to_datafusion(aggregate)).then_some(split)
    }

    /// Whether DataFusion groups by the values itself: where they are of one kind, and the rest can be taken
    /// together again.
    fn is_left_to_datafusion(&self, aggregate: &Aggregate) -> bool {
        // It does so only where none has a name of its own.
        let simple = |function: &Expr| match function {
            Expr::AggregateFunction(AggregateFunction { func, params }) => {
                let again = ["sum", "min", "max"].contains(&func.name());
                params.filter.is_none() && (again || params.distinct)
            }
            _ => false,
        };
        self.keys.len() == 1 && self.keys[0].conditions.len() == 1 && aggregate.aggr_expr.iter().all(simple)
    }

    fn plan(self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        let mut below = Below::default();
        let groups = aggregate.group_expr.iter().enumerate();
        let groups: Vec<Expr> = groups.map(|(i, e)| below.column(e.clone(), format!("group_{i}"))).collect();
        let keys = below.keys(&self.keys)?;
        let mut results = Vec::new();
        for (index, wanted) in self.wanted.into_iter().enumerate() {
            results.push(match wanted {
                Wanted::Distinct(key, place, mut function) => {
                    function.params.args = vec![keys[key].clone()];
                    let is_marked = self.keys[key].marks().any(|(marked, _)| marked == place);
                    let met = is_marked.then(|| Expr::Column(Column::from_name(mark(key, place))));
                    OfGroups { function, key: Some(key), met, empty: None }
                }
                Wanted::All(function) => {
                    let field = aggregate.schema.field(groups.len() + index);
                    let empty = Some(function.func.default_value(field.data_type())?);
                    let value = vec![below.value(function, index)];
                    let function = AggregateFunction::new_udf(first_value_udaf(), value, false, None, vec![], None);
                    OfGroups { function, key: None, met: None, empty }
                }
            });
        }
        let with = |key: &Expr| groups.iter().cloned().chain([key.clone()]).collect::<Vec<_>>();
        let all = results.iter().any(|result| result.key.is_none()).then(|| groups.clone());
        let mut sets: Vec<_> = keys.iter().map(with).chain(all).collect();
        let is_one = sets.len() == 1;
        let sets = match is_one {
            true => sets.swap_remove(0),
            false => vec![Expr::GroupingSet(GroupingSet::GroupingSets(sets))],
        };
        let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input)).project(below.columns)?.build()?;
        let inner = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), sets, below.functions)?);

        let mut outer = Vec::new();
        for (index, result) in results.iter().enumerate() {
            let set = if is_one { None } else { Some(is_of_set(result.key, keys.len(), inner.schema())?) };
            let mut function = result.function.clone();
            function.params.filter = conjunction(set.into_iter().chain(result.met.clone())).map(Box::new);
            outer.push(Expr::AggregateFunction(function).alias(format!("result_{index}")));
        }
        let outer = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(inner), groups.clone(), outer)?);
        with_names(aggregate, outer, &groups, results.into_iter().map(|result| result.empty).collect())
    }
}

/// What is computed of the rows.
#[derive(Default)]
struct Below {
    /// What gets a name, to be computed once,
    columns: Vec<Expr>,
    /// and the functions of it that are grouped by the values of keys.
    functions: Vec<Expr>,
}

impl Below {
    fn column(&mut self, expr: Expr, name: String) -> Expr {
        self.columns.push(expr.alias(&name));
        Expr::Column(Column::from_name(name))
    }

    /// The columns of keys, whose marks become functions.
    fn keys(&mut self, keys: &[Key]) -> Result<Vec<Expr>> {
        let mut columns = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            columns.push(self.column(key.expr()?, format!("distinct_{number}")));
            for (place, condition) in key.marks() {
                let condition = self.column(condition.clone(), format!("condition_{number}_{place}"));
                self.functions.push(bool_or(condition).alias(mark(number, place)));
            }
        }
        Ok(columns)
    }

    /// The column of a function of all rows of a group.
    fn value(&mut self, mut function: AggregateFunction, index: usize) -> Expr {
        let arguments = std::mem::take(&mut function.params.args).into_iter().enumerate();
        let argument = |(i, argument): (usize, Expr)| match argument {
            Expr::Literal(..) => argument,
            argument => self.column(argument, format!("argument_{index}_{i}")),
        };
        function.params.args = arguments.map(argument).collect();
        let filter = function.params.filter.take();
        function.params.filter = filter.map(|filter| Box::new(self.column(*filter, format!("filter_{index}"))));
        let name = format!("value_{index}");
        self.functions.push(Expr::AggregateFunction(function).alias(&name));
        Expr::Column(Column::from_name(name))
    }
}

/// A function of the groups of values.
struct OfGroups {
    function: AggregateFunction,
    /// Of the values of a key, or of all rows.
    key: Option<usize>,
    /// Which of the values are meant.
    met: Option<Expr>,
    /// What it is without any rows.
    empty: Option<ScalarValue>,
}

/// Whether a row is of the grouping set of a key, or of that of all rows. The number of a set has a bit for each key
/// that it lacks, the first key's the highest.
fn is_of_set(key: Option<usize>, keys: usize, schema: &DFSchema) -> Result<Expr> {
    let number = Expr::Column(Column::from_name(Aggregate::INTERNAL_GROUPING_ID));
    let none = (1u64 << keys) - 1;
    let set = key.map_or(none, |key| none & !(1 << (keys - 1 - key)));
    let set = ScalarValue::UInt64(Some(set)).cast_to(&number.get_type(schema)?)?;
    Ok(number.eq(lit(set)))
}

/// The name of what says whether a value has met a condition.
fn mark(key: usize, condition: usize) -> String {
    format!("met_{key}_{condition}")
}

/// The place of what `is` it, which is put behind the others where it is not there.
fn place_in<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    all.iter().position(is).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    })
}

/// A value, and the condition of rows in which it is not null for no other reason.
fn of_some(argument: &Expr, filter: Option<&Expr>) -> (Expr, Option<Expr>) {
    let (value, condition) = match argument {
        Expr::Case(Case { expr: None, when_then_expr, else_expr: None }) => match when_then_expr.as_slice() {
            [(condition, value)] => (value.as_ref(), Some(condition.as_ref())),
            _ => (argument, None),
        },
        _ => (argument, None),
    };
    // Of what the filter keeps out nothing else is asked.
    (value.clone(), conjunction(filter.into_iter().chain(condition).cloned()))
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
