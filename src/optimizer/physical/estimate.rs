//! How many rows a plan is expected to give, and how many values its columns are expected to have.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::{JoinType, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;

use crate::physical::{BucketJoinExec, MapExec, PlanExt, ReadExec, SharedExec};

/// Fewer rows than this are not worth it to group them in another way.
pub(super) const MANY_ROWS: f64 = 100_000.0;

/// What part of all rows conditions are expected to keep of which nothing is known.
const EQUAL: f64 = 0.1;
const IN_RANGE: f64 = 0.33;
const LIKE: f64 = 0.1;
const NULL: f64 = 0.05;
const OTHER: f64 = 0.25;
/// Whether a row was found.
const MARK: Values = Values { distinct: Some(2.0), left: None, range: None, of_rows: 2.0 };
/// Columns with so many values for each row of their table may be unique.
const UNIQUE: f64 = 0.9;
/// No condition is expected to keep less.
const LEAST: f64 = 1e-4;

/// What is expected of a plan.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    pub(super) rows: f64,
    pub(super) columns: Vec<Values>,
}

/// What is expected of the values of a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values {
    /// How many there are at the most, if that is known.
    distinct: Option<f64>,
    /// How many of them conditions on the column itself leave, if that is known.
    left: Option<f64>,
    /// The least and the greatest.
    range: Option<(f64, f64)>,
    /// Rows of the table that it is a column of, before any condition.
    of_rows: f64,
}

/// A column that is equal to one of another plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    domain: f64,
    may_be_unique: bool,
    /// Whether it has as many values between its least and its greatest one as its table has rows: they are numbers
    /// that were given one after the other, and name its rows.
    is_numbering: bool,
    /// Rows of the plan.
    rows: f64,
    /// Rows of the table that it is a column of.
    of_rows: f64,
}

/// The same for several keys, all of the same plans. They are seldom independent, and have together no more values than
/// the largest table has rows: sales name their orders by two columns, of which each has few values.
pub(super) fn matching_all(keys: Vec<Vec<Key>>) -> f64 {
    let plans = keys.first().map_or(0, Vec::len) as i32;
    let largest = keys.iter().flatten().map(|key| key.of_rows).fold(1.0, f64::max);
    let parts: Vec<f64> = keys.into_iter().map(matching).collect();
    let is_one = parts.len() == 1;
    let equal = damped(parts);
    if is_one { equal } else { equal.max(largest.powi(1 - plans)) }
}

/// What part of all combinations of rows of several plans have equal keys, one of each plan.
///
/// The values of one key are those of all others, as a foreign key has values of the key that it names. Where the
/// fewest values are those of what may be unique, that is the key which the others name, unless another one numbers the
/// rows of its table: of few orders, each may be of another customer. Otherwise the ones with the fewest name the
/// others, and rows of these which nobody names are the first to be left out by other conditions: sales of five years
/// name five years of days, and so does who asks for days.
fn matching(mut keys: Vec<Key>) -> f64 {
    keys.sort_by(|a, b| a.domain.total_cmp(&b.domain).then(b.may_be_unique.cmp(&a.may_be_unique)));
    let Some((fewest, others)) = keys.split_first() else { return 1.0 };
    let is_named = fewest.is_numbering
        || (fewest.may_be_unique && !others.iter().any(|key| key.is_numbering && key.domain > fewest.domain));
    let one_of = |key: &Key| match (is_named, !fewest.may_be_unique && key.may_be_unique) {
        (true, _) => fewest.domain,
        (false, true) => key.rows.clamp(fewest.domain, key.domain.max(fewest.domain)),
        (false, false) => key.domain,
    };
    others.iter().map(|key| 1.0 / one_of(key)).product()
}

impl Estimate {
    fn unknown(rows: f64, plan: &Arc<dyn ExecutionPlan>) -> Self {
        let unknown = Values { distinct: None, left: None, range: None, of_rows: rows };
        Self { rows, columns: vec![unknown; plan.schema().fields().len()] }
    }

    /// Among how many values those of a column are: conditions on other columns leave fewer of them, and each is as
    /// seldom met as before. A column of which nothing is known is a key.
    pub(super) fn domain(&self, column: usize) -> f64 {
        let Values { distinct, of_rows, .. } = self.columns[column];
        distinct.unwrap_or(of_rows).min(of_rows).max(1.0)
    }

    /// Whether a column has about as many values as its table has rows, by what files say of it.
    pub(super) fn is_unique(&self, column: usize) -> bool {
        let Values { distinct, of_rows, .. } = self.columns[column];
        distinct.is_some_and(|distinct| distinct >= UNIQUE * of_rows)
    }

    /// A column as a key of a join.
    pub(super) fn key(&self, column: usize) -> Key {
        let Values { distinct, of_rows, .. } = self.columns[column];
        let may_be_unique = distinct.is_none_or(|distinct| distinct >= UNIQUE * of_rows);
        let is_numbering = distinct == Some(of_rows);
        Key { domain: self.domain(column), may_be_unique, is_numbering, rows: self.rows, of_rows }
    }

    /// How many values a column has.
    pub(super) fn distinct(&self, column: usize) -> f64 {
        let left = self.columns[column].left.unwrap_or(f64::MAX);
        self.domain(column).min(left).min(self.rows).max(1.0)
    }

    fn projected(self, columns: impl Iterator<Item = Option<usize>>) -> Self {
        let unknown = Values { distinct: None, left: None, range: None, of_rows: self.rows };
        let columns = columns.map(|column| column.map_or(unknown, |column| self.columns[column])).collect();
        Self { rows: self.rows, columns }
    }

    fn with_rows(self, rows: f64) -> Self {
        Self { rows: rows.max(1.0), ..self }
    }
}

/// What is expected of a plan; `None` where nobody knows how many rows it gives.
pub(super) fn estimate(plan: &Arc<dyn ExecutionPlan>) -> Option<Estimate> {
    if let Some(read) = plan.operator::<ReadExec>() {
        let mut of_read = Estimate::unknown(known_rows(plan)?, plan);
        for (field, values) in plan.schema().fields().iter().zip(&mut of_read.columns) {
            if let Some((low, high)) = read.ranges().of(field.name()).filter(|(low, high)| low <= high) {
                let (low, high) = (low as f64, high as f64);
                *values = Values { distinct: Some(high - low + 1.0), range: Some((low, high)), ..*values };
            }
        }
        return Some(of_read);
    }
    if let Some(shared) = plan.operator::<SharedExec>() {
        return estimate(shared.input());
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let column = |expression: &Arc<dyn PhysicalExpr>| expression.downcast_ref::<Column>().map(Column::index);
        return Some(estimate(projection.input())?.projected(projection.expr().iter().map(|expr| column(&expr.expr))));
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let mut input = estimate(filter.input())?;
        let kept = kept_by(filter.predicate(), &mut input).clamp(LEAST, 1.0);
        let rows = (input.rows * kept).max(1.0);
        let kept = input.with_rows(rows);
        return Some(match filter.projection() {
            Some(columns) => kept.projected(columns.iter().map(|column| Some(*column))),
            None => kept,
        });
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return of_groups(aggregate);
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return of_join(join);
    }
    if let Some(buckets) = plan.operator::<BucketJoinExec>() {
        return of_join(buckets.join());
    }
    if let Some(map) = plan.operator::<MapExec>() {
        return of_steps(map);
    }
    if plan.is::<UnionExec>() {
        let inputs = plan.children().into_iter().map(estimate).collect::<Option<Vec<_>>>()?;
        return Some(Estimate::unknown(inputs.iter().map(|input| input.rows).sum(), plan));
    }
    match plan.children().as_slice() {
        [input] if matches!(plan.cardinality_effect(), CardinalityEffect::Equal) => {
            let input_schema = input.schema();
            let of_input = estimate(input)?;
            let same = plan.schema().fields() == input_schema.fields();
            Some(if same { of_input } else { Estimate::unknown(of_input.rows, plan) })
        }
        [] => Some(Estimate::unknown(known_rows(plan)?, plan)),
        _ => None,
    }
}

/// What the steps of a stage leave of the rows of its input.
fn of_steps(map: &MapExec) -> Option<Estimate> {
    map.steps().iter().try_fold(estimate(map.input())?, |mut rows, step| {
        if step.is_filter() {
            let kept: f64 = step.expressions().into_iter().map(|condition| kept_by(condition, &mut rows)).product();
            let left = rows.rows * kept.clamp(LEAST, 1.0);
            return Some(rows.with_rows(left));
        }
        if !matches!(step.cardinality(), CardinalityEffect::Equal) {
            return None;
        }
        let column = |expression: &Arc<dyn PhysicalExpr>| expression.downcast_ref::<Column>().map(Column::index);
        let columns: Vec<_> = step.expressions().into_iter().map(column).collect();
        let width = step.schema().fields().len();
        let is_projection = step.keeps_row_numbers() && columns.len() == width;
        Some(rows.projected((0..width).map(|place| columns.get(place).copied().flatten().filter(|_| is_projection))))
    })
}

/// How many rows a plan is expected to give; `None` where nobody knows.
pub(crate) fn expected_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    // No table has more bytes than this.
    estimate(plan).map(|expected| expected.rows.min(1e12) as usize)
}

/// Rows by statistics.
fn known_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<f64> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) | Precision::Inexact(rows) => Some((rows as f64).max(1.0)),
        Precision::Absent => None,
    }
}

fn of_groups(aggregate: &AggregateExec) -> Option<Estimate> {
    let input = estimate(aggregate.input())?;
    let keys: Vec<_> = aggregate.group_expr().expr().iter().map(|(key, _)| key.downcast_ref::<Column>()).collect();
    // The second phase has what the first one has.
    let rows = match aggregate.mode() {
        AggregateMode::Final | AggregateMode::FinalPartitioned => input.rows,
        _ if keys.is_empty() => 1.0,
        _ => {
            // A key of which nothing is known is expected to tell a tenth of the rows apart.
            let values = keys.iter().map(|key| {
                let known = key.filter(|key| input.columns[key.index()].distinct.is_some());
                known.map_or(input.rows * EQUAL, |key| input.distinct(key.index()))
            });
            values.product::<f64>().min(input.rows)
        }
    };
    let width = aggregate.schema().fields().len();
    let columns = (0..width).map(|column| keys.get(column).copied().flatten().map(Column::index));
    let mut groups = input.projected(columns).with_rows(rows);
    groups.columns.iter_mut().for_each(|values| values.of_rows = values.of_rows.min(rows));
    Some(groups)
}

fn of_join(join: &HashJoinExec) -> Option<Estimate> {
    let (left, right) = (estimate(join.left())?, estimate(join.right())?);
    let column = |key: &Arc<dyn PhysicalExpr>| key.downcast_ref::<Column>().map(Column::index);
    let keys = join.on().iter().map(|(a, b)| Some(vec![left.key(column(a)?), right.key(column(b)?)]));
    // Of a key that is computed nothing is known.
    let (known, unknown): (Vec<_>, Vec<_>) = keys.partition(Option::is_some);
    let known = matching_all(known.into_iter().flatten().collect());
    let equal = damped([known].into_iter().chain(unknown.iter().map(|_| EQUAL)).collect());
    let inner = left.rows * right.rows * equal;
    let half = |side: &Estimate| side.rows / 2.0;
    let rows = match join.join_type() {
        JoinType::Inner => inner,
        JoinType::Left => inner.max(left.rows),
        JoinType::Right => inner.max(right.rows),
        JoinType::Full => inner.max(left.rows + right.rows),
        JoinType::LeftSemi | JoinType::LeftAnti => half(&left),
        JoinType::RightSemi | JoinType::RightAnti => half(&right),
        JoinType::LeftMark => left.rows,
        JoinType::RightMark => right.rows,
    };
    let columns = match join.join_type() {
        JoinType::LeftSemi | JoinType::LeftAnti => left.columns,
        JoinType::RightSemi | JoinType::RightAnti => right.columns,
        JoinType::LeftMark => [left.columns, vec![MARK]].concat(),
        JoinType::RightMark => [right.columns, vec![MARK]].concat(),
        _ => [left.columns, right.columns].concat(),
    };
    let joined = Estimate { rows: rows.max(1.0), columns };
    Some(match &join.projection {
        Some(columns) => joined.projected(columns.iter().map(|column| Some(*column))),
        None => joined,
    })
}

/// What several conditions on the same tables keep together: they are seldom independent, so each counts less than the
/// one before.
pub(super) fn damped(mut kept: Vec<f64>) -> f64 {
    kept.sort_by(f64::total_cmp);
    kept.iter().enumerate().map(|(place, kept)| kept.powf(0.5f64.powi(place as i32))).product()
}

/// What part of the rows a condition keeps. Columns that it compares with values have fewer values then.
fn kept_by(condition: &Arc<dyn PhysicalExpr>, input: &mut Estimate) -> f64 {
    if let Some(binary) = condition.downcast_ref::<BinaryExpr>() {
        return kept_by_binary(binary, input);
    }
    if let Some(not) = condition.downcast_ref::<NotExpr>() {
        return 1.0 - kept_by(not.arg(), &mut input.clone());
    }
    if let Some(list) = condition.downcast_ref::<InListExpr>() {
        let values = list.list().len() as f64;
        let of_one = column_of(list.expr()).and_then(|column| input.columns[column].distinct);
        let kept = (values * of_one.map_or(EQUAL, |distinct| 1.0 / distinct.max(1.0))).min(0.5);
        if let Some(column) = column_of(list.expr()).filter(|_| !list.negated()) {
            input.columns[column].left = Some(values);
        }
        return if list.negated() { 1.0 - kept } else { kept };
    }
    if let Some(like) = condition.downcast_ref::<LikeExpr>() {
        return if like.negated() { 1.0 - LIKE } else { LIKE };
    }
    if let Some(literal) = condition.downcast_ref::<Literal>() {
        return if matches!(literal.value(), ScalarValue::Boolean(Some(true))) { 1.0 } else { LEAST };
    }
    match () {
        () if condition.is::<IsNullExpr>() => NULL,
        () if condition.is::<IsNotNullExpr>() => 1.0,
        () => OTHER,
    }
}

fn kept_by_binary(binary: &BinaryExpr, input: &mut Estimate) -> f64 {
    let compared = |one: &Arc<dyn PhysicalExpr>, other| Some((column_of(one)?, value_of(other)));
    let found = compared(binary.left(), binary.right()).filter(|(_, value)| value.is_some());
    let swapped = compared(binary.right(), binary.left()).filter(|(_, value)| value.is_some());
    let (column, value, operator) = match (found, swapped) {
        (Some((column, value)), _) => (Some(column), value, Some(*binary.op())),
        (None, Some((column, value))) => (Some(column), value, binary.op().swap()),
        (None, None) => (None, None, Some(*binary.op())),
    };
    let distinct = column.and_then(|column| input.columns[column].distinct);
    let number = value.flatten();
    match operator {
        Some(Operator::And) => kept_by(binary.left(), input) * kept_by(binary.right(), input),
        Some(Operator::Or) => {
            let (mut left, mut right) = (input.clone(), input.clone());
            let (one, other) = (kept_by(binary.left(), &mut left), kept_by(binary.right(), &mut right));
            for (place, values) in input.columns.iter_mut().enumerate() {
                let both = left.columns[place].left.zip(right.columns[place].left);
                values.left = both.map(|(left, right)| left + right).or(values.left);
            }
            one + other - one * other
        }
        Some(Operator::Eq) => {
            if let Some(column) = column {
                input.columns[column].range = None;
                input.columns[column].left = Some(1.0);
            }
            distinct.map_or(EQUAL, |distinct| 1.0 / distinct.max(1.0))
        }
        Some(Operator::NotEq) => 1.0 - EQUAL,
        Some(Operator::Lt | Operator::LtEq) => kept_in_range(column, number.map(|to| (f64::MIN, to)), input),
        Some(Operator::Gt | Operator::GtEq) => kept_in_range(column, number.map(|from| (from, f64::MAX)), input),
        _ => OTHER,
    }
}

/// What part of the rows has a column in a range, if that is known; a further condition on the column is one on what is
/// left.
fn kept_in_range(column: Option<usize>, range: Option<(f64, f64)>, input: &mut Estimate) -> f64 {
    let known = column.and_then(|column| Some((column, input.columns[column].range?)));
    let (Some((column, (low, high))), Some((from, to))) = (known, range) else { return IN_RANGE };
    let (from, to) = (from.max(low), to.min(high));
    if from > to {
        return LEAST;
    }
    input.columns[column].range = Some((from, to));
    input.columns[column].left = Some(to - from + 1.0);
    ((to - from + 1.0) / (high - low + 1.0)).clamp(LEAST, 1.0)
}

/// The column that an expression is, perhaps as another type.
fn column_of(expression: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    match expression.downcast_ref::<CastExpr>() {
        Some(cast) => column_of(cast.expr()),
        None => expression.downcast_ref::<Column>().map(Column::index),
    }
}

/// Whether an expression is a value, and which number or day it is, if it is one.
fn value_of(expression: &Arc<dyn PhysicalExpr>) -> Option<Option<f64>> {
    let literal = expression.downcast_ref::<Literal>()?;
    Some(match literal.value() {
        ScalarValue::Int8(Some(n)) => Some(f64::from(*n)),
        ScalarValue::Int16(Some(n)) => Some(f64::from(*n)),
        ScalarValue::Int32(Some(n)) | ScalarValue::Date32(Some(n)) => Some(f64::from(*n)),
        ScalarValue::Int64(Some(n)) => Some(*n as f64),
        ScalarValue::UInt8(Some(n)) => Some(f64::from(*n)),
        ScalarValue::UInt16(Some(n)) => Some(f64::from(*n)),
        ScalarValue::UInt32(Some(n)) => Some(f64::from(*n)),
        ScalarValue::UInt64(Some(n)) => Some(*n as f64),
        _ => None,
    })
}
