//! Groups by numbers in place of texts that joins add.
//!
//! ```text
//! AggregateExec: final, by city                DecodeExec: city
//!   AggregateExec: partial, by city              AggregateExec: final, by city
//!     HashJoinExec: customers.id = key    ->       AggregateExec: partial, by city
//!       customers: id, city                          HashJoinExec: customers.id = key
//!       sales: key, v                                  CodeExec: city
//!                                                        customers: id, city
//!                                                      sales: key, v
//! ```
//!
//! Correct because equal texts have equal numbers, and because nothing between the two looks at the column but to hand
//! it on or to group by it: neither keys and conditions of joins, nor other columns, nor what functions take. All texts
//! are known when the last phase gives its first group: the join takes in the side that has them before. Done where
//! many rows find few of that side, whose texts are a small part of the memory. Off with `optimize_coded_texts`.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result, ScalarValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;

use super::cardinality::may_be_large;
use super::estimate::{MANY_ROWS, estimate};
use crate::config::BlockyardOptions;
use crate::physical::{CodeExec, CodedTexts, DecodeExec, IntoPlan, PlanExt, RollUpExec};

/// Rows that find each row of the side that has the texts, at least.
const TIMES: f64 = 2.0;

#[derive(Debug)]
pub(super) struct CodeTexts;

impl PhysicalOptimizerRule for CodeTexts {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_coded_texts {
            return Ok(plan);
        }
        let limit = BlockyardOptions::from_config(config).memory_limit.bytes();
        let rewrite =
            |node: Arc<dyn ExecutionPlan>| Ok(coded(&node, limit)?.map_or(Transformed::no(node), Transformed::yes));
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "code_texts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The groups of an aggregate by numbers, as texts again.
fn coded(plan: &Arc<dyn ExecutionPlan>, limit: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(last) = plan.downcast_ref::<AggregateExec>() else { return Ok(None) };
    if !matches!(last.mode(), AggregateMode::Final | AggregateMode::FinalPartitioned) || last.limit_options().is_some()
    {
        return Ok(None);
    }
    let mut coded: Vec<Coded> = Vec::new();
    for key in 0..last.group_expr().expr().len() {
        let Some(origin) = origin(plan, key) else { continue };
        // The table of the texts takes twice what they do while it grows.
        if may_be_large(&origin.side, limit) {
            continue;
        }
        match coded.iter_mut().find(|known| Arc::ptr_eq(&known.side, &origin.side)) {
            Some(known) => known.columns.push((key, origin.column)),
            None => coded.push(Coded { side: origin.side, columns: vec![(key, origin.column)] }),
        }
    }
    let (mut made, mut decodes) = (Arc::clone(plan), Vec::new());
    for Coded { side, columns } in coded {
        let texts = Arc::<CodedTexts>::default();
        let mut of_side: Vec<usize> = columns.iter().map(|(_, column)| *column).collect();
        of_side.sort_unstable();
        of_side.dedup();
        let place = |column: usize| of_side.iter().position(|known| *known == column).unwrap_or_default();
        let keys: Vec<_> = columns.iter().map(|(key, column)| (*key, place(*column))).collect();
        let replace = Replace { side, columns: of_side.clone(), texts: Arc::clone(&texts) };
        let Some(with_numbers) = replace.within(&made)? else { return Ok(None) };
        (made, _) = (with_numbers, decodes.push((keys, texts)));
    }
    for (keys, texts) in decodes {
        made = DecodeExec::new(made, keys, texts).into_plan();
    }
    let is_same = made.schema() == plan.schema() && !Arc::ptr_eq(&made, plan);
    Ok(is_same.then_some(made))
}

/// Keys that have the texts of one side of a join.
struct Coded {
    side: Arc<dyn ExecutionPlan>,
    /// Each key, and its column of the side.
    columns: Vec<(usize, usize)>,
}

/// The side of a join where the texts of a column come from.
struct Origin {
    side: Arc<dyn ExecutionPlan>,
    column: usize,
}

/// Where the texts of a column come from, if nobody on their way looks at them.
fn origin(plan: &Arc<dyn ExecutionPlan>, column: usize) -> Option<Origin> {
    if *plan.schema().field(column).data_type() != DataType::Utf8 {
        return None;
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let keys = aggregate.group_expr().expr();
        let of_key = keys.get(column)?.0.downcast_ref::<Column>()?.index();
        let mut others = keys.iter().enumerate().filter(|(place, _)| *place != column).map(|(_, (key, _))| key);
        // What the functions of the last phase take is of the first one.
        let is_taken = *aggregate.mode() == AggregateMode::Partial
            && (aggregate.aggr_expr().iter().any(|f| f.expressions().iter().any(|arg| looks_at(arg, of_key)))
                || aggregate.filter_expr().iter().flatten().any(|filter| looks_at(filter, of_key)));
        return match is_taken || others.any(|key| looks_at(key, of_key)) {
            true => None,
            false => origin(aggregate.input(), of_key),
        };
    }
    if let Some(sets) = plan.operator::<RollUpExec>() {
        return if column < sets.num_keys() { origin(sets.input(), column) } else { None };
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let of_input = projection.expr().get(column)?.expr.downcast_ref::<Column>()?.index();
        let mut others = projection.expr().iter().enumerate().filter(|(place, _)| *place != column);
        return match others.any(|(_, other)| looks_at(&other.expr, of_input)) {
            true => None,
            false => origin(projection.input(), of_input),
        };
    }
    let join = plan.downcast_ref::<HashJoinExec>()?;
    let place = join.projection.as_ref().map_or(Some(column), |given| given.get(column).copied())?;
    let width = join.left().schema().fields().len();
    let (side, column) = if place < width { (JoinSide::Left, place) } else { (JoinSide::Right, place - width) };
    let is_key =
        join.on().iter().any(|(left, right)| looks_at(if side == JoinSide::Left { left } else { right }, column));
    let mut of_filter = join.filter().into_iter().flat_map(|filter| filter.column_indices());
    if is_key || of_filter.any(|taken| taken.side == side && taken.index == column) {
        return None;
    }
    match (side, join.join_type()) {
        (JoinSide::Right, JoinType::Inner | JoinType::Right | JoinType::Left) => origin(join.right(), column),
        (JoinSide::Left, JoinType::Inner | JoinType::Right) => {
            let is_first = *join.partition_mode() == PartitionMode::CollectLeft;
            let (rows, texts) = (estimate(plan)?.rows, estimate(join.left())?.rows);
            let is_worth_it = rows >= MANY_ROWS && rows >= TIMES * texts;
            (is_first && is_worth_it).then(|| Origin { side: Arc::clone(join.left()), column })
        }
        _ => None,
    }
}

fn looks_at(expr: &Arc<dyn PhysicalExpr>, column: usize) -> bool {
    collect_columns(expr).iter().any(|known| known.index() == column)
}

/// Puts numbers in place of the texts of a side of a join.
struct Replace {
    side: Arc<dyn ExecutionPlan>,
    columns: Vec<usize>,
    texts: Arc<CodedTexts>,
}

impl Replace {
    /// The plan over numbers, if the side is in it.
    fn within(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if Arc::ptr_eq(plan, &self.side) {
            let side = Arc::clone(plan);
            return Ok(Some(CodeExec::new(side, self.columns.clone(), Arc::clone(&self.texts)).into_plan()));
        }
        if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            let input = self.within(aggregate.input())?;
            return input.map(|input| regrouped(aggregate, input)).transpose();
        }
        if let Some(sets) = plan.operator::<RollUpExec>() {
            let input = self.within(sets.input())?;
            return Ok(input.map(|input| sets.over(input).into_plan()));
        }
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let Some(input) = self.within(projection.input())? else { return Ok(None) };
            return Ok(Some(Arc::new(ProjectionExec::try_new(projection.expr().to_vec(), input)?)));
        }
        let Some(join) = plan.downcast_ref::<HashJoinExec>() else { return Ok(None) };
        let (left, right) = match self.within(join.left())? {
            Some(left) => (left, Arc::clone(join.right())),
            None => match self.within(join.right())? {
                Some(right) => (Arc::clone(join.left()), right),
                None => return Ok(None),
            },
        };
        let join = HashJoinExec::try_new(
            left,
            right,
            join.on().to_vec(),
            join.filter().cloned(),
            join.join_type(),
            join.projection.as_ref().map(|columns| columns.to_vec()),
            *join.partition_mode(),
            join.null_equality(),
            join.null_aware,
        )?;
        Ok(Some(Arc::new(join)))
    }
}

/// The aggregate over an input of which some keys are numbers.
fn regrouped(aggregate: &AggregateExec, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let groups = aggregate.group_expr();
    let schema = input.schema();
    // What stands for the keys that a grouping set leaves out is of their types.
    let nulls = groups.null_expr().iter().zip(groups.expr()).map(|((_, name), (key, _))| {
        let null = ScalarValue::try_from(&key.data_type(&schema)?)?;
        Ok((lit(null), name.clone()))
    });
    let nulls = if groups.null_expr().is_empty() { Vec::new() } else { nulls.collect::<Result<_>>()? };
    let groups =
        PhysicalGroupBy::new(groups.expr().to_vec(), nulls, groups.groups().to_vec(), groups.has_grouping_set());
    let input_schema = match aggregate.mode() {
        AggregateMode::Partial => schema,
        _ => aggregate.input_schema(),
    };
    let (functions, filters) = (aggregate.aggr_expr().to_vec(), aggregate.filter_expr().to_vec());
    let made = AggregateExec::try_new(*aggregate.mode(), groups, functions, filters, input, input_schema)?;
    Ok(Arc::new(made))
}
