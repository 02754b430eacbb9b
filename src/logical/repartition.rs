//! Ray's `Repartition`. Rust: `repartition(64)`, `repartition(Repartitioning::by_keys(["a"]).sorted())`. SQL:
//! `repartition(t, num_blocks => 64)`, `repartition(t, keys => ['a'], sort => true)`,
//! `repartition(t, keys => ['a'], boundaries => [10, 20])`, `repartition(t, target_num_rows_per_block => 1000)`,
//! `repartition(t, target_bytes_per_block => '64MiB')`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::config::{ByteSize, check_num_blocks};
use crate::error::unknown_name;
use crate::logical::{extension, node_of};

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

impl Repartitioning {
    /// So many blocks with equal numbers of rows, which keep their order.
    pub fn blocks(num_blocks: usize) -> IntoBlocks {
        IntoBlocks { num_blocks, shuffle: false }
    }

    /// Rows with equal values in these columns in the same block; as many blocks as their bytes ask for.
    pub fn by_keys<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> ByKeys {
        ByKeys { keys: keys.into_iter().map(Into::into).collect(), num_blocks: None, sort: false }
    }

    /// Rows sorted by these columns, ascending, nulls last, in a block more than there are boundaries: a block begins
    /// with the first row of which the first key is not less than a boundary. Boundaries ascend.
    pub fn ranges<K: Into<String>>(keys: impl IntoIterator<Item = K>, boundaries: Vec<ScalarValue>) -> Self {
        Self::Ranges { keys: keys.into_iter().map(Into::into).collect(), boundaries }
    }

    /// Blocks of so many rows, which keep their order. Blocks that are there are cut, but not joined, so that each may
    /// end with a short one. Nothing waits for the last row.
    pub fn rows(target_num_rows_per_block: usize) -> IntoRows {
        IntoRows { target_num_rows_per_block, strict: false }
    }

    /// Blocks of at most so many bytes, unless one row has more; rows keep their order. Small blocks are joined.
    /// Nothing waits for the last row.
    pub fn bytes(target_bytes_per_block: usize) -> Self {
        Self::Bytes { target_bytes_per_block }
    }
}

/// [`Repartitioning::blocks`].
#[derive(Debug, Clone, Copy)]
pub struct IntoBlocks {
    num_blocks: usize,
    shuffle: bool,
}

impl IntoBlocks {
    /// Every block gets rows of every block that is there, so that all are alike.
    pub fn shuffled(self) -> Self {
        Self { shuffle: true, ..self }
    }
}

impl From<IntoBlocks> for Repartitioning {
    fn from(IntoBlocks { num_blocks, shuffle }: IntoBlocks) -> Self {
        Self::Blocks { num_blocks, shuffle }
    }
}

impl From<usize> for Repartitioning {
    fn from(num_blocks: usize) -> Self {
        Self::blocks(num_blocks).into()
    }
}

/// [`Repartitioning::by_keys`].
#[derive(Debug, Clone)]
pub struct ByKeys {
    keys: Vec<String>,
    num_blocks: Option<usize>,
    sort: bool,
}

impl ByKeys {
    /// So many blocks.
    pub fn num_blocks(self, num_blocks: usize) -> Self {
        Self { num_blocks: Some(num_blocks), ..self }
    }

    /// The rows of each block are sorted by the keys, ascending, nulls last.
    pub fn sorted(self) -> Self {
        Self { sort: true, ..self }
    }
}

impl From<ByKeys> for Repartitioning {
    fn from(ByKeys { keys, num_blocks, sort }: ByKeys) -> Self {
        Self::Keys { keys, num_blocks, sort }
    }
}

/// [`Repartitioning::rows`].
#[derive(Debug, Clone, Copy)]
pub struct IntoRows {
    target_num_rows_per_block: usize,
    strict: bool,
}

impl IntoRows {
    /// All blocks but the last have as many.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }
}

impl From<IntoRows> for Repartitioning {
    fn from(IntoRows { target_num_rows_per_block, strict }: IntoRows) -> Self {
        Self::Rows { target_num_rows_per_block, strict }
    }
}

arguments! {
    /// What a call of `repartition` says: one [`Repartitioning`] of several.
    #[derive(Debug, Default)]
    pub(crate) struct RepartitionArguments {
        /// Blocks of the result.
        pub(crate) num_blocks: Option<usize>,
        /// Whether each of them gets rows of every block. Otherwise rows keep their order, and few move.
        pub(crate) shuffle: Option<bool>,
        /// Columns: rows with equal values come into the same block.
        pub(crate) keys: Option<Vec<String>>,
        /// Whether the rows of each block are sorted by the keys, ascending, nulls last.
        pub(crate) sort: Option<bool>,
        /// Blocks of so many rows, which keep their order.
        pub(crate) target_num_rows_per_block: Option<usize>,
        /// Whether all blocks but the last have as many. Otherwise blocks are cut, but not joined.
        pub(crate) strict: Option<bool>,
        /// Blocks of at most so many bytes, unless one row has more; rows keep their order.
        pub(crate) target_bytes_per_block: Option<ByteSize>,
        /// Values of the first key at which a block begins, ascending; rows are sorted by the keys.
        pub(crate) boundaries: Option<Vec<ScalarValue>>,
    }
}

impl TryFrom<RepartitionArguments> for Repartitioning {
    type Error = DataFusionError;

    fn try_from(said: RepartitionArguments) -> Result<Self> {
        let RepartitionArguments { num_blocks, shuffle, keys, sort, strict, boundaries, .. } = said;
        let (rows, bytes) = (said.target_num_rows_per_block, said.target_bytes_per_block.map(|bytes| bytes.0));
        if let Some(boundaries) = boundaries {
            let others = [shuffle, sort, strict].iter().any(Option::is_some) || num_blocks.or(rows).or(bytes).is_some();
            return match keys {
                Some(keys) if !others => Ok(Self::Ranges { keys, boundaries }),
                Some(_) => plan_err!("repartition takes boundaries with keys and nothing else"),
                None => plan_err!("repartition needs the keys that boundaries are for"),
            };
        }
        match (keys, num_blocks, rows, bytes) {
            (Some(_), ..) if shuffle.is_some() => plan_err!("repartition takes keys or shuffle, not both"),
            (None, ..) if sort.is_some() => plan_err!("repartition sorts by keys, which are not given"),
            (_, _, None, _) if strict.is_some() => {
                plan_err!("repartition is strict about target_num_rows_per_block, which is not given")
            }
            (Some(keys), num_blocks, None, None) => Ok(Self::Keys { keys, num_blocks, sort: sort.unwrap_or(false) }),
            (None, Some(num_blocks), None, None) => Ok(Self::Blocks { num_blocks, shuffle: shuffle.unwrap_or(false) }),
            (None, None, Some(_), _) | (None, None, _, Some(_)) if shuffle.is_some() => {
                plan_err!("repartition shuffles into num_blocks, not into blocks of some size")
            }
            (None, None, Some(target_num_rows_per_block), None) => {
                Ok(Self::Rows { target_num_rows_per_block, strict: strict.unwrap_or(false) })
            }
            (None, None, None, Some(target_bytes_per_block)) => Ok(Self::Bytes { target_bytes_per_block }),
            (None, None, None, None) => plan_err!(
                "repartition needs one of the arguments 'num_blocks', 'keys', 'target_num_rows_per_block' and \
                 'target_bytes_per_block'"
            ),
            _ => plan_err!(
                "repartition takes num_blocks and keys, or target_num_rows_per_block, or target_bytes_per_block, not \
                 several"
            ),
        }
    }
}

impl From<Repartitioning> for RepartitionArguments {
    fn from(into: Repartitioning) -> Self {
        let unsaid = Self::default();
        match into {
            Repartitioning::Blocks { num_blocks, shuffle } => {
                Self { num_blocks: Some(num_blocks), shuffle: Some(shuffle), ..unsaid }
            }
            Repartitioning::Rows { target_num_rows_per_block, strict } => {
                Self { target_num_rows_per_block: Some(target_num_rows_per_block), strict: Some(strict), ..unsaid }
            }
            Repartitioning::Bytes { target_bytes_per_block } => {
                Self { target_bytes_per_block: Some(ByteSize(target_bytes_per_block)), ..unsaid }
            }
            Repartitioning::Keys { keys, num_blocks, sort } => {
                Self { keys: Some(keys), num_blocks, sort: Some(sort), ..unsaid }
            }
            Repartitioning::Ranges { keys, boundaries } => {
                Self { keys: Some(keys), boundaries: Some(boundaries), ..unsaid }
            }
        }
    }
}

/// `repartition(t, ..)`.
#[derive(Debug)]
pub(crate) struct Repartition;

impl TableFunction for Repartition {
    type Arguments = RepartitionArguments;

    fn name(&self) -> &'static str {
        "repartition"
    }

    fn about(&self) -> &'static str {
        "The same rows in other blocks: so many, of a size, or by keys."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: RepartitionArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(RepartitionNode::try_new(planning.table()?, arguments.try_into()?)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, RepartitionArguments)>> {
        Ok(node_of::<RepartitionNode>(plan).map(|node| (vec![node.input.clone()], node.into.clone().into())))
    }
}

/// The same rows in other blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RepartitionNode {
    input: LogicalPlan,
    into: Repartitioning,
}

impl RepartitionNode {
    /// Cuts rows into other blocks.
    ///
    /// # Errors
    ///
    /// For no blocks or far too many, blocks without rows or bytes, no keys, and keys that are not columns.
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
