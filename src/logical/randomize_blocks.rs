//! Ray's `RandomizeBlocks`. Rust: `randomize_block_order(seed)`. SQL: `randomize_block_order(t, seed => 42)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::logical::{extension, node_of};
use crate::seed::{RandomSeed, Seeded};

arguments! {
    /// How blocks are reordered.
    #[derive(Debug, Clone, Default)]
    pub struct BlockOrderOptions {
        /// What gives the order: the same seed and blocks give the same order. Another one each time if not said.
        pub seed: RandomSeed,
        /// From how many blocks each is taken, while they come; from all of them if not said.
        pub window: Option<usize>,
    }
}

/// `randomize_block_order(t, ..)`.
#[derive(Debug)]
pub(crate) struct RandomizeBlockOrder;

impl TableFunction for RandomizeBlockOrder {
    type Arguments = BlockOrderOptions;

    fn name(&self) -> &'static str {
        "randomize_block_order"
    }

    fn about(&self) -> &'static str {
        "The same blocks in random order; no row moves to another block."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: BlockOrderOptions, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(RandomizeBlocksNode::try_new(planning.table()?, arguments.seed, arguments.window)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, BlockOrderOptions)>> {
        Ok(node_of::<RandomizeBlocksNode>(plan).map(|node| {
            let options = BlockOrderOptions { seed: node.seed, window: node.window };
            (vec![node.input.clone()], options)
        }))
    }
}

/// The same blocks in random order; no rows move between blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RandomizeBlocksNode {
    input: LogicalPlan,
    seed: RandomSeed,
    window: Option<usize>,
}

impl RandomizeBlocksNode {
    /// Reorders the blocks of `input`: all of them, or while they come, where each is taken from a `window` of so many.
    ///
    /// # Errors
    ///
    /// Where `window` is 0.
    pub fn try_new(input: LogicalPlan, seed: impl Into<RandomSeed>, window: Option<usize>) -> Result<Self> {
        if window == Some(0) {
            return plan_err!("window must be at least 1, got 0");
        }
        Ok(Self { input, seed: seed.into(), window })
    }

    /// What gives the order.
    pub fn seed(&self) -> RandomSeed {
        self.seed
    }

    /// From how many blocks each is taken, if not from all.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// The same over another input.
    pub(crate) fn over(&self, input: LogicalPlan) -> Self {
        Self { input, ..self.clone() }
    }

    /// Its input.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }
}

impl Seeded for RandomizeBlocksNode {
    fn seed_mut(&mut self) -> &mut RandomSeed {
        &mut self.seed
    }
}

impl UserDefinedLogicalNodeCore for RandomizeBlocksNode {
    fn name(&self) -> &str {
        "RandomizeBlockOrder"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    // Rows stay as they are, so a predicate may be applied before.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RandomizeBlockOrder: seed={}", self.seed.value())?;
        self.window.map_or(Ok(()), |window| write!(f, ", window={window}"))
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
