//! Ray's `Repartition`. Rust: `repartition(n, shuffle)`. SQL: `repartition(t, num_blocks => 64, shuffle => false)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// The same rows in a given number of blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RepartitionNode {
    input: LogicalPlan,
    num_blocks: usize,
    shuffle: bool,
}

impl RepartitionNode {
    /// Without `shuffle` the order stays and as few rows as possible move; with it every output block gets rows of every
    /// input block.
    pub fn try_new(input: LogicalPlan, num_blocks: usize, shuffle: bool) -> Result<Self> {
        if num_blocks == 0 {
            return plan_err!("num_blocks must be at least 1, got 0");
        }
        Ok(Self { input, num_blocks, shuffle })
    }

    /// Number of output blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Whether rows are spread over all blocks.
    pub fn shuffle(&self) -> bool {
        self.shuffle
    }
}

impl UserDefinedLogicalNodeCore for RepartitionNode {
    fn name(&self) -> &str {
        "Repartition"
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
        write!(f, "Repartition: num_blocks={}, shuffle={}", self.num_blocks, self.shuffle)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
