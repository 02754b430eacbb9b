//! [`Runner`]: the rows of tasks that executors run, whichever of them dies meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;

use super::messages::{Call, Connection, Prepared, Reply, Run};
use crate::block::Block;
use crate::error::one_message;
use crate::physical::{StagePrint, StageRunner, Unit, block_batches, stream_of};
use crate::runtime::UnderWay;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};
use crate::wire::{Address, BatchReader};

/// Bytes of the rows that are kept together until all of a unit have come.
const KEPT_BYTES: usize = 4 << 20;

/// An executor that has planned a query.
#[derive(Debug)]
pub(super) struct Executor {
    address: Address,
    token: Option<String>,
    query: String,
    threads: usize,
    /// Units that it runs.
    running: AtomicUsize,
    /// Why it is not asked any more.
    lost: watch::Sender<Option<String>>,
}

impl Executor {
    pub(super) fn new(address: Address, token: Option<String>, prepared: &Prepared) -> Self {
        let (query, threads) = (prepared.query.clone(), prepared.threads.max(1));
        Self { address, token, query, threads, running: AtomicUsize::new(0), lost: watch::Sender::default() }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// It is gone: nobody waits for it any more.
    pub(super) fn lose(&self, why: &DataFusionError) {
        self.lost.send_if_modified(|lost| {
            let is_news = lost.is_none();
            lost.get_or_insert_with(|| one_message(why));
            is_news
        });
    }

    /// Where it was, and why it is lost, if it is.
    fn why_lost(&self) -> Option<String> {
        self.lost.borrow().as_ref().map(|why| format!("{}: {why}", self.address))
    }

    /// Waits until it is lost.
    async fn loss(&self) -> DataFusionError {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => exec_datafusion_err!("{}", why.as_deref().unwrap_or_default()),
            Err(e) => exec_datafusion_err!("{e}"),
        }
    }
}

/// What an executor has done of a stage.
#[derive(Debug)]
struct Share {
    executor: Arc<Executor>,
    tasks: AtomicUsize,
    rows: AtomicU64,
}

/// Runs the tasks of a stage on the executors that know it.
#[derive(Debug)]
pub(super) struct Runner {
    stage: StagePrint,
    shares: Arc<[Arc<Share>]>,
    /// How many executors could not be reached, and why.
    unreachable: Arc<[String]>,
    /// How many executors the session has.
    all: usize,
}

impl Runner {
    /// On those executors that know it, of those that could be reached, and not on these.
    pub(super) fn new(stage: StagePrint, able: Vec<Arc<Executor>>, reached: usize, unreachable: Arc<[String]>) -> Self {
        let share = |executor| Arc::new(Share { executor, tasks: AtomicUsize::new(0), rows: AtomicU64::new(0) });
        let all = reached + unreachable.len();
        Self { stage, shares: able.into_iter().map(share).collect(), unreachable, all }
    }

    fn living(&self) -> impl Iterator<Item = &Arc<Executor>> {
        self.shares.iter().map(|share| &share.executor).filter(|executor| !executor.is_lost())
    }
}

impl StageRunner for Runner {
    fn slots(&self) -> usize {
        self.living().map(|executor| executor.threads).sum()
    }

    fn processes(&self) -> usize {
        self.living().count()
    }

    fn describe(&self) -> String {
        match self.shares.len() {
            able if able == self.all => able.to_string(),
            able => format!("{able} of {}", self.all),
        }
    }

    fn remarks(&self, stage: &str) -> Vec<String> {
        let done = |share: &Arc<Share>| {
            let (tasks, rows) = (share.tasks.load(Relaxed), share.rows.load(Relaxed));
            (tasks > 0).then(|| format!("{}: {tasks} tasks, {rows} rows", share.executor.address))
        };
        let done: Vec<String> = self.shares.iter().filter_map(done).collect();
        let ran = (!done.is_empty()).then(|| format!("{stage} ran at {}", done.join("; ")));
        let lost = |share: &Arc<Share>| share.executor.why_lost().map(|why| format!("an executor was lost, {why}"));
        let unreachable = self.unreachable.iter().map(|why| format!("an executor could not be reached, {why}"));
        ran.into_iter().chain(self.shares.iter().filter_map(lost)).chain(unreachable).collect()
    }

    fn run(&self, unit: Unit, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = Arc::clone(&unit.schema);
        let (stage, shares, store) = (self.stage, Arc::clone(&self.shares), BlockStore::of_task(context)?);
        let is_repeatable = unit.is_repeatable;
        let rows = Attempts { stage, shares, unit, given: 0, running: None };
        let rows = match is_repeatable {
            true => stream::try_unfold(rows, |mut rows| async move {
                let next = rows.next_again().await?;
                Ok(next.map(|batch| (batch, rows)))
            })
            .boxed(),
            // What was given of them could not be told from what comes in another attempt.
            false => stream::once(rows.kept(store)).try_flatten().boxed(),
        };
        Ok(stream_of(schema, rows))
    }
}

/// The rows of a unit, in as many attempts as it takes.
struct Attempts {
    stage: StagePrint,
    shares: Arc<[Arc<Share>]>,
    unit: Unit,
    /// Rows that were given.
    given: u64,
    running: Option<Attempt>,
}

impl Attempts {
    /// The next rows, of another executor from where the last one was lost.
    async fn next_again(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match self.next().await? {
                Next::Rows(batch) => {
                    self.given += batch.num_rows() as u64;
                    return Ok(Some(batch));
                }
                Next::End => return Ok(None),
                Next::Lost => {}
            }
        }
    }

    /// All rows, when all have come.
    async fn kept(mut self, store: Arc<BlockStore>) -> Result<stream::BoxStream<'static, Result<RecordBatch>>> {
        let owner = Arc::new(Owner::default());
        let (mut handles, mut waiting, mut bytes) = (Vec::new(), Vec::new(), 0);
        loop {
            let next = self.next().await?;
            let has_ended = matches!(next, Next::End);
            match next {
                Next::Rows(batch) => {
                    bytes += batch.get_array_memory_size();
                    waiting.push(batch);
                }
                Next::End => {}
                Next::Lost => {
                    (handles, waiting, bytes) = (Vec::new(), Vec::new(), 0);
                    continue;
                }
            }
            if !waiting.is_empty() && (has_ended || bytes >= KEPT_BYTES) {
                let block = Block::new(Arc::clone(&self.unit.schema), std::mem::take(&mut waiting));
                handles.push(store.put(block, NextUse::AfterInput, &owner)?);
                bytes = 0;
            }
            if has_ended {
                let batches = |handle: BlockHandle| Ok::<_, DataFusionError>(block_batches(handle));
                return Ok(stream::iter(handles).map(batches).try_flatten().boxed());
            }
        }
    }

    async fn next(&mut self) -> Result<Next> {
        let (attempt, is_new) = match self.running.take() {
            Some(attempt) => (attempt, false),
            None => (Attempt::of(self.free()?), true),
        };
        let attempt = self.running.insert(attempt);
        let share = Arc::clone(&attempt.share);
        let next = async {
            if is_new {
                attempt.begin(self.stage, &self.unit, self.given).await?;
            }
            attempt.next(&self.unit).await
        };
        // What the executor does goes on by itself; it is lost when it says nothing.
        let next = UnderWay::during(async {
            tokio::select! {
                next = next => next,
                loss = share.executor.loss() => Err(Ended::Lost(loss)),
            }
        });
        let next = next.await;
        match next {
            Ok(next) => Ok(next),
            Err(Ended::Failed(e)) => Err(e),
            Err(Ended::Lost(e)) => {
                share.executor.lose(&e);
                self.running = None;
                Ok(Next::Lost)
            }
        }
    }

    /// The executor with the fewest units for its threads.
    fn free(&self) -> Result<Arc<Share>> {
        let there = self.shares.iter().filter(|share| !share.executor.is_lost());
        let load = |share: &&Arc<Share>| share.executor.running.load(Relaxed) * 1024 / share.executor.threads;
        if let Some(share) = there.min_by_key(load) {
            return Ok(Arc::clone(share));
        }
        let lost: Vec<String> = self.shares.iter().filter_map(|share| share.executor.why_lost()).collect();
        exec_err!("all executors that have planned the query were lost; {}", lost.join("; "))
    }
}

/// What comes next of a unit.
enum Next {
    Rows(RecordBatch),
    End,
    /// The executor is gone.
    Lost,
}

/// Why an attempt has ended before its rows have.
enum Ended {
    /// Its executor is gone: another one can try.
    Lost(DataFusionError),
    /// Another one would fail too.
    Failed(DataFusionError),
}

/// A unit on one executor.
struct Attempt {
    share: Arc<Share>,
    connection: Option<Connection>,
    rows: BatchReader,
    /// Rows that have come, with those that were there before.
    taken: u64,
}

impl Attempt {
    fn of(share: Arc<Share>) -> Self {
        share.executor.running.fetch_add(1, Relaxed);
        Self { share, connection: None, rows: BatchReader::default(), taken: 0 }
    }

    async fn begin(&mut self, stage: StagePrint, unit: &Unit, skip: u64) -> Result<(), Ended> {
        let Executor { address, token, query, .. } = self.share.executor.as_ref();
        let tasks = (unit.tasks.start, unit.tasks.end);
        let call = Call::Run(Run { query: query.clone(), stage, tasks, skip });
        let mut connection = Connection::call(address, token.as_deref(), &call).await.map_err(Ended::Lost)?;
        match connection.reply().await.map_err(Ended::Lost)? {
            Reply::Rows => {}
            Reply::Unknown => return Err(Ended::Lost(exec_datafusion_err!("it has been started anew"))),
            Reply::Refused(why) => {
                return Err(Ended::Failed(exec_datafusion_err!("the executor at {address}: {why}")));
            }
            _ => return Err(Ended::Failed(exec_datafusion_err!("{address} is no executor"))),
        }
        self.share.tasks.fetch_add(unit.tasks.len(), Relaxed);
        (self.connection, self.taken) = (Some(connection), skip);
        Ok(())
    }

    async fn next(&mut self, unit: &Unit) -> Result<Next, Ended> {
        let Some(connection) = &mut self.connection else {
            return Err(Ended::Lost(exec_datafusion_err!("the connection was closed")));
        };
        let batch = self.rows.next(&mut connection.read).await.map_err(|e| match e {
            e @ DataFusionError::IoError(_) => Ended::Lost(e),
            e => Ended::Failed(e),
        })?;
        if let Some(batch) = batch {
            self.taken += batch.num_rows() as u64;
            self.share.rows.fetch_add(batch.num_rows() as u64, Relaxed);
            let batch = batch.with_schema(Arc::clone(&unit.schema));
            return batch.map(Next::Rows).map_err(|e| Ended::Failed(e.into()));
        }
        let address = &self.share.executor.address;
        match connection.reply().await.map_err(Ended::Lost)? {
            Reply::Done { rows } if rows == self.taken => Ok(Next::End),
            Reply::Done { rows } => Err(Ended::Failed(exec_datafusion_err!(
                "the executor at {address} has sent {rows} rows, of which {} came",
                self.taken
            ))),
            Reply::Failed(why) | Reply::Refused(why) => {
                Err(Ended::Failed(exec_datafusion_err!("the executor at {address}: {why}")))
            }
            _ => Err(Ended::Failed(exec_datafusion_err!("{address} is no executor"))),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.share.executor.running.fetch_sub(1, Relaxed);
    }
}
