//! [`DatasetPipeline`]: what is done with one window of a dataset after the other, epoch after epoch.

mod transform;
mod write;

use std::fmt;

use datafusion::common::{Result, internal_err, plan_err};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::{Batches, Dataset, IterOptions, SortKey};
use crate::functions::{WindowSize, check_indices};
use crate::logical::{Epochs, PipelineNode, Repartitioning, extension, node_of, pipeline_of};
use crate::seed::RandomSeed;

impl Dataset {
    /// One window of the rows after the other: what follows is done with each of them, while the next one is made. Two
    /// windows are in flight at once, so the rest of the dataset need not be anywhere.
    ///
    /// # Errors
    ///
    /// Where windows would have nothing in them.
    pub fn window(&self, size: WindowSize) -> Result<DatasetPipeline> {
        Ok(DatasetPipeline(self.with_plan(extension(PipelineNode::windows(self.plan.clone(), size)?))))
    }

    /// The rows again and again, so many `times`, or for ever. Everything is done anew in each epoch, down to the
    /// files; [`Dataset::materialize`] first keeps it.
    ///
    /// # Errors
    ///
    /// Where `times` is 0.
    pub fn repeat(&self, times: impl Into<Option<u64>>) -> Result<DatasetPipeline> {
        Ok(DatasetPipeline(self.with_plan(extension(PipelineNode::repeat(self.plan.clone(), times.into())?))))
    }
}

impl Dataset {
    /// The dataset as the pipeline that it is, if it is one: `windows(..)` or `repeat(..)` of SQL, perhaps with
    /// filters, columns and functions of rows above, which are done in each window then.
    pub fn as_pipeline(&self) -> Option<DatasetPipeline> {
        let pipeline = pipeline_of(&self.plan, "as_pipeline").ok()?;
        Some(DatasetPipeline(self.with_plan(extension(pipeline))))
    }
}

/// A lazy plan that runs for one window of a dataset after the other: Ray's `DatasetPipeline`. It can be read many
/// times.
#[derive(Clone)]
pub struct DatasetPipeline(Dataset);

impl DatasetPipeline {
    /// One dataset after the other, each a window. They have the same columns.
    ///
    /// # Errors
    ///
    /// Where there are none, or their columns differ.
    pub fn from_datasets(datasets: impl IntoIterator<Item = Dataset>) -> Result<Self> {
        let datasets: Vec<Dataset> = datasets.into_iter().collect();
        let Some(first) = datasets.first() else {
            return plan_err!("a pipeline needs at least 1 dataset, got 0");
        };
        let node = PipelineNode::windows_of(datasets.iter().map(|dataset| dataset.plan.clone()).collect())?;
        Ok(Self(first.with_plan(extension(node))))
    }

    fn node(&self) -> Result<&PipelineNode> {
        match node_of::<PipelineNode>(&self.0.plan) {
            Some(node) => Ok(node),
            None => internal_err!("a dataset pipeline without windows"),
        }
    }

    fn with_node(&self, node: PipelineNode) -> Self {
        Self(self.0.with_plan(extension(node)))
    }

    /// What `f` makes of each window. The dataset that it gets stands for any of them: it is to be transformed, and
    /// cannot be run.
    ///
    /// # Errors
    ///
    /// Those of `f`, and where what it makes does not read the window.
    pub fn foreach_window(&self, f: impl FnOnce(Dataset) -> Result<Dataset>) -> Result<Self> {
        let node = self.node()?;
        let transformed = f(self.0.with_plan(node.each_window().clone()))?;
        Ok(self.with_node(node.with_each_window(transformed.plan)?))
    }

    /// The rows of each window in random order: another one in each window and epoch. A seed that is
    /// [`RandomSeed::fixed`] in [`DatasetPipeline::foreach_window`] gives all the same.
    ///
    /// # Errors
    ///
    /// As [`Dataset::random_shuffle`].
    pub fn random_shuffle_each_window(&self, seed: u64) -> Result<Self> {
        self.foreach_window(|window| window.random_shuffle(RandomSeed::each_execution(seed)))
    }

    /// The blocks of each window in random order: another one in each window and epoch.
    ///
    /// # Errors
    ///
    /// As [`Dataset::randomize_block_order`].
    pub fn randomize_block_order_each_window(&self, seed: u64) -> Result<Self> {
        self.foreach_window(|window| window.randomize_block_order(RandomSeed::each_execution(seed)))
    }

    /// Each window sorted.
    ///
    /// # Errors
    ///
    /// As [`Dataset::sort`].
    pub fn sort_each_window<K: Into<SortKey>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Self> {
        self.foreach_window(|window| window.sort(keys))
    }

    /// The rows of each window in other blocks.
    ///
    /// # Errors
    ///
    /// As [`Dataset::repartition`].
    pub fn repartition_each_window(&self, into: impl Into<Repartitioning>) -> Result<Self> {
        self.foreach_window(|window| window.repartition(into))
    }

    /// One pipeline more than there are `indices`, which split each window: the rows before the first, between them,
    /// and from the last one on. Each runs for itself.
    ///
    /// # Errors
    ///
    /// Where indices are none, or not in order.
    pub fn split_at_indices(&self, indices: &[usize]) -> Result<Vec<Self>> {
        if indices.is_empty() {
            return plan_err!("split_at_indices needs at least one index");
        }
        check_indices(indices)?;
        let part = |part: usize| {
            let from = part.checked_sub(1).map_or(0, |before| indices[before]);
            let rows = indices.get(part).map(|to| to - from);
            self.foreach_window(|window| window.via_dataframe(|frame| frame.limit(from, rows)))
        };
        (0..=indices.len()).map(part).collect()
    }

    /// All of it again and again, so many `times`, or for ever: each is an epoch, whatever was one before.
    ///
    /// # Errors
    ///
    /// Where `times` is 0, or the pipeline is endless.
    pub fn repeat(&self, times: impl Into<Option<u64>>) -> Result<Self> {
        Ok(self.with_node(PipelineNode::repeat(self.0.plan.clone(), times.into())?))
    }

    /// Other windows over what comes out; with `preserve_epoch`, none that has rows of two epochs.
    ///
    /// # Errors
    ///
    /// Where windows would have nothing in them.
    pub fn rewindow(&self, size: WindowSize, preserve_epoch: bool) -> Result<Self> {
        Ok(self.with_node(PipelineNode::rewindow(self.0.plan.clone(), size, preserve_epoch)?))
    }

    /// The rows of all windows and epochs, one after the other.
    pub fn into_dataset(self) -> Dataset {
        self.0
    }

    /// Batches across windows and epochs. The order of each window and epoch follows from seeds and its number, so
    /// [`IterOptions::epoch`] has no meaning here.
    ///
    /// # Errors
    ///
    /// As [`Dataset::iter_batches`], and where an epoch is said.
    pub async fn iter_batches(&self, options: IterOptions) -> Result<Batches> {
        if options.epoch.is_some() {
            return plan_err!("a pipeline counts its epochs itself; a resume token goes on in any of them");
        }
        self.0.iter_batches(IterOptions { epoch: Some(0), ..options }).await
    }

    /// The windows that have rows, one after the other, each with its rows in the store.
    ///
    /// # Errors
    ///
    /// Where the pipeline cannot be planned, or needs more memory than there is. What fails later is an error of the
    /// stream.
    pub async fn iter_windows(&self) -> Result<BoxStream<'static, Result<Dataset>>> {
        self.0.windows().await
    }

    /// The windows as text tables, the first `limit` rows of each.
    ///
    /// # Errors
    ///
    /// Where a window fails. Endless pipelines are shown up to the window that is number `limit`.
    pub async fn show_windows(&self, limit: usize) -> Result<String> {
        let most = if self.node()?.is_endless()? { limit } else { usize::MAX };
        let mut windows = self.iter_windows().await?.take(most).enumerate().boxed();
        let mut text = String::new();
        while let Some((number, window)) = windows.next().await {
            text.push_str(&format!("=== Window {number} ===\n{}\n", window?.show(limit).await?));
        }
        Ok(text)
    }

    /// Number of rows of all windows and epochs. Runs the pipeline.
    ///
    /// # Errors
    ///
    /// Where the pipeline is endless, or fails.
    pub async fn count(&self) -> Result<usize> {
        self.0.count().await
    }

    /// What the last execution did: stage by stage in its last windows, and who waited for whom.
    pub fn stats(&self) -> String {
        self.0.stats()
    }

    /// As [`Dataset::explain`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::explain`].
    pub async fn explain(&self) -> Result<String> {
        self.0.explain().await
    }

    /// SQL text that gives the same rows.
    ///
    /// # Errors
    ///
    /// As [`Dataset::to_sql`].
    pub fn to_sql(&self) -> Result<String> {
        self.0.to_sql()
    }
}

/// As Ray shows one: how many windows there are, where that is known, and how many steps.
impl fmt::Debug for DatasetPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node().map_err(|_| fmt::Error)?;
        let windows = match (node.is_endless(), node.epochs(), node.window().size()) {
            (Ok(true), ..) => "inf".to_owned(),
            (_, Epochs::Of { passes, times: Some(times) }, None) => {
                let inputs = node.window().sources().len() as u64;
                passes.saturating_mul(times).saturating_mul(inputs).to_string()
            }
            _ => "?".to_owned(),
        };
        write!(f, "DatasetPipeline(num_windows={windows}, num_stages={})", node.num_stages())
    }
}
