//! Ray's `local_shuffle_buffer_size`, as a part of the plan. Rust: `local_shuffle(10_000, seed)`. SQL:
//! `local_shuffle(t, rows => 10000, seed => 42)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::logical::{extension, node_of};
use crate::seed::{RandomSeed, Seeded};

arguments! {
    /// How rows are shuffled among their neighbours.
    #[derive(Debug, Clone)]
    pub struct LocalShuffleOptions {
        /// By how many places rows move in the mean, which is also how many are held; at least 1.
        pub rows: usize,
        /// What gives the order: the same seed and rows give the same order. Another one each time if not said.
        pub seed: RandomSeed,
    }
}

/// `local_shuffle(t, ..)`.
#[derive(Debug)]
pub(crate) struct LocalShuffle;

impl TableFunction for LocalShuffle {
    type Arguments = LocalShuffleOptions;

    fn name(&self) -> &'static str {
        "local_shuffle"
    }

    fn about(&self) -> &'static str {
        "Rows among their neighbours in random order, while they come: each moves back by some places."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: LocalShuffleOptions, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(LocalShuffleNode::try_new(planning.table()?, arguments.rows, arguments.seed)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, LocalShuffleOptions)>> {
        Ok(node_of::<LocalShuffleNode>(plan).map(|node| {
            let options = LocalShuffleOptions { rows: node.rows, seed: node.seed };
            (vec![node.input.clone()], options)
        }))
    }
}

/// Each row some places later, by an exponential law: row `i` leaves at place `i + d`, where `d` is drawn from the seed
/// and `i`, has the mean `rows`, and is at most 8 times as many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct LocalShuffleNode {
    input: LogicalPlan,
    rows: usize,
    seed: RandomSeed,
}

impl LocalShuffleNode {
    /// Moves the rows of `input` back by `rows` places in the mean.
    ///
    /// # Errors
    ///
    /// Where `rows` is 0, or above 2^37.
    pub fn try_new(input: LogicalPlan, rows: usize, seed: impl Into<RandomSeed>) -> Result<Self> {
        match rows {
            0 => plan_err!("rows of local_shuffle must be at least 1, got 0"),
            rows if rows > 1 << 37 => plan_err!("rows of local_shuffle must be at most {}, got {rows}", 1_u64 << 37),
            rows => Ok(Self { input, rows, seed: seed.into() }),
        }
    }

    /// By how many places rows move in the mean.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// What gives the order.
    pub fn seed(&self) -> RandomSeed {
        self.seed
    }
}

impl Seeded for LocalShuffleNode {
    fn seed_mut(&mut self) -> &mut RandomSeed {
        &mut self.seed
    }
}

impl UserDefinedLogicalNodeCore for LocalShuffleNode {
    fn name(&self) -> &str {
        "LocalShuffle"
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

    // Rows stay as they are, so a predicate may be applied before; there are fewer neighbours then.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalShuffle: rows={}, seed={}", self.rows, self.seed.value())
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
