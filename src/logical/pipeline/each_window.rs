//! What is often done with each window, as table functions: `random_shuffle_each_window(t, seed => 42)`,
//! `sort_each_window(t, ['k', 'id DESC'])`, `repartition_each_window(t, num_blocks => 4)`,
//! `randomize_block_order_each_window(t, seed => 42)`.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, SortExpr, col, ident};

use super::PipelineNode;
use super::calls::pipeline_of;
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::logical::repartition::RepartitionArguments;
use crate::logical::{RandomShuffleNode, RandomizeBlocksNode, RepartitionNode, extension, node_of};
use crate::seed::{RandomSeed, fresh_seed};

/// A pipeline with more done in each window.
fn each_window(
    planning: Planning<'_>,
    function: &str,
    what: impl FnOnce(LogicalPlan) -> Result<LogicalPlan>,
) -> Result<LogicalPlan> {
    let pipeline = pipeline_of(&planning.table()?, function)?;
    let window = what(pipeline.each_window().clone())?;
    Ok(extension(pipeline.with_each_window(window)?))
}

/// The pipeline without the last thing that is done in each window, and that: a node whose seed is another one in each.
fn last_of_each_window<N: Clone + 'static>(
    plan: &LogicalPlan,
    seed: impl FnOnce(&N) -> Option<RandomSeed>,
) -> Result<Option<(Vec<LogicalPlan>, SeedArguments)>> {
    let Some(pipeline) = node_of::<PipelineNode>(plan) else { return Ok(None) };
    let Some(node) = node_of::<N>(pipeline.each_window()) else { return Ok(None) };
    let Some(seed) = seed(node).filter(|seed| seed.is_for_each_execution()) else { return Ok(None) };
    let below = pipeline.each_window().inputs()[0].clone();
    let arguments = SeedArguments { seed: Some(seed.value()) };
    Ok(Some((vec![extension(pipeline.with_each_window(below)?)], arguments)))
}

arguments! {
    /// What gives the order in each window.
    #[derive(Debug, Default)]
    pub(crate) struct SeedArguments {
        /// What gives the orders, another one in each window and epoch. Drawn if not said.
        pub(crate) seed: Option<u64>,
    }
}

impl SeedArguments {
    fn seed(&self) -> RandomSeed {
        RandomSeed::each_execution(self.seed.unwrap_or_else(fresh_seed))
    }
}

/// `random_shuffle_each_window(t, ..)`.
#[derive(Debug)]
pub(crate) struct RandomShuffleEachWindow;

impl TableFunction for RandomShuffleEachWindow {
    type Arguments = SeedArguments;

    fn name(&self) -> &'static str {
        "random_shuffle_each_window"
    }

    fn about(&self) -> &'static str {
        "The rows of each window of a pipeline in random order, another one in each window and epoch."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: SeedArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        each_window(planning, self.name(), |window| {
            Ok(extension(RandomShuffleNode::try_new(window, arguments.seed(), None)?))
        })
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, SeedArguments)>> {
        last_of_each_window(plan, |node: &RandomShuffleNode| node.num_blocks().is_none().then_some(node.seed()))
    }
}

/// `randomize_block_order_each_window(t, ..)`.
#[derive(Debug)]
pub(crate) struct RandomizeBlockOrderEachWindow;

impl TableFunction for RandomizeBlockOrderEachWindow {
    type Arguments = SeedArguments;

    fn name(&self) -> &'static str {
        "randomize_block_order_each_window"
    }

    fn about(&self) -> &'static str {
        "The blocks of each window of a pipeline in random order, another one in each window and epoch."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: SeedArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        each_window(planning, self.name(), |window| {
            Ok(extension(RandomizeBlocksNode::try_new(window, arguments.seed(), None)?))
        })
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, SeedArguments)>> {
        last_of_each_window(plan, |node: &RandomizeBlocksNode| node.window().is_none().then_some(node.seed()))
    }
}

/// `repartition_each_window(t, ..)`.
#[derive(Debug)]
pub(crate) struct RepartitionEachWindow;

impl TableFunction for RepartitionEachWindow {
    type Arguments = RepartitionArguments;

    fn name(&self) -> &'static str {
        "repartition_each_window"
    }

    fn about(&self) -> &'static str {
        "The rows of each window of a pipeline in other blocks, as repartition does it."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: RepartitionArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let into = arguments.try_into()?;
        each_window(planning, self.name(), |window| Ok(extension(RepartitionNode::try_new(window, into)?)))
    }
}

arguments! {
    /// By what each window is sorted.
    #[derive(Debug)]
    pub(crate) struct SortArguments {
        /// Columns, each ascending with nulls last, or followed by `DESC`.
        pub(crate) keys: Vec<String>,
    }
}

impl SortArguments {
    fn order(&self) -> Result<Vec<SortExpr>> {
        if self.keys.is_empty() {
            return plan_err!("sort_each_window needs a key");
        }
        let key = |key: &String| {
            let (name, descending) = match key.trim().rsplit_once(char::is_whitespace) {
                Some((name, word)) if word.eq_ignore_ascii_case("desc") => (name.trim_end(), true),
                Some((name, word)) if word.eq_ignore_ascii_case("asc") => (name.trim_end(), false),
                _ => (key.trim(), false),
            };
            let column = if name.contains('.') { col(name) } else { ident(name) };
            column.sort(!descending, false)
        };
        Ok(self.keys.iter().map(key).collect())
    }
}

/// `sort_each_window(t, ..)`.
#[derive(Debug)]
pub(crate) struct SortEachWindow;

impl TableFunction for SortEachWindow {
    type Arguments = SortArguments;

    fn name(&self) -> &'static str {
        "sort_each_window"
    }

    fn about(&self) -> &'static str {
        "Each window of a pipeline sorted by columns."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: SortArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let order = arguments.order()?;
        each_window(planning, self.name(), |window| LogicalPlanBuilder::from(window).sort(order)?.build())
    }
}
