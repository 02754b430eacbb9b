//! Physical rules, in the order in which they are registered.

mod cardinality;
mod choose_build_sides;
mod code_texts;
mod collect_once;
mod compact_slices;
mod distinct_keys;
mod distribute;
mod estimate;
mod exact_arithmetic;
mod exchange_sorts;
mod fewer_tasks;
mod fit_memory;
mod fuse_maps;
mod gather_in_order;
mod group_before_joins;
mod guard_filter_pushdown;
mod hide_claims;
mod keep_orders;
mod late_materialization;
mod link_shared;
mod loop_joins;
mod narrow_decimals;
mod order_joins;
mod read_by_file;
mod restore_orders;
mod roll_up_groups;
mod schedule_stages;
mod sort_groups;
mod sort_in_memory;
mod sort_medians;
mod spill_joins;
mod split_aggregates;
mod steady_rows;
mod top_of_groups;
mod window_partitions;

pub(crate) use estimate::expected_rows;
pub(crate) use fit_memory::in_least_memory;

use std::sync::Arc;

use super::{Anchor, RuleRegistry};

pub(super) fn register(registry: &mut RuleRegistry) {
    register_joins(registry);
    register_stages(registry);
    register_stand_ins(registry);
}

/// Rules of joins and what is above and below them.
fn register_joins(registry: &mut RuleRegistry) {
    // Before anything that is computed moves.
    registry.add_physical(Arc::new(exact_arithmetic::ExactArithmetic), Anchor::First, &[]);
    // Before DataFusion chooses build sides.
    registry.add_physical(Arc::new(order_joins::OrderJoins), Anchor::before("join_selection"), &[]);
    let sides = choose_build_sides::ChooseBuildSides;
    registry.add_physical(Arc::new(sides), Anchor::after("join_selection"), &[]);
    let sets = roll_up_groups::RollUpGroups;
    registry.add_physical(Arc::new(sets), Anchor::after("choose_build_sides"), &[]);
    let groups = group_before_joins::GroupBeforeJoins;
    registry.add_physical(Arc::new(groups), Anchor::after("roll_up_groups"), &[]);
    let keys = distinct_keys::DistinctKeys;
    registry.add_physical(Arc::new(keys), Anchor::after("group_before_joins"), &[]);
    // After build sides have been chosen, and before it adds the sorts and repartitions that a join asks for.
    registry.add_physical(Arc::new(spill_joins::SpillJoins), Anchor::after("distinct_keys"), &[]);
    let guard = guard_filter_pushdown::GuardFilterPushdown::new();
    registry.add_physical(Arc::new(guard), Anchor::replace("FilterPushdown"), &[]);
    let guard = guard_filter_pushdown::GuardFilterPushdown::post_optimization();
    registry.add_physical(Arc::new(guard), Anchor::replace("FilterPushdown(Post)"), &[]);
}

/// Rules of what runs, in which order and in how much memory.
fn register_stages(registry: &mut RuleRegistry) {
    // Before projections and filters become steps of stages, and before windows have their rows sorted.
    let top = top_of_groups::TopOfGroupsRule;
    registry.add_physical(Arc::new(top), Anchor::after("WindowTopN"), &[]);
    // Before DataFusion counts on the partitions of a join.
    let loops = loop_joins::LoopJoins;
    registry.add_physical(Arc::new(loops), Anchor::before("EnsureRequirements"), &[]);
    let collect = collect_once::CollectOnce;
    registry.add_physical(Arc::new(collect), Anchor::before("EnsureRequirements"), &[]);
    // Before projections become steps of stages.
    let decimals = narrow_decimals::NarrowDecimals;
    registry.add_physical(Arc::new(decimals), Anchor::before("EnsureRequirements"), &[]);
    let texts = code_texts::CodeTexts;
    registry.add_physical(Arc::new(texts), Anchor::before("EnsureRequirements"), &["group_before_joins"]);
    // Before DataFusion adds its own repartitions, which would come between stages.
    let fuse = fuse_maps::FuseMaps::over_maps();
    registry.add_physical(Arc::new(fuse), Anchor::before("EnsureRequirements"), &[]);
    let keep = keep_orders::KeepOrders::new();
    registry.add_physical(Arc::new(keep), Anchor::replace("EnsureRequirements"), &["fuse_maps"]);
    let groups = sort_groups::SortGroups;
    registry.add_physical(Arc::new(groups), Anchor::before("SanityCheckPlan"), &["collect_once"]);
    let medians = sort_medians::SortMedians;
    registry.add_physical(Arc::new(medians), Anchor::before("SanityCheckPlan"), &["collect_once"]);
    let sorts = exchange_sorts::ExchangeSorts;
    registry.add_physical(Arc::new(sorts), Anchor::before("SanityCheckPlan"), &["fuse_maps"]);
    // After DataFusion has pushed filters and projections into scans.
    let absorb = fuse_maps::FuseMaps::over_reads();
    registry.add_physical(Arc::new(absorb), Anchor::before("SanityCheckPlan"), &["exchange_sorts"]);
    let gather = gather_in_order::GatherInOrder;
    registry.add_physical(Arc::new(gather), Anchor::before("SanityCheckPlan"), &["absorb_into_reads"]);
    let schedule = schedule_stages::ScheduleStages;
    registry.add_physical(Arc::new(schedule), Anchor::before("SanityCheckPlan"), &["gather_in_order"]);
    let steady = steady_rows::SteadyRows;
    registry.add_physical(Arc::new(steady), Anchor::before("SanityCheckPlan"), &["schedule_stages"]);
    let by_file = read_by_file::ReadByFile;
    registry.add_physical(Arc::new(by_file), Anchor::before("SanityCheckPlan"), &["steady_rows"]);
    let late = late_materialization::LateMaterialization;
    registry.add_physical(Arc::new(late), Anchor::before("SanityCheckPlan"), &["read_by_file"]);
}

/// Rules that put other operators in the place of DataFusion's, when it is known what runs, and of what is marked then.
fn register_stand_ins(registry: &mut RuleRegistry) {
    let split = split_aggregates::SplitAggregates;
    registry.add_physical(Arc::new(split), Anchor::before("SanityCheckPlan"), &["schedule_stages"]);
    let compact = compact_slices::CompactSlices;
    registry.add_physical(Arc::new(compact), Anchor::before("SanityCheckPlan"), &["schedule_stages"]);
    let windows = window_partitions::WindowPartitions;
    registry.add_physical(Arc::new(windows), Anchor::before("SanityCheckPlan"), &["compact_slices"]);
    let hide = hide_claims::HideClaims;
    registry.add_physical(Arc::new(hide), Anchor::before("SanityCheckPlan"), &["window_partitions"]);
    let restore = restore_orders::RestoreOrders;
    registry.add_physical(Arc::new(restore), Anchor::before("SanityCheckPlan"), &["hide_claims"]);
    let fit = fit_memory::FitMemory;
    registry.add_physical(Arc::new(fit), Anchor::before("SanityCheckPlan"), &["window_partitions"]);
    let fewer = fewer_tasks::FewerTasks;
    registry.add_physical(Arc::new(fewer), Anchor::before("SanityCheckPlan"), &["late_materialization", "fit_memory"]);
    let patient = exact_arithmetic::PatientConditions;
    registry.add_physical(Arc::new(patient), Anchor::before("SanityCheckPlan"), &["fit_memory", "fewer_tasks"]);
    let distribute = distribute::Distribute;
    registry.add_physical(Arc::new(distribute), Anchor::before("SanityCheckPlan"), &["fit_memory"]);
    let sorts = sort_in_memory::SortInMemory;
    registry.add_physical(Arc::new(sorts), Anchor::before("SanityCheckPlan"), &["distribute"]);
    let link = link_shared::LinkShared;
    registry.add_physical(Arc::new(link), Anchor::before("SanityCheckPlan"), &["sort_in_memory"]);
}
