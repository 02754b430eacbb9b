//! Our logical nodes: what DataFusion has no word for. One per file.
//!
//! | Ray operator | Dataset call | SQL | node | operator |
//! |---|---|---|---|---|
//! | MapBatches, MapRows, FlatMap, Filter(fn), RandomSample | `map_batches`, `map`, `flat_map`, `filter`, `random_sample` | `map_batches(t, 'f')`, `TABLESAMPLE` | [`MapNode`] | `MapExec` |
//! | RandomShuffle | `random_shuffle` | `random_shuffle(t)` | [`RandomShuffleNode`] | `ExchangeExec` |
//! | Repartition | `repartition` | `repartition(t, num_blocks => n)` | [`RepartitionNode`] | `ExchangeExec` |
//! | RandomizeBlocks | `randomize_block_order` | `randomize_block_order(t)` | [`RandomizeBlocksNode`] | `ExchangeExec` |
//! | - | `local_shuffle` | `local_shuffle(t, rows => n)` | [`LocalShuffleNode`] | `LocalShuffleExec` |
//! | Zip | `zip` | `zip(a, b)` | [`ZipNode`] | `CombineExec` |
//! | Mix | `mix` | `mix(a, b, weights => [2, 1])` | [`MixNode`] | `CombineExec` |
//! | - | `split`, `train_test_split`, `streaming_split` | the same | [`PartNode`] | `PartExec` |
//! | - | `IterOptions::resume` | `resume(t, token)` | [`ResumeNode`] | `ResumeExec` |
//! | - | - | a `WITH` table that is referenced twice | `SharedNode` | `SharedExec` |
//! | DatasetPipeline | `window`, `repeat` | `windows(t)`, `repeat(t)` | [`PipelineNode`], [`WindowNode`] | `PipelineExec` |
//!
//! Read is a table scan, write is DataFusion's COPY, and project, filter, sort, aggregate, join, union and limit are
//! DataFusion's own.

mod depth;
mod epoch;
mod expressions;
mod local_shuffle;
mod map;
mod map_batches;
mod map_groups;
mod mix;
mod numbers;
mod part;
mod pipeline;
mod random_shuffle;
mod randomize_blocks;
mod repartition;
mod resume;
mod shared;
mod stratify;
mod streaming_train_test;
mod summary;
mod zip;

pub(crate) use depth::check_plan_depth;
pub(crate) use epoch::{fixed_plan_of_epoch, plan_of_epoch};
pub(crate) use expressions::{
    columns_within, compares, computes_integers, has_casts, has_node, has_part, is_guard, is_of_some, is_subquery,
    may_exceed, may_fail,
};
pub(crate) use local_shuffle::LocalShuffle;
pub use local_shuffle::{LocalShuffleNode, LocalShuffleOptions};
pub use map::{MapNode, MapOperator};
pub(crate) use map_batches::{MapBatches, MapBatchesArguments, map_batches};
pub(crate) use map_groups::{MapGroups, map_groups};
pub(crate) use mix::Mix;
pub use mix::{MixNode, MixOptions, MixStoppingCondition};
pub(crate) use numbers::{always_fits, bits_of_result, bits_of_type, bits_of_value, have_room, keep_digits};
pub use part::PartNode;
pub(crate) use part::{Split, StreamingSplit, TrainTest};
pub use pipeline::{Epochs, PipelineNode, WindowNode};
pub(crate) use pipeline::{LABELS, is_endless, pipeline_functions, pipeline_of};
pub(crate) use random_shuffle::RandomShuffle;
pub use random_shuffle::{RandomShuffleNode, ShuffleOptions};
pub(crate) use randomize_blocks::RandomizeBlockOrder;
pub use randomize_blocks::{BlockOrderOptions, RandomizeBlocksNode};
pub(crate) use repartition::Repartition;
pub use repartition::{ByKeys, IntoBlocks, IntoRows, RepartitionNode, Repartitioning};
pub use resume::ResumeNode;
pub(crate) use resume::{OTHER_PLAN, Resume, cpus_of_token};
pub(crate) use shared::{ONCE, SharedNode, is_drawn_once};
pub(crate) use stratify::{mark_test_rows, test_rows};
pub(crate) use streaming_train_test::{StreamingTrainTest, check_test_size, streamed_by_place, streamed_by_value};
pub(crate) use summary::{Summary, summary};
pub(crate) use zip::Zip;
pub use zip::ZipNode;

use std::sync::Arc;

use datafusion::logical_expr::{Extension, LogicalPlan, UserDefinedLogicalNode};

/// Whether a plan is one of our nodes.
pub(crate) fn is_ours(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Extension(Extension { node }) = plan else {
        return false;
    };
    let node = node.as_any();
    node.is::<MapNode>()
        || node.is::<RandomShuffleNode>()
        || node.is::<RepartitionNode>()
        || node.is::<RandomizeBlocksNode>()
        || node.is::<LocalShuffleNode>()
        || node.is::<ZipNode>()
        || node.is::<MixNode>()
        || node.is::<PartNode>()
        || node.is::<ResumeNode>()
        || node.is::<PipelineNode>()
        || node.is::<WindowNode>()
        || node.is::<SharedNode>()
}

/// A plan with one of our nodes at its root.
pub(crate) fn extension(node: impl UserDefinedLogicalNode + 'static) -> LogicalPlan {
    LogicalPlan::Extension(Extension { node: Arc::new(node) })
}

/// The node of type `T` at the root of a plan, if it is one.
pub(crate) fn node_of<T: 'static>(plan: &LogicalPlan) -> Option<&T> {
    match plan {
        LogicalPlan::Extension(Extension { node }) => node.as_any().downcast_ref::<T>(),
        _ => None,
    }
}
