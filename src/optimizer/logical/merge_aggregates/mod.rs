//! Takes rows once of which a query has several aggregates: as values of its own, or side by side in FROM.
//!
//! ```text
//! SELECT (SELECT count(*) FROM t WHERE k < 10), (SELECT avg(v) FROM t WHERE k >= 10)
//!
//! Aggregate: count(*)      Aggregate: count(CASE WHEN k < 10 THEN 1 END), avg(CASE WHEN k >= 10 THEN v END)
//!   Filter: k < 10           Filter: k < 10 OR k >= 10
//!     t                ->      t
//! Aggregate: avg(v)
//!   Filter: k >= 10
//!     t
//! ```
//!
//! Correct because each function leaves out nulls, and an aggregate without groups is one row also of no rows. Only
//! where the conditions that differ are of the same columns and cannot be an error of rows that others want; where
//! columns of any width are read by all or none, and DISTINCT values are the same; and where the rows below are the
//! same each time. Of values, only those that somebody reads, and none that may be an error: where one of them is
//! needed, all are computed.
//!
//! Values become one value of several fields, which is named to be computed once (`share_subplans`), and what stands
//! side by side in FROM becomes the columns of one row:
//!
//! ```text
//! Projection: (subquery a) - (subquery b)  ->  Projection: field_0((subquery)) - field_1((subquery))
//!
//! Cross Join: a, t, b  ->  Cross Join: (Projection: a, b), t
//! ```

mod field;
mod member;
mod merged;

use std::sync::Arc;

use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::core::expr_fn::named_struct;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Projection, Subquery, lit};
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use self::field::field_of;
use self::member::Member;
use self::merged::{Sharing, merged};
use crate::config::BlockyardOptions;
use crate::logical::ONCE;

/// Members of a group, at most: each value is a copy of the plan of all, until it is planned.
const MAX_MEMBERS: usize = 16;
/// Different conditions of a group, at most: each is asked of all rows, also where the rows of each are in other parts
/// of the files.
const MAX_CONDITIONS: usize = 8;
/// Values of a plan that are looked at.
const MAX_VALUES: usize = 64;

#[derive(Debug)]
pub(super) struct MergeAggregates;

impl OptimizerRule for MergeAggregates {
    fn name(&self) -> &str {
        "merge_aggregates"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_on = BlockyardOptions::from_config(&config.options()).optimize_merged_aggregates;
        let mut is_recursive = false;
        plan.apply_with_subqueries(|node| {
            is_recursive |= matches!(node, LogicalPlan::RecursiveQuery(_));
            Ok(TreeNodeRecursion::Continue)
        })?;
        match is_on && !is_recursive {
            true => rewritten(plan, config),
            false => Ok(Transformed::no(plan)),
        }
    }
}

/// The plan and its subqueries, each for itself.
fn rewritten(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let values = merge_values(plan, config)?;
    values.transform_data(|plan| {
        plan.transform_down(|node| {
            let joined = merge_cross_joins(node)?;
            joined.transform_sibling(|node| node.map_subqueries(|plan| rewritten(plan, config)))
        })
    })
}

/// Members that can be taken together: the places of some that are at least two.
fn groups(members: &[Option<Member>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, member) in members.iter().enumerate() {
        let Some(member) = member else { continue };
        let has_room = |group: &[usize]| {
            let mut conditions = vec![&member.conditions];
            for of in of_group(group, members).into_iter().map(|member| &member.conditions) {
                if !conditions.contains(&of) {
                    conditions.push(of);
                }
            }
            group.len() < MAX_MEMBERS && conditions.len() <= MAX_CONDITIONS
        };
        let of = |group: &&mut Vec<usize>| {
            members[group[0]].as_ref().is_some_and(|first| first.goes_with(member)) && has_room(group)
        };
        match groups.iter_mut().find(of) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// The members of a group.
fn of_group<'a>(group: &[usize], members: &'a [Option<Member>]) -> Vec<&'a Member> {
    group.iter().filter_map(|place| members[*place].as_ref()).collect()
}

/// A plan in which values of the same rows are fields of one value.
fn merge_values(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut subqueries = values_of(&plan)?;
    subqueries.truncate(MAX_VALUES);
    let member = |subquery: &Subquery| match subquery.outer_ref_columns.is_empty() {
        true => Ok(Member::of(&subquery.subquery)?.filter(|member| !member.may_fail)),
        false => Ok(None),
    };
    let mut members = subqueries.iter().map(member).collect::<Result<Vec<_>>>()?;
    if groups(&members).is_empty() {
        return Ok(Transformed::no(plan));
    }
    let read = values_that_are_read(&plan, &subqueries, config)?;
    members.iter_mut().zip(read).filter(|(_, is_read)| !is_read).for_each(|(member, _)| *member = None);
    let mut fields: Vec<Option<Expr>> = vec![None; subqueries.len()];
    for group in groups(&members) {
        let (input, outputs) = merged(&of_group(&group, &members), Sharing::All)?;
        let mut named = Vec::new();
        for (number, output) in outputs.into_iter().flatten().enumerate() {
            named.extend([lit(number.to_string()), output]);
        }
        let row = LogicalPlanBuilder::from(input).project([named_struct(named).alias("merged")])?;
        let row = row.alias(format!("{ONCE}merged"))?.build()?;
        let value = Subquery { subquery: Arc::new(row), ..subqueries[group[0]].clone() };
        for (number, place) in group.into_iter().enumerate() {
            fields[place] = Some(field_of(Expr::ScalarSubquery(value.clone()), number));
        }
    }
    if fields.iter().all(Option::is_none) {
        return Ok(Transformed::no(plan));
    }
    with_values(plan, &subqueries, |place| Ok(fields[place].clone()))
}

/// A plan with other expressions in the places of some of its values.
fn with_values(
    plan: LogicalPlan,
    values: &[Subquery],
    other: impl Fn(usize) -> Result<Option<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let replaced = |expr: Expr| {
        let Expr::ScalarSubquery(subquery) = &expr else { return Ok(Transformed::no(expr)) };
        let place = values.iter().position(|known| Arc::ptr_eq(&known.subquery, &subquery.subquery));
        match place.map(&other).transpose()?.flatten() {
            // What is in it has been seen.
            Some(other) => Ok(Transformed::new(other, true, TreeNodeRecursion::Jump)),
            None => Ok(Transformed::no(expr)),
        }
    };
    plan.transform_down(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            expr.transform_down(replaced)?.map_data(|expr| Ok(name.restore(expr)))
        })
    })
}

/// Which values somebody reads: those that are left where columns are left out that nobody uses. Each is a literal for
/// that, which says its place.
fn values_that_are_read(plan: &LogicalPlan, values: &[Subquery], config: &dyn OptimizerConfig) -> Result<Vec<bool>> {
    let marked = |place: usize| {
        let of = values[place].subquery.schema().field(0).data_type();
        let place = FieldMetadata::new([(ONCE.to_owned(), place.to_string())].into());
        Ok(Some(Expr::Literal(ScalarValue::try_from(of)?, Some(place))))
    };
    let plan = with_values(plan.clone(), values, marked)?.data;
    let mut are_read = vec![false; values.len()];
    OptimizeProjections::new().rewrite(plan, config)?.data.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(_, Some(metadata)) = part
                    && let Some(place) = metadata.inner().get(ONCE).and_then(|place| place.parse::<usize>().ok())
                {
                    are_read[place] = true;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(are_read)
}

/// The subqueries of a plan that are values, but not those in other subqueries.
fn values_of(plan: &LogicalPlan) -> Result<Vec<Subquery>> {
    let mut values: Vec<Subquery> = Vec::new();
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::ScalarSubquery(subquery) = part
                    && !values.iter().any(|known| Arc::ptr_eq(&known.subquery, &subquery.subquery))
                {
                    values.push(subquery.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(values)
}

/// A plan in which aggregates that stand side by side are columns of one row.
fn merge_cross_joins(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if cross_join(&plan).is_none() {
        return Ok(Transformed::no(plan));
    }
    let mut sides = Vec::new();
    collect_sides(&plan, &mut sides);
    let members = sides.iter().map(|side| Member::of(side)).collect::<Result<Vec<_>>>()?;
    let groups = groups(&members);
    if groups.is_empty() {
        return Ok(Transformed::no(plan));
    }
    let mut rows: Vec<Option<LogicalPlan>> = sides.iter().map(|side| Some(LogicalPlan::clone(side))).collect();
    for group in groups {
        let (input, outputs) = merged(&of_group(&group, &members), Sharing::Own)?;
        let columns = group.iter().flat_map(|place| sides[*place].schema().iter());
        let columns = columns.zip(outputs.into_iter().flatten());
        let columns = columns.map(|((of, field), output)| output.alias_qualified(of.cloned(), field.name()));
        let row = LogicalPlanBuilder::from(input).project(columns.collect::<Vec<_>>())?.build()?;
        group.iter().for_each(|place| rows[*place] = None);
        rows[group[0]] = Some(row);
    }
    let mut rows = rows.into_iter().flatten();
    let Some(first) = rows.next() else { return Ok(Transformed::no(plan)) };
    let joined = rows.try_fold(LogicalPlanBuilder::from(first), LogicalPlanBuilder::cross_join)?.build()?;
    let joined = Projection::new_from_schema(Arc::new(joined), Arc::clone(plan.schema()));
    Ok(Transformed::yes(LogicalPlan::Projection(joined)))
}

/// A join of all rows with all rows.
fn cross_join(plan: &LogicalPlan) -> Option<&Join> {
    match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner && join.on.is_empty() && join.filter.is_none() => {
            Some(join)
        }
        _ => None,
    }
}

/// What is joined by a tree of cross joins, from left to right.
fn collect_sides<'a>(plan: &'a LogicalPlan, sides: &mut Vec<&'a LogicalPlan>) {
    match cross_join(plan) {
        Some(join) => [&join.left, &join.right].into_iter().for_each(|side| collect_sides(side, sides)),
        None => sides.push(plan),
    }
}
