//! What executors exchange below a stage, whichever of them dies meanwhile.
//!
//! ```text
//! exchange 0   units: tasks 0..4 at A, 4..8 at B ──┐  bytes by hashes, of both exchanges
//! exchange 1   units: tasks 0..2 at B ─────────────┴─> ranges of hashes: the tasks of what is above
//! ```
//!
//! An executor keeps the rows of the units that it has run. When it is lost, these run again elsewhere, and what was
//! being made of them begins anew. A unit may come out as more or fewer parts of groups then; but all rows with a hash
//! are in it again, so that what has been made of other hashes stays right. That is compared by a sum of the hashes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::TaskContext;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::executors::{Ended, Share, Shares};
use super::messages::{Call, Exchange as ExchangeCall, Held, Map, Mapped, Part, Reply, Source};
use crate::config::ByteSize;
use crate::physical::{
    ExchangeSource, Extent, RowRange, SchemeInOrder, StagePrint, StageSource, TaskRows, TaskSizes, ranges_of_codes,
};
use crate::runtime::UnderWay;

/// So many units come to each slot.
const UNITS_PER_SLOT: usize = 4;
/// And so many tasks above an exchange, which have so many bytes each where that makes more.
const TASKS_PER_SLOT: usize = 8;
const TASK_BYTES: usize = 64 << 20;
/// A unit is tried so often where what it needs is lost again and again.
const ATTEMPTS: usize = 16;

/// Exchanges side by side: those above read the same ranges of codes of each, or all of it.
#[derive(Debug)]
pub(super) struct Level {
    exchanges: Vec<Exchange>,
    /// The tasks above, where these are of a read.
    tasks: Option<Range<usize>>,
    /// Otherwise what they have, once that is known.
    rows: OnceLock<Vec<TaskRows>>,
    context: Arc<TaskContext>,
    /// Tasks above whose rows have not all come.
    left: AtomicUsize,
}

#[derive(Debug)]
struct Exchange {
    number: usize,
    is_whole: bool,
    has_parts_of_groups: bool,
    /// What gives rows to tasks, where these have them in an order.
    scheme: Option<SchemeInOrder>,
    below: Level,
    units: AsyncMutex<Vec<Unit>>,
    /// Rows that those above have read of it; none where it is not known.
    taken: Mutex<Option<u64>>,
}

/// Tasks whose rows are exchanged.
#[derive(Debug)]
struct Unit {
    /// Which of them it is.
    place: usize,
    tasks: Range<usize>,
    /// Who keeps them, under which number, and what is known of them.
    kept: Option<(Arc<Share>, u64, Mapped)>,
}

/// Who runs the units of a stage.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) stage: StagePrint,
    pub(super) shares: Shares,
    /// The number of the next unit of the query: stages that are equal are called the same.
    next: Arc<AtomicU64>,
    /// Rows that executors have kept for exchanges, and their bytes.
    rows: AtomicU64,
    bytes: AtomicUsize,
    /// Units that have run again, since nobody had their rows any more.
    again: AtomicUsize,
}

impl Mapping {
    pub(super) fn new(stage: StagePrint, shares: Shares, next: Arc<AtomicU64>) -> Self {
        let (rows, bytes, again) = Default::default();
        Self { stage, shares, next, rows, bytes, again }
    }

    /// A number that nothing else of the query has.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// What was exchanged below the stage of this name, if anything was.
    pub(super) fn remark(&self, stage: &str) -> Option<String> {
        let (rows, bytes, again) =
            (self.rows.load(Relaxed), ByteSize(self.bytes.load(Relaxed)), self.again.load(Relaxed));
        let again = match again {
            0 => String::new(),
            1 => "; 1 unit was made again".to_owned(),
            _ => format!("; {again} units were made again"),
        };
        (rows > 0).then(|| format!("{stage} had {rows} rows ({bytes}) exchanged by executors{again}"))
    }
}

impl Level {
    pub(super) fn of(source: &StageSource, context: &Arc<TaskContext>) -> Self {
        let exchange = |source: &ExchangeSource| Exchange {
            number: source.number,
            is_whole: source.is_whole,
            has_parts_of_groups: source.has_parts_of_groups,
            scheme: source.scheme.clone(),
            below: Self::of(&source.input, context),
            units: AsyncMutex::default(),
            taken: Mutex::new(Some(0)),
        };
        let exchanges = source.exchanges.iter().map(exchange).collect();
        let (tasks, context) = (source.tasks.clone(), Arc::clone(context));
        Self { exchanges, tasks, rows: OnceLock::new(), context, left: AtomicUsize::new(0) }
    }

    /// The tasks above, once all rows have been exchanged.
    pub(super) fn tasks(&self) -> Range<usize> {
        self.tasks.clone().unwrap_or_else(|| 0..self.rows.get().map_or(0, Vec::len))
    }

    /// Sees that executors which live keep all rows.
    pub(super) fn complete<'a>(&'a self, mapping: &'a Mapping) -> BoxFuture<'a, Result<()>> {
        async move {
            for exchange in &self.exchanges {
                exchange.complete(mapping).await?;
            }
            if self.rows.get().is_none() {
                let rows = self.cut(&mapping.shares).await?;
                // Where another one was faster, these are the same.
                if self.rows.set(rows).is_ok() {
                    self.left.store(self.tasks().len(), Relaxed);
                }
            }
            Ok(())
        }
        .boxed()
    }

    async fn cut(&self, shares: &Shares) -> Result<Vec<TaskRows>> {
        let least = TASKS_PER_SLOT * shares.slots().max(1);
        if let Some((exchange, scheme)) = self.in_order() {
            let units = exchange.units.lock().await;
            let extents: Vec<_> = units.iter().filter_map(Unit::extent).collect();
            let sizes = TaskSizes { sorted_bytes: shares.sorted_bytes(), least };
            return scheme.distributed()?.tasks(&extents, sizes, &self.context);
        }
        let mut bins: Vec<usize> = Vec::new();
        for exchange in self.exchanges.iter().filter(|exchange| !exchange.is_whole) {
            for extent in exchange.units.lock().await.iter().filter_map(Unit::extent) {
                bins.resize(bins.len().max(extent.bins.len()), 0);
                bins.iter_mut().zip(&extent.bins).for_each(|(bin, more)| *bin += more);
            }
        }
        ranges_of_codes(&bins, TASK_BYTES, least)
    }

    /// The exchange from which tasks have their rows in an order, if there is one.
    fn in_order(&self) -> Option<(&Exchange, &SchemeInOrder)> {
        self.exchanges.iter().find_map(|exchange| Some((exchange, exchange.scheme.as_ref()?)))
    }

    /// Where some of the tasks above have their rows from.
    pub(super) async fn source(&self, tasks: &Range<usize>) -> Result<Source> {
        let rows = self.rows.get().and_then(|rows| rows.get(tasks.clone())).unwrap_or_default();
        let ranges: Vec<_> = rows.iter().flat_map(|task| &task.ranges).collect();
        let part = match (&self.tasks, ranges.as_slice()) {
            (Some(_), _) => Part::Tasks(tasks.start, tasks.end),
            (None, []) => return internal_err!("there are no tasks {tasks:?}"),
            (None, _) if self.in_order().is_some() => Part::Rows(tasks.start, rows.to_vec()),
            (None, [RowRange::Codes(low, _), .., RowRange::Codes(_, high)] | [RowRange::Codes(low, high)]) => {
                Part::Codes(*low, *high)
            }
            (None, _) => return internal_err!("rows without an order are told apart by codes"),
        };
        let mut exchanges = Vec::new();
        for exchange in &self.exchanges {
            exchanges.push(exchange.kept().await);
        }
        Ok(Source { part, exchanges })
    }

    /// Notes what all tasks of a unit have read.
    fn note(&self, taken: &[(usize, Option<u64>)]) {
        for exchange in &self.exchanges {
            let read = taken.iter().find(|(number, _)| *number == exchange.number).and_then(|(_, rows)| *rows);
            let mut all = exchange.taken.lock();
            *all = all.zip(read).map(|(all, read)| all + read);
        }
    }

    /// The same of the tasks of a stage. When none is left, all rows that were exchanged must have been read.
    pub(super) async fn ended(&self, tasks: usize, taken: &[(usize, Option<u64>)]) -> Result<()> {
        self.note(taken);
        match self.left.fetch_sub(tasks, Relaxed) == tasks {
            true => self.check().await,
            false => Ok(()),
        }
    }

    fn check(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            for exchange in &self.exchanges {
                exchange.check().await?;
                exchange.below.check().await?;
            }
            Ok(())
        }
        .boxed()
    }
}

impl Exchange {
    /// Sees that executors which live keep all rows.
    async fn complete(&self, mapping: &Mapping) -> Result<()> {
        let mut units = self.units.lock().await;
        if units.is_empty() {
            self.below.complete(mapping).await?;
            let tasks = self.below.tasks();
            let together = tasks.len().div_ceil(UNITS_PER_SLOT * mapping.shares.slots().max(1)).max(1);
            let unit = |(place, first): (usize, usize)| Unit {
                place,
                tasks: first..(first + together).min(tasks.end),
                kept: None,
            };
            units.extend(tasks.clone().step_by(together).enumerate().map(unit));
        }
        for _attempt in 0..ATTEMPTS {
            let missing: Vec<_> = units.iter_mut().filter(|unit| unit.is_missing()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if missing.iter().any(|unit| unit.kept.is_some()) {
                // They read again what they have read, and may come out as more or fewer parts of groups.
                self.below.exchanges.iter().chain([self]).for_each(|exchange| *exchange.taken.lock() = None);
            }
            let slots = mapping.shares.slots().max(1);
            let runs: Vec<_> = missing.into_iter().map(|unit| self.run(unit, mapping).boxed()).collect();
            let mut running = stream::iter(runs).buffer_unordered(slots);
            while let Some(ran) = running.next().await {
                ran?;
            }
        }
        internal_err!("executors were lost {ATTEMPTS} times while rows were exchanged")
    }

    /// Runs a unit. Where an executor is lost meanwhile, it is left as it was.
    async fn run(&self, unit: &mut Unit, mapping: &Mapping) -> Result<()> {
        self.below.complete(mapping).await?;
        let source = self.below.source(&unit.tasks).await?;
        let holders = source.holders();
        let Some(busy) = mapping.shares.free(false, &holders)? else { return Ok(()) };
        let (share, number) = (busy.share(), mapping.number());
        let executor = &share.executor;
        let call = Call::Map(Map {
            query: executor.query().to_owned(),
            stage: mapping.stage,
            exchange: self.number,
            unit: number,
            place: unit.place,
            source,
        });
        // What the executor does goes on by itself; it is lost when it says nothing.
        let mapped = UnderWay::during(async {
            tokio::select! {
                called = executor.call(&call) => match called? {
                    (_, Reply::Mapped(mapped)) => Ok(mapped),
                    _ => Err(executor.is_none()),
                },
                loss = executor.loss() => Err(Ended::Lost(loss)),
                loss = mapping.shares.loss_among(&holders) => Err(loss),
            }
        });
        match mapped.await {
            Ok(mapped) => {
                share.tasks.fetch_add(unit.tasks.len(), Relaxed);
                mapping.rows.fetch_add(mapped.extent.rows, Relaxed);
                mapping.bytes.fetch_add(mapped.extent.bytes, Relaxed);
                mapping.again.fetch_add(usize::from(unit.kept.is_some()), Relaxed);
                self.below.note(&mapped.taken);
                if let Some((lost, _, before)) = &unit.kept {
                    self.compare(before, &mapped, lost)?;
                }
                unit.kept = Some((Arc::clone(share), number, mapped));
                Ok(())
            }
            Err(Ended::Failed(e)) => Err(e),
            Err(Ended::Lost(why)) => {
                executor.lose(&why);
                Ok(())
            }
            Err(Ended::Missing(address, why)) => {
                mapping.shares.lose(&address, &why);
                Ok(())
            }
            Err(Ended::Barred(address, why)) => {
                executor.bar(address, why);
                Ok(())
            }
        }
    }

    /// Rows that are made again must have the codes that they had: others have been read by what is above.
    fn compare(&self, before: &Mapped, again: &Mapped, lost: &Share) -> Result<()> {
        let known = |mapped: &Mapped| (mapped.extent.rows, mapped.extent.sum_of_codes);
        let is_same = known(before) == known(again);
        match is_same || self.has_parts_of_groups {
            true => Ok(()),
            false => exec_err!(
                "what the executor at {} has kept was lost with it, and came out otherwise when it was made again, as sums \
                 of floating-point numbers and values without an order may; run the query again",
                lost.executor.address()
            ),
        }
    }

    /// Who keeps which units.
    async fn kept(&self) -> ExchangeCall {
        let (mut all, mut rows): (Vec<Held>, u64) = (Vec::new(), 0);
        for (kept, number, mapped) in self.units.lock().await.iter().filter_map(|unit| unit.kept.as_ref()) {
            rows += mapped.extent.rows;
            let executor = &kept.executor;
            let same = match self.scheme {
                // Rows of one unit come behind those of the unit before it.
                Some(_) => all.last_mut().filter(|held| held.query == executor.query()),
                None => all.iter_mut().find(|held| held.query == executor.query()),
            };
            match same {
                Some(held) => held.units.push(*number),
                None => all.push(Held {
                    address: executor.address().to_string(),
                    query: executor.query().to_owned(),
                    units: vec![*number],
                }),
            }
        }
        ExchangeCall { number: self.number, whole: self.is_whole.then_some(rows), held: all }
    }

    async fn check(&self) -> Result<()> {
        let given: u64 = self.units.lock().await.iter().filter_map(Unit::extent).map(|extent| extent.rows).sum();
        match *self.taken.lock() {
            Some(taken) if taken != given && !self.is_whole => {
                internal_err!("executors took {given} rows to exchange {}, and gave {taken}", self.number)
            }
            _ => Ok(()),
        }
    }
}

impl Unit {
    /// What is known of its rows.
    fn extent(&self) -> Option<&Extent> {
        self.kept.as_ref().map(|(_, _, mapped)| &mapped.extent)
    }

    /// Whether nobody keeps its rows, or nobody any more.
    fn is_missing(&self) -> bool {
        self.kept.as_ref().is_none_or(|(share, ..)| share.executor.is_lost())
    }
}

impl Source {
    /// Where those are whose rows it is made of.
    pub(super) fn holders(&self) -> Vec<String> {
        let held = self.exchanges.iter().flat_map(|exchange| &exchange.held);
        let mut all: Vec<_> = held.map(|held| held.address.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::credentials::{Credentials, Reach};
    use crate::cluster::executors::Executor;
    use crate::cluster::messages::Prepared;

    fn exchange(has_parts_of_groups: bool) -> Level {
        let input = StageSource { tasks: Some(0..3), exchanges: Vec::new() };
        let exchange = ExchangeSource { number: 0, is_whole: false, has_parts_of_groups, scheme: None, input };
        Level::of(&StageSource { tasks: None, exchanges: vec![exchange] }, &Arc::default())
    }

    fn executor() -> Arc<Executor> {
        let prepared = Prepared {
            query: String::new(),
            threads: 1,
            memory: 1,
            reach: Reach::default(),
            stages: Vec::new(),
            error: None,
            unrepeated: None,
        };
        Arc::new(Executor::new("unix:/a".parse().unwrap(), Credentials::default(), &prepared))
    }

    #[test]
    fn what_comes_out_otherwise_is_an_error_unless_it_is_parts_of_groups() {
        let shares = Shares::of(vec![executor()]);
        let lost = shares.living().next().unwrap();
        let mapped = |rows, sum_of_codes| {
            let extent = Extent { rows, sum_of_codes, ..Extent::default() };
            Mapped { extent, ..Mapped::default() }
        };
        for (again, is_same) in [(mapped(3, 5), true), (mapped(4, 5), false), (mapped(3, 6), false)] {
            let compared = exchange(false).exchanges[0].compare(&mapped(3, 5), &again, lost);
            assert_eq!(compared.is_ok(), is_same, "{again:?}");
            exchange(true).exchanges[0].compare(&mapped(3, 5), &again, lost).unwrap();
        }
    }

    #[tokio::test]
    async fn rows_that_are_read_too_often_or_not_at_all_are_an_error() {
        for (taken, is_right) in [(Some(7), true), (Some(6), false), (Some(8), false), (None, true)] {
            let level = exchange(false);
            let share = Arc::clone(Shares::of(vec![executor()]).living().next().unwrap());
            let kept = |rows| {
                Some((
                    Arc::clone(&share),
                    0,
                    Mapped { extent: Extent { rows, ..Extent::default() }, ..Mapped::default() },
                ))
            };
            let units = [Unit { place: 0, tasks: 0..2, kept: kept(3) }, Unit { place: 1, tasks: 2..3, kept: kept(4) }];
            level.exchanges[0].units.lock().await.extend(units);
            level.left.store(2, Relaxed);
            level.ended(1, &[(0, Some(0))]).await.unwrap();
            assert_eq!(level.ended(1, &[(0, taken)]).await.is_ok(), is_right, "{taken:?}");
        }
    }
}
