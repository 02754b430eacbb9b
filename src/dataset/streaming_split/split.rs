//! A split that runs: what its iterators, and those who serve them, hold on to.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, plan_err};

use super::dealer::Dealer;
use super::options::{Deal, SplitOptions};
use super::shared::Shared;
use super::table::Table;
use crate::dataset::Dataset;
use crate::dataset::iterate::Apart;
use crate::observability::{IteratorStatus, ObservedIterator, Observers};
use crate::runtime::Drivers;
use crate::token::ResumeToken;

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

impl Split {
    pub(super) fn start(dataset: &Dataset, apart: Apart, n: usize, options: SplitOptions) -> Result<Arc<Self>> {
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

    /// How many consumers there are.
    pub(crate) fn consumers(&self) -> usize {
        self.n
    }

    /// A consumer that is away is here again. The epoch in whose middle it is.
    pub(super) fn rejoin(&self, consumer: usize) -> Result<Option<u64>> {
        if consumer >= self.n {
            return plan_err!("the split has {} consumers, and none with number {consumer}", self.n);
        }
        self.shared
            .change(|table| table.rejoin(consumer))
            .or_else(|why| plan_err!("consumer {consumer} of the split {why}"))
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
