//! [`Runner`]: the rows of tasks that executors run, whichever of them dies meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::exchanges::{Level, Mapping};
use super::executors::{Busy, Ended, Executor, Shares};
use super::messages::{Call, Connection, Part, Reply, Run, See, Source, Write};
use crate::block::Block;
use crate::physical::{
    Exchanged, StagePrint, StageRunner, StageSource, Unit, WritePlace, Writing, block_batches, stream_of,
};
use crate::runtime::UnderWay;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};
use crate::wire::BatchReader;

/// Bytes of the rows that are kept together until all of a unit have come.
const KEPT_BYTES: usize = 4 << 20;

/// Runs the tasks of a stage on the executors that know it.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    mapping: Arc<Mapping>,
    /// What was exchanged, where tasks are made of that.
    exchanged: Option<Arc<Level>>,
    /// What is to be said of the executors that run none of it.
    others: Vec<String>,
    /// How many executors the session has.
    all: usize,
}

impl Runner {
    /// On those executors that know it, and not on others, of which that is to be said. Its units are numbered from
    /// `next` on, together with those of the other stages of the query.
    pub(super) fn new(stage: StagePrint, able: Vec<Arc<Executor>>, others: Vec<String>, next: Arc<AtomicU64>) -> Self {
        let all = able.len() + others.len();
        let mapping = Arc::new(Mapping::new(stage, Shares::of(able), next));
        Self { mapping, exchanged: None, others, all }
    }
}

impl StageRunner for Runner {
    fn slots(&self) -> usize {
        self.mapping.shares.slots()
    }

    fn processes(&self) -> usize {
        self.mapping.shares.living().count()
    }

    fn describe(&self) -> String {
        match self.mapping.shares.len() {
            able if able == self.all => able.to_string(),
            able => format!("{able} of {}", self.all),
        }
    }

    fn remarks(&self, stage: &str, rows: &str) -> Vec<String> {
        let exchanged = self.mapping.remark(stage);
        let out_of_reach = exchanged.as_ref().map_or_else(Vec::new, |_| self.mapping.shares.out_of_reach());
        let others = self.others.iter().cloned().chain(out_of_reach);
        self.mapping.shares.remarks(stage, rows).into_iter().chain(exchanged).chain(others).collect()
    }

    fn run(&self, unit: Unit, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = Arc::clone(&unit.schema);
        let (mapping, exchanged, store) =
            (Arc::clone(&self.mapping), self.exchanged.clone(), BlockStore::of_task(context)?);
        let is_repeatable = unit.is_repeatable;
        let rows = Attempts { mapping, exchanged, unit, given: 0, running: None };
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

    fn sees<'a>(&'a self, place: &'a WritePlace) -> BoxFuture<'a, bool> {
        let shares = &self.mapping.shares;
        async move {
            let asked = shares.living().map(|share| async move {
                let see = Call::See(See { place: place.clone(), attempt: self.mapping.number() });
                let answer = tokio::select! {
                    answer = share.executor.call(&see) => answer,
                    loss = share.executor.loss() => Err(Ended::Lost(loss)),
                };
                match answer {
                    Ok((_, Reply::Seen)) => {}
                    Ok(_) => share.is_blind(&exec_datafusion_err!("it is no executor")),
                    Err(Ended::Failed(why)) => share.is_blind(&why),
                    Err(Ended::Lost(why)) => share.executor.lose(&why),
                    Err(Ended::Missing(_, why) | Ended::Barred(_, why)) => {
                        share.is_blind(&exec_datafusion_err!("{why}"))
                    }
                }
            });
            join_all(asked).await;
            shares.living().any(|share| share.sees())
        }
        .boxed()
    }

    fn exchange(&self, source: StageSource, context: &Arc<TaskContext>) -> BoxFuture<'static, Result<Exchanged>> {
        let (runner, level) = (self.clone(), Arc::new(Level::of(&source, context)));
        async move {
            level.complete(&runner.mapping).await?;
            let tasks = level.tasks().len();
            Ok(Exchanged { runner: Arc::new(Self { exchanged: Some(level), ..runner }), tasks })
        }
        .boxed()
    }
}

/// The rows of a unit, in as many attempts as it takes.
struct Attempts {
    mapping: Arc<Mapping>,
    exchanged: Option<Arc<Level>>,
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
                Next::End(_) => return Ok(None),
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
            let has_ended = matches!(next, Next::End(_));
            match next {
                Next::Rows(batch) => {
                    bytes += batch.get_array_memory_size();
                    waiting.push(batch);
                }
                Next::End(_) => {}
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
        let (attempt, source) = match self.running.take() {
            Some(attempt) => (attempt, None),
            None => {
                let (mapping, tasks) = (Arc::clone(&self.mapping), self.unit.tasks.clone());
                let source = source(mapping, self.exchanged.clone(), tasks).await?;
                let holders = source.holders();
                let Some(busy) = self.mapping.shares.free(self.unit.writing.is_some(), &holders)? else {
                    return Ok(Next::Lost);
                };
                (Attempt::of(busy, holders), Some(source))
            }
        };
        let attempt = self.running.insert(attempt);
        let (share, holders) = (Arc::clone(attempt.busy.share()), attempt.holders.clone());
        let next = async {
            if let Some(source) = source {
                attempt.begin(&self.mapping, &self.unit, source, self.given).await?;
            }
            attempt.next(&self.unit).await
        };
        // What the executor does goes on by itself; it is lost when it says nothing.
        let next = UnderWay::during(async {
            tokio::select! {
                next = next => next,
                loss = share.executor.loss() => Err(Ended::Lost(loss)),
                loss = self.mapping.shares.loss_among(&holders) => Err(loss),
            }
        });
        match next.await {
            Ok(Next::End(taken)) => {
                if let Some(level) = &self.exchanged {
                    level.ended(self.unit.tasks.len(), &taken).await?;
                }
                Ok(Next::End(taken))
            }
            Ok(next) => Ok(next),
            Err(Ended::Failed(e)) => Err(e),
            Err(Ended::Lost(e)) => {
                share.executor.lose(&e);
                self.running = None;
                Ok(Next::Lost)
            }
            Err(Ended::Missing(address, why)) => {
                self.mapping.shares.lose(&address, &why);
                self.running = None;
                Ok(Next::Lost)
            }
            Err(Ended::Barred(address, why)) => {
                share.executor.bar(address, why);
                self.running = None;
                Ok(Next::Lost)
            }
        }
    }
}

/// Where tasks have their rows from. What is lost of that is made again.
async fn source(mapping: Arc<Mapping>, exchanged: Option<Arc<Level>>, tasks: Range<usize>) -> Result<Source> {
    match exchanged {
        None => Ok(Source { part: Part::Tasks(tasks.start, tasks.end), exchanges: Vec::new() }),
        Some(level) => {
            level.complete(&mapping).await?;
            level.source(&tasks).await
        }
    }
}

/// Where the tasks from `within` on put their files.
fn write_of(writing: &Writing, attempt: u64, within: usize) -> Result<Write> {
    match writing.place() {
        Some(place) => Ok(Write { place, target_bytes: writing.target_bytes(), attempt, within }),
        None => internal_err!("other processes cannot write there"),
    }
}

/// What comes next of a unit.
enum Next {
    Rows(RecordBatch),
    /// All have come; and what was taken of exchanges.
    End(Vec<(usize, Option<u64>)>),
    /// The executor is gone.
    Lost,
}

/// A unit on one executor.
struct Attempt {
    busy: Busy,
    /// The executors that keep what its rows are made of.
    holders: Vec<String>,
    connection: Option<Connection>,
    rows: BatchReader,
    /// Rows that have come, with those that were there before.
    taken: u64,
}

impl Attempt {
    fn of(busy: Busy, holders: Vec<String>) -> Self {
        Self { busy, holders, connection: None, rows: BatchReader::default(), taken: 0 }
    }

    async fn begin(&mut self, mapping: &Mapping, unit: &Unit, source: Source, skip: u64) -> Result<(), Ended> {
        let share = self.busy.share();
        let (query, stage) = (share.executor.query().to_owned(), mapping.stage);
        let write = unit.writing.as_ref().map(|writing| write_of(writing, mapping.number(), unit.tasks.start));
        let write = write.transpose().map_err(Ended::Failed)?;
        let call = Call::Run(Run { query, stage, source, skip, write });
        let connection = match share.executor.call(&call).await? {
            (connection, Reply::Rows) => connection,
            _ => return Err(share.executor.is_none()),
        };
        share.tasks.fetch_add(unit.tasks.len(), Relaxed);
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
            self.busy.share().rows.fetch_add(batch.num_rows() as u64, Relaxed);
            let batch = batch.with_schema(Arc::clone(&unit.schema));
            return batch.map(Next::Rows).map_err(|e| Ended::Failed(e.into()));
        }
        let executor = &self.busy.share().executor;
        match connection.reply().await.map_err(Ended::Lost)? {
            Reply::Done { rows, taken } if rows == self.taken => Ok(Next::End(taken)),
            Reply::Done { rows, .. } => {
                Err(executor.failed(&format!("{rows} rows were sent, of which {} came", self.taken)))
            }
            Reply::Failed(why) | Reply::Refused(why) => Err(executor.failed(&why)),
            Reply::Missing(address, why) => Err(Ended::Missing(address, why)),
            Reply::Barred(address, why) => Err(Ended::Barred(address, why)),
            _ => Err(executor.is_none()),
        }
    }
}
