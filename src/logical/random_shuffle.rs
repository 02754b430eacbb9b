//! Ray's `RandomShuffle`. Rust: `random_shuffle(seed)`. SQL: `random_shuffle(t, seed => 42)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::config::check_num_blocks;
use crate::logical::{extension, node_of};
use crate::seed::{RandomSeed, Seeded};

arguments! {
    /// How rows are shuffled.
    #[derive(Debug, Clone, Default)]
    pub struct ShuffleOptions {
        /// What gives the order: the same seed and rows give the same order. Another one each time if not said.
        pub seed: RandomSeed,
        /// Blocks of the result; as many as its bytes ask for if not said.
        pub num_blocks: Option<usize>,
    }
}

/// `random_shuffle(t, ..)`.
#[derive(Debug)]
pub(crate) struct RandomShuffle;

impl TableFunction for RandomShuffle {
    type Arguments = ShuffleOptions;

    fn name(&self) -> &'static str {
        "random_shuffle"
    }

    fn about(&self) -> &'static str {
        "All rows in a uniformly random order."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: ShuffleOptions, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(RandomShuffleNode::try_new(planning.table()?, arguments.seed, arguments.num_blocks)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ShuffleOptions)>> {
        Ok(node_of::<RandomShuffleNode>(plan).map(|node| {
            let options = ShuffleOptions { seed: node.seed, num_blocks: node.num_blocks };
            (vec![node.input.clone()], options)
        }))
    }
}

/// A uniform random permutation of all rows, the same for the same seed and input.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RandomShuffleNode {
    input: LogicalPlan,
    seed: RandomSeed,
    num_blocks: Option<usize>,
}

impl RandomShuffleNode {
    /// Shuffles `input` into `num_blocks` blocks, or as many as its size asks for.
    ///
    /// # Errors
    ///
    /// Where `num_blocks` is 0 or far too many.
    pub fn try_new(input: LogicalPlan, seed: impl Into<RandomSeed>, num_blocks: Option<usize>) -> Result<Self> {
        num_blocks.map_or(Ok(()), |n| check_num_blocks("num_blocks", n))?;
        Ok(Self { input, seed: seed.into(), num_blocks })
    }

    /// What gives the order.
    pub fn seed(&self) -> RandomSeed {
        self.seed
    }

    /// Number of output blocks.
    pub fn num_blocks(&self) -> Option<usize> {
        self.num_blocks
    }
}

impl Seeded for RandomShuffleNode {
    fn seed_mut(&mut self) -> &mut RandomSeed {
        &mut self.seed
    }
}

impl UserDefinedLogicalNodeCore for RandomShuffleNode {
    fn name(&self) -> &str {
        "RandomShuffle"
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
        write!(f, "RandomShuffle: seed={}", self.seed.value())?;
        match self.num_blocks {
            Some(n) => write!(f, ", num_blocks={n}"),
            None => Ok(()),
        }
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
