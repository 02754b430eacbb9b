//! Ray's `RandomizeBlocks`. Rust: `randomize_block_order(seed)`. SQL: `randomize_block_order(t, seed => 42)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// The same blocks in random order; no rows move between blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RandomizeBlocksNode {
    input: LogicalPlan,
    seed: u64,
}

impl RandomizeBlocksNode {
    /// Reorders the blocks of `input`.
    pub fn new(input: LogicalPlan, seed: u64) -> Self {
        Self { input, seed }
    }

    /// What gives the order.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Its input.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
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
        write!(f, "RandomizeBlockOrder: seed={}", self.seed)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
