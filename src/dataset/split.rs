//! Parts of a dataset that are datasets: Ray's `split`, `split_at_indices`, `split_proportionately`,
//! `train_test_split` and `streaming_train_test_split`.

use std::ops::Range;

use datafusion::common::{DataFusionError, Result, plan_err};

use super::Dataset;
use crate::config::BlockyardOptions;
use crate::functions::{check_indices, check_proportions, proportional_cuts};
use crate::logical::{check_test_size, mark_test_rows, streamed_by_place, streamed_by_value, test_rows};
use crate::seed::RandomSeed;

/// How many rows are for testing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TestSize {
    /// A part of all rows, above 0 and below 1.
    Fraction(f64),
    /// So many; at least 1, and not all.
    Rows(usize),
}

impl From<f64> for TestSize {
    fn from(fraction: f64) -> Self {
        Self::Fraction(fraction)
    }
}

impl From<usize> for TestSize {
    fn from(rows: usize) -> Self {
        Self::Rows(rows)
    }
}

/// How rows are parted into those for training and those for testing.
#[derive(Debug, Clone, Default)]
pub struct TrainTestSplit {
    /// Shuffles all rows before, by a seed. Otherwise the last rows are for testing.
    pub shuffle: Option<RandomSeed>,
    /// A column: of the rows with each of its values the same part is for testing, rounded down. Not with `shuffle`.
    pub stratify: Option<String>,
}

impl Dataset {
    /// `n` parts of neighbouring rows, whose numbers of rows differ by one at most. The dataset runs once, and its
    /// blocks are kept, unless its number of rows is known before.
    ///
    /// # Errors
    ///
    /// For no parts, and where the dataset fails when it runs.
    pub async fn split(&self, n: usize) -> Result<Vec<Self>> {
        let (dataset, rows) = self.with_known_rows(n).await?;
        // Of many rows the product has more than 64 bits.
        let begin = |part: usize| (part as u128 * rows as u128 / n as u128) as usize;
        (0..n).map(|part| dataset.rows_between(begin(part)..begin(part + 1))).collect()
    }

    /// As [`Dataset::split`], with equally many rows in each part: the last rows, less than `n`, are left out.
    ///
    /// # Errors
    ///
    /// As [`Dataset::split`].
    pub async fn split_equal(&self, n: usize) -> Result<Vec<Self>> {
        let (dataset, rows) = self.with_known_rows(n).await?;
        let each = rows / n;
        (0..n).map(|part| dataset.rows_between(part * each..(part + 1) * each)).collect()
    }

    /// One part more than there are `indices`: the rows before the first, between them, and from the last one on. Parts
    /// behind the end are empty.
    ///
    /// # Errors
    ///
    /// Where indices are none, or not in order, and where the dataset fails when it runs.
    pub async fn split_at_indices(&self, indices: &[usize]) -> Result<Vec<Self>> {
        let Some(last) = indices.last() else {
            return plan_err!("split_at_indices needs at least one index");
        };
        check_indices(indices)?;
        let (dataset, rows) = self.with_known_rows(1).await?;
        let cuts: Vec<usize> = [0].iter().chain(indices).copied().chain([rows.max(*last)]).collect();
        cuts.windows(2).map(|pair| dataset.rows_between(pair[0].min(rows)..pair[1].min(rows))).collect()
    }

    /// One part more than there are `proportions`, with so much of the rows each, rounded down, and the rest in the
    /// last.
    ///
    /// # Errors
    ///
    /// Where a proportion is not above 0, all together are not below 1, there are fewer rows than parts, and where the
    /// dataset fails when it runs.
    pub async fn split_proportionately(&self, proportions: &[f64]) -> Result<Vec<Self>> {
        check_proportions(proportions)?;
        let (dataset, rows) = self.with_known_rows(1).await?;
        let cuts = proportional_cuts(rows, proportions);
        if cuts.first().is_none_or(|first| *first == 0) {
            return plan_err!("{rows} rows cannot be split into {} parts that have rows", proportions.len() + 1);
        }
        dataset.split_at_indices(&cuts).await
    }

    /// The rows for training, and those for testing: the last ones.
    ///
    /// # Errors
    ///
    /// Where the size is out of range, and where the dataset fails when it runs.
    pub async fn train_test_split(&self, test_size: impl Into<TestSize>) -> Result<(Self, Self)> {
        self.train_test_split_with(test_size, TrainTestSplit::default()).await
    }

    /// As [`Dataset::train_test_split`], of shuffled rows, or of the rows with each value of a column.
    ///
    /// # Errors
    ///
    /// As [`Dataset::train_test_split`], where options do not go together, and where the column is not there.
    pub async fn train_test_split_with(
        &self,
        test_size: impl Into<TestSize>,
        options: TrainTestSplit,
    ) -> Result<(Self, Self)> {
        let size = test_size.into();
        if let TestSize::Fraction(fraction) = size {
            check_test_size(fraction)?;
        }
        let shuffled = match (options.shuffle, &options.stratify) {
            (Some(_), Some(_)) => return plan_err!("stratify does not go together with shuffle"),
            (Some(seed), None) => Some(self.random_shuffle(seed)?),
            (None, _) => None,
        };
        let whole = shuffled.as_ref().unwrap_or(self);
        match (options.stratify, size) {
            (Some(column), TestSize::Fraction(fraction)) => whole.stratified(&column, fraction).await,
            (Some(_), TestSize::Rows(_)) => plan_err!("stratify needs a test size between 0 and 1"),
            (None, size) => {
                let (dataset, rows) = whole.with_known_rows(1).await?;
                let train = match size {
                    TestSize::Fraction(fraction) => proportional_cuts(rows, &[1.0 - fraction])[0],
                    TestSize::Rows(test) if (1..rows).contains(&test) => rows - test,
                    TestSize::Rows(test) => {
                        return plan_err!("the test size must be at least 1 and less than all {rows} rows, got {test}");
                    }
                };
                Ok((dataset.rows_between(0..train)?, dataset.rows_between(train..rows)?))
            }
        }
    }

    /// The rows for training and those for testing, each decided by itself while they stream by: by its place and a
    /// seed. The parts together have each row once, and the same rows whenever they run.
    ///
    /// # Errors
    ///
    /// Where the size is not above 0 and below 1, and where values are drawn anew whenever it runs.
    pub fn streaming_train_test_split(&self, test_size: f64, seed: u64) -> Result<(Self, Self)> {
        let part = |is_test| {
            Ok::<_, DataFusionError>(self.with_plan(streamed_by_place(self.plan.clone(), test_size, seed, is_test)?))
        };
        Ok((part(false)?, part(true)?))
    }

    /// As [`Dataset::streaming_train_test_split`], decided by the hash of a column: rows with equal values are in the
    /// same part, also when there are others beside them.
    ///
    /// # Errors
    ///
    /// Where the size is not above 0 and below 1, and where there is no such column.
    pub fn streaming_train_test_split_by(&self, column: &str, test_size: f64) -> Result<(Self, Self)> {
        let part = |is_test| {
            Ok::<_, DataFusionError>(self.with_plan(streamed_by_value(self.plan.clone(), column, test_size, is_test)?))
        };
        Ok((part(false)?, part(true)?))
    }

    /// The dataset with its number of rows: materialized, unless that is known.
    async fn with_known_rows(&self, parts: usize) -> Result<(Self, usize)> {
        if parts == 0 {
            return plan_err!("a dataset is split into at least 1 part, got 0");
        }
        if let Some(blocks) = &self.materialized {
            return Ok((self.clone(), blocks.total_rows()));
        }
        // Parts that run one by one have the same rows in the same places, if there is an order.
        if BlockyardOptions::from_config(self.state.config_options()).preserve_order
            && let Some(rows) = self.count_by_metadata().await?
        {
            return Ok((self.clone(), rows));
        }
        let dataset = self.materialize().await?;
        let rows = dataset.materialized.as_ref().map_or(0, |blocks| blocks.total_rows());
        Ok((dataset, rows))
    }

    /// The rows of these numbers.
    fn rows_between(&self, rows: Range<usize>) -> Result<Self> {
        match &self.materialized {
            Some(blocks) => self.of_blocks(blocks.rows(rows)),
            None => self.via_dataframe(|frame| frame.limit(rows.start, Some(rows.len()))),
        }
    }

    async fn stratified(&self, column: &str, test_size: f64) -> Result<(Self, Self)> {
        let marked = self.with_plan(mark_test_rows(self.plan.clone(), column, test_size)?).materialize().await?;
        let part =
            |are_for_test| Ok::<_, DataFusionError>(marked.with_plan(test_rows(marked.plan.clone(), are_for_test)?));
        Ok((part(false)?, part(true)?))
    }
}
