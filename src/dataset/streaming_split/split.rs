//! A split that runs: what its iterators, and those who serve them, hold on to.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, plan_err};

use super::dealer::Dealer;
use super::iterator::SplitIterator;
use super::options::{Deal, SplitBarrier, SplitOptions};
use super::shared::Shared;
use super::table::Table;
use crate::dataset::iterate::Apart;
use crate::dataset::{Dataset, DatasetPipeline, ResumeToken};
use crate::observability::{IteratorStatus, ObservedIterator, Observers};
use crate::runtime::Drivers;

/// A split that runs until the last of those who hold it lets go.
#[derive(Debug)]
pub(crate) struct Split {
    pub(super) shared: Arc<Shared>,
    pub(super) max_wait: Option<Duration>,
    n: usize,
    schema: SchemaRef,
    _drivers: Drivers<()>,
}

/// A consumer that was lost.
#[derive(Debug, Clone)]
pub(crate) struct LostConsumer {
    pub(crate) consumer: usize,
    pub(crate) epoch: u64,
    /// Behind the last turn that all had acknowledged.
    pub(crate) token: Option<ResumeToken>,
}

impl Dataset {
    /// `n` iterators over the dataset, for as many consumers at once, in as many epochs as they ask for. Rows are dealt
    /// by turns: what is in batch `k` of iterator `i` depends on `k`, `i`, `n` and the dataset alone.
    ///
    /// # Errors
    ///
    /// Where options do not go together. What fails later is an error of all iterators.
    pub fn streaming_split(&self, n: usize, options: SplitOptions) -> Result<Vec<SplitIterator>> {
        if options.barrier == SplitBarrier::Window {
            return plan_err!("a barrier for each window needs a pipeline: window(..) of the dataset");
        }
        Split::start(self, Apart::Nothing, n, options).map(|split| split.iterators())
    }
}

impl DatasetPipeline {
    /// As [`Dataset::streaming_split`]. What an epoch is there is one of the pipeline here, or one of its windows with
    /// [`SplitBarrier::Window`], and behind the last one there are no more.
    ///
    /// # Errors
    ///
    /// As [`Dataset::streaming_split`].
    pub fn streaming_split(&self, n: usize, options: SplitOptions) -> Result<Vec<SplitIterator>> {
        let apart = match options.barrier {
            SplitBarrier::Window => Apart::Windows,
            SplitBarrier::Epoch | SplitBarrier::None => Apart::Epochs,
        };
        Split::start(&self.clone().into_dataset(), apart, n, options).map(|split| split.iterators())
    }

    /// Ray's `split` of a pipeline: `n` iterators, none of which enters a window before all have finished the one
    /// before. With `equal`, everyone gets equally many rows of each window.
    ///
    /// # Errors
    ///
    /// For no iterators.
    pub fn split(&self, n: usize, equal: bool) -> Result<Vec<SplitIterator>> {
        self.streaming_split(n, SplitOptions { equal, barrier: SplitBarrier::Window, ..SplitOptions::default() })
    }
}

impl Split {
    fn start(dataset: &Dataset, apart: Apart, n: usize, options: SplitOptions) -> Result<Arc<Self>> {
        let turns = options.turns(n)?;
        let table = Table::new(n, options.rules());
        let observers = dataset.state.config().get_extension::<Observers>().unwrap_or_default();
        let has_tokens = options.deal == Deal::Turns;
        let shared = Shared::new(table, has_tokens, observers, Arc::clone(dataset.context.store()));
        let dealer = Dealer { dataset: dataset.clone(), turns, apart, resume: options.resume };
        let mut drivers = Drivers::start([dealer.deal(Arc::clone(&shared))]);
        drivers.spawn(Arc::clone(&shared).watch());
        Ok(Arc::new(Self { shared, max_wait: options.max_wait, n, schema: dataset.schema(), _drivers: drivers }))
    }

    fn iterators(self: &Arc<Self>) -> Vec<SplitIterator> {
        (0..self.n).map(|index| SplitIterator::new(index, Arc::clone(self), None)).collect()
    }

    /// How many consumers there are.
    pub(crate) fn consumers(&self) -> usize {
        self.n
    }

    /// The iterator of a consumer that is away, from its first batch on that was not acknowledged.
    pub(crate) fn rejoin(self: &Arc<Self>, consumer: usize) -> Result<SplitIterator> {
        if consumer >= self.n {
            return plan_err!("the split has {} consumers, and none with number {consumer}", self.n);
        }
        match self.shared.change(|table| table.rejoin(consumer)) {
            Ok(inside) => Ok(SplitIterator::new(consumer, Arc::clone(self), inside)),
            Err(why) => plan_err!("consumer {consumer} of the split {why}"),
        }
    }

    /// How all consumers stand.
    pub(crate) fn statuses(&self) -> Vec<IteratorStatus> {
        self.shared.statuses()
    }

    /// The token behind the last turn that all have acknowledged.
    pub(crate) fn token(&self) -> Result<ResumeToken> {
        self.shared.token_of_all()
    }

    /// Who was lost, if that is why nobody gets anything any more.
    pub(crate) fn lost(&self) -> Option<LostConsumer> {
        self.shared.lost().map(|(consumer, epoch, token)| LostConsumer { consumer, epoch, token })
    }

    /// Columns of the batches.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// A consumer is done with the first so many of the batches of which that was not said.
    pub(crate) fn acknowledge(&self, consumer: usize, batches: usize) {
        self.shared.change(|table| table.acknowledge(consumer, batches));
    }

    /// Waits until everything has stopped, which is an error, or all consumers have left who are counted on.
    pub(crate) async fn over(&self) -> Result<()> {
        let over = self.shared.wait_for(|table| match table.stopped() {
            Some(stopped) => Some(Err(stopped.clone())),
            None => table.is_over().then_some(Ok(())),
        });
        over.await.map_err(|stopped| self.shared.error(&stopped))
    }

    /// Waits until everything has stopped; why.
    pub(crate) async fn stopped(&self) -> DataFusionError {
        let stopped = self.shared.wait_for(|table| table.stopped().cloned()).await;
        self.shared.error(&stopped)
    }
}
