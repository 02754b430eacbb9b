//! Logical rules, in the order in which they are registered.

mod change_tables;
mod compute_keys;
mod drop_constant_keys;
mod equal_plans;
mod evaluate_once;
mod exact;
mod exact_casts;
mod exact_constants;
mod exact_dates;
mod exact_decimals;
mod exact_in_lists;
mod exact_intervals;
mod exact_negations;
mod exact_subqueries;
mod group_distinct;
mod guard_arguments;
mod guard_filter_pushdown;
mod merge_aggregates;
mod narrow_shared;
mod null_safe_joins;
mod nullable_subqueries;
mod order_conditions;
mod order_partial_functions;
mod rename_shadowed;
mod reorder_randomize_blocks;
mod safe_conditions_first;
mod same;
mod share_subplans;
mod stand_in_functions;
mod steady_hidden_columns;
mod tell_sources_apart;
mod together;
mod unnest_subqueries;

use std::sync::Arc;

use super::{Anchor, RuleRegistry};

pub(super) fn register(registry: &mut RuleRegistry) {
    registry.add_logical(Arc::new(tell_sources_apart::TellSourcesApart), Anchor::First, &[]);
    registry.add_logical(Arc::new(evaluate_once::EvaluateOnce), Anchor::First, &[]);
    registry.add_logical(Arc::new(change_tables::ChangeTables), Anchor::First, &[]);
    registry.add_logical(Arc::new(steady_hidden_columns::SteadyHiddenColumns), Anchor::First, &[]);
    let guard = guard_filter_pushdown::GuardFilterPushdown::new();
    registry.add_logical(Arc::new(guard), Anchor::replace("push_down_filter"), &[]);
    let distinct = group_distinct::GroupDistinct;
    registry.add_logical(Arc::new(distinct), Anchor::before("single_distinct_aggregation_to_group_by"), &[]);
    let keys = drop_constant_keys::DropConstantKeys;
    registry.add_logical(Arc::new(keys), Anchor::before("eliminate_group_by_constant"), &[]);
    let arguments = guard_arguments::GuardArguments;
    registry.add_logical(Arc::new(arguments), Anchor::before("eliminate_group_by_constant"), &[]);
    let keys = compute_keys::ComputeKeys;
    registry.add_logical(Arc::new(keys), Anchor::before("eliminate_group_by_constant"), &["guard_arguments"]);
    let partial = order_partial_functions::OrderPartialFunctions;
    registry.add_logical(Arc::new(partial), Anchor::after("evaluate_once"), &[]);
    let reorder = reorder_randomize_blocks::ReorderRandomizeBlocks;
    registry.add_logical(Arc::new(reorder), Anchor::before("push_down_limit"), &[]);
    let rename = rename_shadowed::RenameShadowed;
    registry.add_logical(Arc::new(rename), Anchor::before("optimize_projections"), &[]);
    let conditions = order_conditions::OrderConditions;
    registry.add_logical(Arc::new(conditions), Anchor::after("optimize_projections"), &[]);
    let safe = safe_conditions_first::SafeConditionsFirst;
    registry.add_logical(Arc::new(safe), Anchor::before("common_sub_expression_eliminate"), &[]);
    let share = share_subplans::ShareSubplans;
    registry.add_logical(Arc::new(share), Anchor::after("order_partial_functions"), &["evaluate_once"]);
    let merge = merge_aggregates::MergeAggregates;
    registry.add_logical(Arc::new(merge), Anchor::before("share_subplans"), &["evaluate_once"]);
    let nullable = nullable_subqueries::NullableSubqueries;
    registry.add_logical(Arc::new(nullable), Anchor::before("rewrite_set_comparison"), &[]);
    let exact = exact_subqueries::ExactSubqueries;
    registry.add_logical(Arc::new(exact), Anchor::before("rewrite_set_comparison"), &[]);
    register_exact(registry);
    let unnest = unnest_subqueries::UnnestSubqueries;
    registry.add_logical(Arc::new(unnest), Anchor::after("exact_subqueries"), &[]);
    let keys = null_safe_joins::ExtractKeys::named("extract_equijoin_predicate");
    registry.add_logical(Arc::new(keys), Anchor::replace("extract_equijoin_predicate"), &[]);
    let together = null_safe_joins::PutJoinsTogether::new();
    registry.add_logical(Arc::new(together), Anchor::replace("eliminate_cross_join"), &[]);
    let keys = null_safe_joins::ExtractKeys::named("extract_null_safe_keys");
    registry.add_logical(Arc::new(keys), Anchor::Last, &["eliminate_cross_join"]);
    registry.add_logical(Arc::new(narrow_shared::NarrowShared), Anchor::Last, &["share_subplans"]);
}

/// Rules that keep DataFusion from taking expressions for others, before it simplifies them.
fn register_exact(registry: &mut RuleRegistry) {
    let decimals = exact_decimals::ExactDecimals;
    registry.add_logical(Arc::new(decimals), Anchor::before("simplify_expressions"), &[]);
    let dates = exact_dates::ExactDates("exact_dates");
    registry.add_logical(Arc::new(dates), Anchor::before("simplify_expressions"), &[]);
    let dates = exact_dates::ExactDates("exact_dates_of_constants");
    registry.add_logical(Arc::new(dates), Anchor::after("simplify_expressions"), &[]);
    let casts = exact_casts::ExactCasts;
    registry.add_logical(Arc::new(casts), Anchor::before("simplify_expressions"), &[]);
    let lists = exact_in_lists::ExactInLists;
    registry.add_logical(Arc::new(lists), Anchor::before("simplify_expressions"), &[]);
    let intervals = exact_intervals::ExactIntervals;
    registry.add_logical(Arc::new(intervals), Anchor::before("simplify_expressions"), &[]);
    let negations = exact_negations::ExactNegations;
    registry.add_logical(Arc::new(negations), Anchor::before("simplify_expressions"), &[]);
    let constants = exact_constants::ExactConstants;
    registry.add_logical(Arc::new(constants), Anchor::before("simplify_expressions"), &[]);
    let stand_ins = stand_in_functions::StandInFunctions;
    registry.add_logical(Arc::new(stand_ins), Anchor::before("simplify_expressions"), &[]);
}
