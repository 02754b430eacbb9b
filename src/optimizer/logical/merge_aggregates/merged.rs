//! Aggregates of the same rows, computed together.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan, when};

use super::member::Member;
use crate::optimizer::logical::together::together;

/// Who has a function that several members compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// All of them.
    All,
    /// Each has its own: DataFusion names a column once that a row has under several names.
    Own,
}

/// One row of all that the members compute, and the columns of each of them.
pub(super) fn merged(members: &[&Member], sharing: Sharing) -> Result<(LogicalPlan, Vec<Vec<Expr>>)> {
    let of_each: Vec<Vec<Expr>> =
        members.iter().map(|member| member.other_conditions(members).into_iter().cloned().collect()).collect();
    let mut functions = Functions::default();
    let mut outputs = Vec::new();
    for (member, conditions) in members.iter().zip(&of_each) {
        if sharing == Sharing::Own {
            functions.first = functions.all.len();
        }
        let asked = member.functions.iter().map(|function| Ok(functions.place_of(within(function, conditions)?)));
        let places = asked.collect::<Result<Vec<_>>>()?;
        outputs.push(member.outputs.iter().map(|output| of_places(output, member, &places)).collect::<Result<_>>()?);
    }
    let first = members[0];
    let mut conditions: Vec<Expr> = first.conditions.clone();
    conditions.retain(|condition| !of_each[0].contains(condition));
    conditions.extend(together(&of_each));
    let mut rows = Arc::clone(&first.rows);
    if let Some(condition) = conjunction(conditions) {
        rows = Arc::new(LogicalPlan::Filter(Filter::try_new(condition, rows)?));
    }
    let functions = functions.all.into_iter().enumerate().map(|(place, function)| function.alias(name_of(place)));
    let aggregate = Aggregate::try_new(rows, Vec::new(), functions.collect())?;
    Ok((LogicalPlan::Aggregate(aggregate), outputs))
}

/// Functions, each once from the first on that is shared.
#[derive(Default)]
struct Functions {
    all: Vec<Expr>,
    first: usize,
}

impl Functions {
    fn place_of(&mut self, function: AggregateFunction) -> usize {
        let function = Expr::AggregateFunction(function);
        let known = self.all[self.first..].iter().position(|known| *known == function);
        known.map(|place| self.first + place).unwrap_or_else(|| {
            self.all.push(function);
            self.all.len() - 1
        })
    }
}

fn name_of(place: usize) -> String {
    format!("aggregate_{place}")
}

/// A function of the rows that pass some conditions.
fn within(function: &AggregateFunction, conditions: &[Expr]) -> Result<AggregateFunction> {
    let mut function = function.clone();
    let Some(condition) = conjunction(conditions.iter().cloned()) else { return Ok(function) };
    let condition = match function.params.filter.take() {
        Some(filter) => condition.and(*filter),
        None => condition,
    };
    let arguments = std::mem::take(&mut function.params.args).into_iter();
    function.params.args = arguments.map(|value| when(condition.clone(), value).end()).collect::<Result<_>>()?;
    Ok(function)
}

/// A column of a member, of the functions at these places.
fn of_places(output: &Expr, member: &Member, places: &[usize]) -> Result<Expr> {
    let replace = |part: Expr| {
        let Expr::Column(column) = &part else { return Ok(Transformed::no(part)) };
        let place = member.names.iter().position(|name| name == column);
        Ok(match place {
            Some(place) => Transformed::yes(Expr::Column(Column::from_name(name_of(places[place])))),
            None => Transformed::no(part),
        })
    };
    Ok(output.clone().transform_up(replace)?.data)
}
