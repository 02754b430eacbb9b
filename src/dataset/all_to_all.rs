//! Transformations that move rows between tasks, or bring datasets together.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{JoinType, LogicalPlan};

use super::{Dataset, GroupedDataset};
use crate::logical::{
    LocalShuffleNode, MixNode, MixOptions, RandomShuffleNode, RandomizeBlocksNode, RepartitionNode, Repartitioning,
    ZipNode, extension, summary,
};
use crate::seed::RandomSeed;

impl Dataset {
    /// The rows of this dataset and then of another with the same columns.
    ///
    /// # Errors
    ///
    /// Where the columns differ in number, or their types have nothing in common.
    pub fn union(&self, other: &Self) -> Result<Self> {
        self.via_dataframe(|frame| frame.union(other.clone().into_dataframe()))
    }

    /// Row i of this dataset beside row i of each of the others, which must have as many. Columns of the others that
    /// one before has too get a suffix: `a` becomes `a_1`, then `a_2`. Without `preserve_order` rows have no
    /// places, and are put beside each other as they come.
    ///
    /// # Errors
    ///
    /// None is known when the plan is built. That the numbers of rows differ is found out while it runs.
    pub fn zip(&self, others: &[&Self]) -> Result<Self> {
        Ok(self.with_plan(extension(ZipNode::try_new(self.plans_with(others))?)))
    }

    /// Rows of this dataset and of others with the same columns by turns of some rows, each in its order, so that at
    /// any time their numbers are proportional to the weights. The same datasets give the same rows in the same order.
    ///
    /// # Errors
    ///
    /// Where the names of the columns differ, or their types have nothing in common.
    pub fn mix(&self, others: &[&Self]) -> Result<Self> {
        self.mix_with(others, MixOptions::default())
    }

    /// As [`Dataset::mix`], with weights, and with when it ends.
    ///
    /// # Errors
    ///
    /// Also where there are not as many weights as datasets, or one is no positive number.
    pub fn mix_with(&self, others: &[&Self], options: MixOptions) -> Result<Self> {
        Ok(self.with_plan(extension(MixNode::try_new(self.plans_with(others), options)?)))
    }

    fn plans_with(&self, others: &[&Self]) -> Vec<LogicalPlan> {
        [self].into_iter().chain(others.iter().copied()).map(|dataset| dataset.plan.clone()).collect()
    }

    /// One row for each column: `column`, `type`, `count` of values, `missing_percentage`, and for numbers
    /// `zero_percentage`, `mean`, `std` (of a sample: n - 1), `median` (an estimate), with `min` and `max` as texts.
    /// Reads the rows once.
    ///
    /// # Errors
    ///
    /// Where there are no columns.
    pub fn summary(&self) -> Result<Self> {
        Ok(self.with_plan(summary(self.plan.clone())?))
    }

    /// Groups of rows with equal keys; without keys, one group of all rows.
    ///
    /// # Errors
    ///
    /// Where a key is no column.
    pub fn group_by(&self, keys: &[&str]) -> Result<GroupedDataset> {
        Ok(GroupedDataset::new(self.clone(), self.columns_of(keys, "group_by")?))
    }

    /// Joins with another dataset where the columns `on` of this equal the columns `right_on` of the other.
    ///
    /// # Errors
    ///
    /// Where a key is no column, or there are none, or not as many on both sides.
    pub fn join(&self, other: &Self, how: JoinType, on: &[&str], right_on: &[&str]) -> Result<Self> {
        if on.len() != right_on.len() || on.is_empty() {
            return plan_err!(
                "a join needs as many columns on the left as on the right, got {} and {}",
                on.len(),
                right_on.len()
            );
        }
        self.columns_of(on, "join")?;
        other.columns_of(right_on, "join")?;
        self.via_dataframe(|frame| {
            let left = frame.alias("left")?;
            let right = other.clone().into_dataframe().alias("right")?;
            let quoted = |side: &str, names: &[&str]| -> Vec<String> {
                names.iter().map(|name| format!("{side}.\"{}\"", name.replace('"', "\"\""))).collect()
            };
            let (on, right_on) = (quoted("left", on), quoted("right", right_on));
            let on: Vec<&str> = on.iter().map(String::as_str).collect();
            let right_on: Vec<&str> = right_on.iter().map(String::as_str).collect();
            left.join(right, how, &on, &right_on, None)
        })
    }

    /// As [`Dataset::join`], where columns that both sides have get the suffixes, the left one's and the right one's:
    /// with `("", "_right")` there are `a` and `a_right`.
    ///
    /// # Errors
    ///
    /// As [`Dataset::join`], and where names stay equal with their suffixes.
    pub fn join_with_suffixes(
        &self,
        other: &Self,
        how: JoinType,
        on: &[&str],
        right_on: &[&str],
        suffixes: (&str, &str),
    ) -> Result<Self> {
        let (left, right) = (self.columns(), other.columns());
        let renamed = |ds: &Self, own: &[String], others: &[String], suffix: &str| {
            let shared: Vec<_> = own.iter().filter(|name| others.contains(name)).collect();
            let names: Vec<_> = shared.iter().map(|name| (name.as_str(), format!("{name}{suffix}"))).collect();
            ds.rename_columns(&names.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>())
        };
        let with_suffix = |names: &[&str], others: &[String], suffix: &str| -> Vec<String> {
            let shared = |name: &str| others.iter().any(|other| other == name);
            names.iter().map(|name| if shared(name) { format!("{name}{suffix}") } else { (*name).to_owned() }).collect()
        };
        self.columns_of(on, "join")?;
        other.columns_of(right_on, "join")?;
        let (on, right_on) = (with_suffix(on, &right, suffixes.0), with_suffix(right_on, &left, suffixes.1));
        let (one, two) = (renamed(self, &left, &right, suffixes.0)?, renamed(other, &right, &left, suffixes.1)?);
        if let Some(name) = one.columns().into_iter().find(|name| two.columns().contains(name)) {
            return plan_err!("both sides of the join have a column '{name}', also with the suffixes");
        }
        let on: Vec<&str> = on.iter().map(String::as_str).collect();
        let right_on: Vec<&str> = right_on.iter().map(String::as_str).collect();
        one.join(&two, how, &on, &right_on)
    }

    /// The distinct values of a column.
    ///
    /// # Errors
    ///
    /// Where there is no such column.
    pub fn unique(&self, column: &str) -> Result<Self> {
        self.select_columns(&[column])?.via_dataframe(|frame| frame.distinct())
    }

    /// A uniform random permutation of all rows: the same for the same seed and input, whatever the threads and the
    /// memory limit. Without a seed one is drawn now; with [`RandomSeed::each_execution`] every epoch has its own
    /// order.
    ///
    /// # Errors
    ///
    /// None is known: a plan is built, and building plans can fail.
    pub fn random_shuffle(&self, seed: impl Into<RandomSeed>) -> Result<Self> {
        self.random_shuffle_into(seed, None)
    }

    /// As [`Dataset::random_shuffle`], into `num_blocks` blocks.
    ///
    /// # Errors
    ///
    /// Where `num_blocks` is 0 or far too many.
    pub fn random_shuffle_into(&self, seed: impl Into<RandomSeed>, num_blocks: Option<usize>) -> Result<Self> {
        Ok(self.with_plan(extension(RandomShuffleNode::try_new(self.plan.clone(), seed, num_blocks)?)))
    }

    /// The same rows in other blocks: `repartition(64)` for so many, or what [`Repartitioning`] says: blocks with rows
    /// of all others, blocks by keys, sorted ranges, blocks of a size.
    ///
    /// # Errors
    ///
    /// For no blocks or far too many, blocks without rows or bytes, no keys, and keys that are not columns.
    pub fn repartition(&self, into: impl Into<Repartitioning>) -> Result<Self> {
        Ok(self.with_plan(extension(RepartitionNode::try_new(self.plan.clone(), into.into())?)))
    }

    /// The same blocks in random order.
    ///
    /// # Errors
    ///
    /// None is known: a plan is built, and building plans can fail.
    pub fn randomize_block_order(&self, seed: impl Into<RandomSeed>) -> Result<Self> {
        self.randomize_blocks(seed.into(), None)
    }

    /// The same blocks in random order while they come: each is taken from the next `window` ones, so that nothing
    /// waits for the last block.
    ///
    /// # Errors
    ///
    /// Where `window` is 0.
    pub fn randomize_block_order_within(&self, seed: impl Into<RandomSeed>, window: usize) -> Result<Self> {
        self.randomize_blocks(seed.into(), Some(window))
    }

    /// Rows among their neighbours in random order, while they come: each moves back by `rows` places in the mean, by
    /// an exponential law cut at 8 times as many. It mixes as a buffer of `rows` rows does, and holds as many.
    ///
    /// # Errors
    ///
    /// Where `rows` is 0, or above 2^37.
    pub fn local_shuffle(&self, rows: usize, seed: impl Into<RandomSeed>) -> Result<Self> {
        Ok(self.with_plan(extension(LocalShuffleNode::try_new(self.plan.clone(), rows, seed)?)))
    }

    fn randomize_blocks(&self, seed: RandomSeed, window: Option<usize>) -> Result<Self> {
        Ok(self.with_plan(extension(RandomizeBlocksNode::try_new(self.plan.clone(), seed, window)?)))
    }
}
