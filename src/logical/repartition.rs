//! Ray's `Repartition`. Rust: `repartition(n, shuffle)`, `repartition_by(keys, n, sort)`, `repartition_rows(n, strict)`,
//! `repartition_by_ranges(keys, boundaries)`,
//! `repartition_bytes(n)`. SQL: `repartition(t, num_blocks => 64, shuffle => false)`, `repartition(t, keys => ['a'], sort =>
//! true)`, `repartition(t, keys => ['a'], boundaries => [10, 20])`, `repartition(t, target_num_rows_per_block => 1000, strict => true)`, `repartition(t, target_bytes_per_block => '64MiB')`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::config::check_num_blocks;
use crate::error::unknown_name;

/// Which rows come into which block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub enum Repartitioning {
    /// Equal numbers of rows in each.
    Blocks {
        /// Number of output blocks.
        num_blocks: usize,
        /// Whether every output block gets rows of every input block. Otherwise the order stays and as few rows as
        /// possible move.
        shuffle: bool,
    },
    /// Consecutive rows, while they come.
    Rows {
        /// Rows of a block.
        target_num_rows_per_block: usize,
        /// Whether all blocks but the last have as many. Otherwise blocks of the input are cut, but not joined.
        strict: bool,
    },
    /// Consecutive rows, while they come.
    Bytes {
        /// The most bytes of a block, unless one row has more.
        target_bytes_per_block: usize,
    },
    /// Rows with equal keys in the same.
    Keys {
        /// Names of columns.
        keys: Vec<String>,
        /// Number of output blocks; as many as the bytes ask for where it is not said.
        num_blocks: Option<usize>,
        /// Whether the rows of each block are sorted by the keys, ascending, nulls last.
        sort: bool,
    },
    /// Sorted by the keys, ascending, nulls last, in a block more than there are boundaries.
    Ranges {
        /// Names of columns.
        keys: Vec<String>,
        /// Values of the first key at which a block begins, ascending.
        boundaries: Vec<ScalarValue>,
    },
}

/// The same rows in other blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RepartitionNode {
    input: LogicalPlan,
    into: Repartitioning,
}

impl RepartitionNode {
    /// Fails for no blocks or far too many, blocks without rows or bytes, no keys, and keys that are not columns.
    pub fn try_new(input: LogicalPlan, into: Repartitioning) -> Result<Self> {
        if let Repartitioning::Blocks { num_blocks, .. } | Repartitioning::Keys { num_blocks: Some(num_blocks), .. } =
            into
        {
            check_num_blocks("num_blocks", num_blocks)?;
        }
        let zero = match into {
            Repartitioning::Rows { target_num_rows_per_block: 0, .. } => "target_num_rows_per_block",
            Repartitioning::Bytes { target_bytes_per_block: 0 } => "target_bytes_per_block",
            _ => {
                let mut node = Self { input, into };
                node.check_keys()?;
                node.check_boundaries()?;
                return Ok(node);
            }
        };
        plan_err!("{zero} must be at least 1, got 0")
    }

    fn check_keys(&self) -> Result<()> {
        let (Repartitioning::Keys { keys, .. } | Repartitioning::Ranges { keys, .. }) = &self.into else {
            return Ok(());
        };
        if keys.is_empty() {
            return plan_err!("keys must name at least one column");
        }
        let schema = self.input.schema();
        let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        match keys.iter().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(unknown_name("column", key, "repartition", &known)),
            None => Ok(()),
        }
    }

    /// Boundaries get the type of the first key.
    fn check_boundaries(&mut self) -> Result<()> {
        let first = self.key_indices().first().map(|index| Arc::clone(self.input.schema().field(*index)));
        let (Repartitioning::Ranges { boundaries, .. }, Some(key)) = (&mut self.into, first) else {
            return Ok(());
        };
        let name = key.name();
        for boundary in boundaries.iter_mut() {
            let value = boundary.cast_to(key.data_type());
            match value {
                Ok(value) if !value.is_null() => *boundary = value,
                _ => return plan_err!("boundary {boundary} is not a value of '{name}', which is {}", key.data_type()),
            }
        }
        match boundaries.windows(2).find(|pair| !matches!(pair[0].partial_cmp(&pair[1]), Some(Ordering::Less))) {
            Some(pair) => plan_err!("boundaries must ascend, but {} stands before {}", pair[0], pair[1]),
            None => Ok(()),
        }
    }

    /// Which rows come into which block.
    pub fn into(&self) -> &Repartitioning {
        &self.into
    }

    /// The places of the keys among the columns.
    pub(crate) fn key_indices(&self) -> Vec<usize> {
        let fields = self.input.schema().fields();
        match &self.into {
            Repartitioning::Blocks { .. } | Repartitioning::Rows { .. } | Repartitioning::Bytes { .. } => Vec::new(),
            Repartitioning::Keys { keys, .. } | Repartitioning::Ranges { keys, .. } => {
                keys.iter().filter_map(|key| fields.iter().position(|field| field.name() == key)).collect()
            }
        }
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
        match &self.into {
            Repartitioning::Blocks { num_blocks, shuffle } => {
                write!(f, "Repartition: num_blocks={num_blocks}, shuffle={shuffle}")
            }
            Repartitioning::Rows { target_num_rows_per_block, strict } => {
                write!(f, "Repartition: target_num_rows_per_block={target_num_rows_per_block}, strict={strict}")
            }
            Repartitioning::Bytes { target_bytes_per_block } => {
                write!(f, "Repartition: target_bytes_per_block={target_bytes_per_block}")
            }
            Repartitioning::Keys { keys, num_blocks, sort } => {
                write!(f, "Repartition: keys=[{}]", keys.join(", "))?;
                num_blocks.map_or(Ok(()), |n| write!(f, ", num_blocks={n}"))?;
                write!(f, ", sort={sort}")
            }
            Repartitioning::Ranges { keys, boundaries } => {
                let boundaries: Vec<_> = boundaries.iter().map(ToString::to_string).collect();
                write!(f, "Repartition: keys=[{}], boundaries=[{}]", keys.join(", "), boundaries.join(", "))
            }
        }
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::try_new(inputs.swap_remove(0), self.into.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let mut columns = [output_columns, &self.key_indices()].concat();
        columns.sort_unstable();
        columns.dedup();
        Some(vec![columns])
    }
}
