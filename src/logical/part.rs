//! Ray's `split`, `train_test_split` and `streaming_split`, as a part of the rows of a table: in Rust they are methods
//! that give all parts. SQL: `split(t, 0, parts => 4)`, `train_test_split(t, 'train', 0.2)`,
//! `streaming_split(t, 4, 0)`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore, lit};

use super::streaming_train_test::is_test;
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::functions::{RowPart, Turns, TurnsOf, check_indices, check_proportions};
use crate::logical::{RandomShuffleNode, extension, mark_test_rows, node_of, test_rows};
use crate::seed::RandomSeed;

arguments! {
    /// Which part of a table.
    #[derive(Debug, Default)]
    pub(crate) struct SplitArguments {
        /// The number of the part, from 0 on.
        pub(crate) part: usize,
        /// How many parts of neighbours there are, which differ by a row at most.
        pub(crate) parts: Option<usize>,
        /// Rows at which parts begin, but for the first.
        pub(crate) at: Option<Vec<usize>>,
        /// What parts have of all rows, but for the last.
        pub(crate) proportions: Option<Vec<f64>>,
        /// Whether all parts have equally many rows; the last rows, less than there are parts, are in none.
        pub(crate) equal: bool = default,
    }
}

/// `split(t, ..)`.
#[derive(Debug)]
pub(crate) struct Split;

impl TableFunction for Split {
    type Arguments = SplitArguments;

    fn name(&self) -> &'static str {
        "split"
    }

    fn about(&self) -> &'static str {
        "One part of the rows, of so many, between places, or in proportion. Where that takes the number of all rows, \
         they are counted first: from metadata, or by reading them once more."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: SplitArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let SplitArguments { part, parts, at, proportions, equal } = arguments;
        let is_below = |n: usize| match part < n {
            true => Ok(()),
            false => plan_err!("there are {n} parts, 0 to {}, and none with number {part}", n - 1),
        };
        let of = match (parts, at, proportions) {
            (Some(0), None, None) => return plan_err!("a table is split into at least 1 part, got 0"),
            (Some(parts), None, None) => {
                is_below(parts)?;
                RowPart::Nth { part, parts, equal }
            }
            (None, Some(at), None) if !equal => {
                check_indices(&at)?;
                is_below(at.len() + 1)?;
                RowPart::Between(part.checked_sub(1).map_or(0, |before| at[before]), at.get(part).copied())
            }
            (None, None, Some(proportions)) if !equal => {
                check_proportions(&proportions)?;
                is_below(proportions.len() + 1)?;
                RowPart::Proportional { proportions: proportions.into_iter().map(f64::to_bits).collect(), part }
            }
            (Some(_), ..) | (_, Some(_), Some(_)) => {
                return plan_err!("split takes one of parts, at and proportions");
            }
            (None, None, None) => return plan_err!("split needs parts, at or proportions"),
            _ => return plan_err!("equal belongs to parts"),
        };
        PartNode::plan(planning.table()?, of)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, SplitArguments)>> {
        let Some(node) = node_of::<PartNode>(plan) else { return Ok(None) };
        let arguments = match &node.part {
            RowPart::Nth { part, parts, equal } => {
                SplitArguments { part: *part, parts: Some(*parts), equal: *equal, ..SplitArguments::default() }
            }
            RowPart::Between(0, Some(to)) => SplitArguments { at: Some(vec![*to]), ..SplitArguments::default() },
            RowPart::Between(from, to) => {
                let at = [*from].into_iter().chain(*to).collect();
                SplitArguments { part: 1, at: Some(at), ..SplitArguments::default() }
            }
            RowPart::Proportional { proportions, part } => {
                let proportions = proportions.iter().copied().map(f64::from_bits).collect();
                SplitArguments { part: *part, proportions: Some(proportions), ..SplitArguments::default() }
            }
            _ => return Ok(None),
        };
        Ok(Some((vec![node.input().clone()], arguments)))
    }
}

arguments! {
    /// Which rows are for training, and which for testing.
    #[derive(Debug, Default)]
    pub(crate) struct TrainTestArguments {
        /// `train` or `test`.
        pub(crate) part: String,
        /// How many rows are for testing: a share above 0 and below 1, or a number from 1 on.
        pub(crate) test_size: f64,
        /// Shuffles all rows before, by this seed. Without it, the last rows are for testing.
        pub(crate) seed: Option<u64>,
        /// A column: of the rows with each of its values the same share is for testing, rounded down. Not with `seed`.
        pub(crate) stratify: Option<String>,
    }
}

/// `train_test_split(t, ..)`.
#[derive(Debug)]
pub(crate) struct TrainTest;

impl TableFunction for TrainTest {
    type Arguments = TrainTestArguments;

    fn name(&self) -> &'static str {
        "train_test_split"
    }

    fn about(&self) -> &'static str {
        "The rows for training, or those for testing: the last ones, the last ones of a shuffle, or those of each value of \
         a column."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: TrainTestArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let TrainTestArguments { part, test_size, seed, stratify } = arguments;
        let is_test = is_test(&part)?;
        if let Some(column) = stratify {
            return match (seed, test_size > 0.0 && test_size < 1.0) {
                (Some(_), _) => plan_err!("stratify does not go together with a shuffle, so not with seed"),
                (None, false) => plan_err!("stratify needs a test size above 0 and below 1, got {test_size}"),
                (None, true) => test_rows(mark_test_rows(planning.table()?, &column, test_size)?, is_test),
            };
        }
        let of = match test_size {
            size if size > 0.0 && size < 1.0 => {
                RowPart::Proportional { proportions: vec![(1.0 - size).to_bits()], part: usize::from(is_test) }
            }
            size if size >= 1.0 && size.fract() == 0.0 => RowPart::Last { rows: size as usize, is_last: is_test },
            size => return plan_err!("the test size is above 0 and below 1, or a number of rows, got {size}"),
        };
        let table = planning.table()?;
        let table = match seed {
            Some(seed) => extension(RandomShuffleNode::try_new(table, RandomSeed::fixed(seed), None)?),
            None => table,
        };
        PartNode::plan(table, of)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, TrainTestArguments)>> {
        let Some(node) = node_of::<PartNode>(plan) else { return Ok(None) };
        let RowPart::Last { rows, is_last } = node.part else { return Ok(None) };
        let part = if is_last { "test" } else { "train" };
        let arguments = TrainTestArguments { part: part.to_owned(), test_size: rows as f64, ..Default::default() };
        Ok(Some((vec![node.input().clone()], arguments)))
    }
}

arguments! {
    /// What one of several consumers gets.
    #[derive(Debug, Default)]
    pub(crate) struct StreamingSplitArguments {
        /// How many consumers there are.
        pub(crate) n: usize,
        /// Which of them, from 0 on.
        pub(crate) index: usize,
        /// Rows that each gets in a turn; 256 if neither this nor the other is said.
        pub(crate) batch_size: Option<usize>,
        /// Rows of a turn for all together.
        pub(crate) global_batch_size: Option<usize>,
        /// Everyone gets equally many rows.
        pub(crate) equal: bool = default,
        /// Leaves out the last turn when it is short.
        pub(crate) drop_last: bool = default,
    }
}

/// `streaming_split(t, ..)`.
#[derive(Debug)]
pub(crate) struct StreamingSplit;

impl TableFunction for StreamingSplit {
    type Arguments = StreamingSplitArguments;

    fn name(&self) -> &'static str {
        "streaming_split"
    }

    fn about(&self) -> &'static str {
        "What one of several consumers gets where rows are dealt by turns. Each call reads the table for itself; \
         `blockyard serve` deals one run of it to several processes."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: StreamingSplitArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let StreamingSplitArguments { n, index, batch_size, global_batch_size, equal, drop_last } = arguments;
        let batch_size = if global_batch_size.is_some() { batch_size } else { batch_size.or(Some(256)) };
        let turns = Turns::of(n, (batch_size, global_batch_size), equal, drop_last)?;
        if index >= n {
            return plan_err!("there are {n} consumers, 0 to {}, and none with number {index}", n - 1);
        }
        let rows = turns.rows.unwrap_or(1);
        PartNode::plan(planning.table()?, RowPart::Turns { turns: TurnsOf { turns, rows }, index })
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, StreamingSplitArguments)>> {
        let Some(node) = node_of::<PartNode>(plan) else { return Ok(None) };
        let RowPart::Turns { turns: TurnsOf { turns, rows }, index } = node.part else { return Ok(None) };
        let arguments = StreamingSplitArguments {
            n: turns.n,
            index,
            batch_size: turns.by_batches,
            global_batch_size: Some(rows).filter(|_| turns.by_batches.is_none()),
            equal: turns.equal,
            drop_last: turns.drop_last,
        };
        Ok(Some((vec![node.input().clone()], arguments)))
    }
}

/// A part of the rows of a table, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct PartNode {
    /// The rows, and how many they are, where that says which rows the part has.
    inputs: Vec<LogicalPlan>,
    part: RowPart,
}

impl PartNode {
    /// A part of the rows of `input`.
    ///
    /// # Errors
    ///
    /// Where the rows cannot be counted.
    pub fn try_new(input: LogicalPlan, part: RowPart) -> Result<Self> {
        let counted = match part.needs_count() {
            true => {
                let counted = LogicalPlanBuilder::from(input.clone());
                Some(counted.aggregate(Vec::<Expr>::new(), vec![count(lit(1))])?.build()?)
            }
            false => None,
        };
        Ok(Self { inputs: [input].into_iter().chain(counted).collect(), part })
    }

    fn plan(input: LogicalPlan, part: RowPart) -> Result<LogicalPlan> {
        Ok(extension(Self::try_new(input, part)?))
    }

    /// The table.
    pub fn input(&self) -> &LogicalPlan {
        &self.inputs[0]
    }

    /// Which part of it.
    pub fn part(&self) -> &RowPart {
        &self.part
    }
}

impl UserDefinedLogicalNodeCore for PartNode {
    fn name(&self) -> &str {
        "Part"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        self.inputs[0].schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    // With fewer rows, rows have other numbers.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part: {}", self.part)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { inputs, part: self.part.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let of_count = self.inputs.get(1).map(|_| vec![0]);
        Some([output_columns.to_vec()].into_iter().chain(of_count).collect())
    }
}
