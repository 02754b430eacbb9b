//! What dealer and consumers share: the table, and how they wake each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_err};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::seat::Presence;
use super::table::{Stopped, Table};
use crate::dataset::iterate::{Origin, Position};
use crate::observability::{ConsumerWaits, IteratorStatus, ObservedIterator, Observers};
use crate::store::{BlockHandle, BlockStore, Owner};
use crate::token::ResumeToken;

/// Where rows stand, with what makes a token of that. Without a position it is where the run began.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) origin: Arc<Origin>,
    pub(super) position: Option<Position>,
}

/// The consumers of a split of a dataset.
pub(super) type SplitTable = Table<BlockHandle, Standing>;

/// After how long callbacks first hear that a consumer waits for others.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Where the time of a consumer goes.
#[derive(Debug, Default, Clone)]
pub(super) struct Meter {
    pub(super) rows: u64,
    waited: Duration,
    user: Duration,
    /// When it began to wait, and how often that was said.
    waits: Option<Instant>,
    warnings: u32,
    /// When it got something.
    works: Option<Instant>,
}

/// What dealer and consumers share.
#[derive(Debug)]
pub(super) struct Shared {
    table: Mutex<SplitTable>,
    /// Somebody has changed the table.
    changed: Notify,
    /// Somebody begins to wait, or is away.
    watched: Notify,
    meters: Vec<Mutex<Meter>>,
    began: Instant,
    name: String,
    has_tokens: bool,
    observers: Arc<Observers>,
    pub(super) store: Arc<BlockStore>,
    pub(super) owner: Arc<Owner>,
}

impl Shared {
    pub(super) fn new(
        table: SplitTable,
        has_tokens: bool,
        observers: Arc<Observers>,
        store: Arc<BlockStore>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            meters: (0..table.consumers()).map(|_| Mutex::default()).collect(),
            table: Mutex::new(table),
            changed: Notify::new(),
            watched: Notify::new(),
            began: Instant::now(),
            name: observers.name_of_iterator("split"),
            has_tokens,
            observers: Arc::clone(&observers),
            store,
            owner: Arc::default(),
        });
        observers.add_iterator(&(Arc::clone(&shared) as Arc<dyn ObservedIterator>));
        shared
    }

    /// Changes the table, and wakes whoever waits for that.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SplitTable) -> T) -> T {
        let changed = change(&mut self.table.lock());
        self.changed.notify_waiters();
        changed
    }

    /// Looks at the table.
    pub(super) fn look<T>(&self, look: impl FnOnce(&SplitTable) -> T) -> T {
        look(&self.table.lock())
    }

    /// Waits until the table is as it has to be, or everything has stopped.
    pub(super) async fn until(&self, is_so: impl Fn(&SplitTable) -> bool) -> bool {
        let look = |table: &mut SplitTable| match table.stopped() {
            Some(_) => Some(false),
            None => is_so(table).then_some(true),
        };
        self.wait_for(look).await
    }

    /// Waits until something comes out of the table.
    pub(super) async fn wait_for<T>(&self, mut look: impl FnMut(&mut SplitTable) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let found = look(&mut self.table.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    /// A consumer leaves.
    pub(super) fn leave(&self, consumer: usize) {
        self.change(|table| table.leave(consumer, self.began.elapsed()));
        self.watched.notify_one();
    }

    /// Gives those up who are away for too long, and tells callbacks who waits for long.
    pub(super) async fn watch(self: Arc<Self>) -> Result<()> {
        loop {
            let late = self.change(|table| table.give_up_late(self.began.elapsed()));
            let in_time = late.map(|late| late.saturating_sub(self.began.elapsed()));
            let next = self.warn().into_iter().chain(in_time).min();
            let watched = self.watched.notified();
            match next {
                Some(next) => _ = tokio::time::timeout(next, watched).await,
                None => watched.await,
            }
        }
    }

    /// Tells callbacks who has waited for long; in how long there will be more to tell.
    fn warn(&self) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for (consumer, meter) in self.meters.iter().enumerate() {
            let mut meter = meter.lock();
            let Some(waited) = meter.waits.map(|since| since.elapsed()) else { continue };
            let due = WARN_AFTER * 2_u32.saturating_pow(meter.warnings);
            let left = due.checked_sub(waited).filter(|left| !left.is_zero());
            meter.warnings += u32::from(left.is_none());
            drop(meter);
            if left.is_none() {
                let waits_for = self.look(|table| table.waits_for(consumer));
                self.observers.consumer_waits(&ConsumerWaits { consumer, waits_for, waited });
            }
            let left = left.unwrap_or((due * 2).saturating_sub(waited));
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        next
    }

    /// A consumer waits from now on.
    pub(super) fn waits(&self, consumer: usize) {
        let mut meter = self.meters[consumer].lock();
        let now = Instant::now();
        let worked = meter.works.take().map_or(Duration::ZERO, |since| now - since);
        meter.user += worked;
        (meter.waits, meter.warnings) = (Some(now), 0);
        self.watched.notify_one();
    }

    /// A consumer got so many rows, or what else it has waited for.
    pub(super) fn goes_on(&self, consumer: usize, rows: u64) {
        let mut meter = self.meters[consumer].lock();
        let now = Instant::now();
        let waited = meter.waits.take().map_or(Duration::ZERO, |since| now - since);
        meter.waited += waited;
        meter.rows += rows;
        meter.works = Some(now);
    }

    /// The token of where rows stand.
    pub(super) fn token(&self, standing: Option<&Standing>) -> Result<ResumeToken> {
        if !self.has_tokens {
            return plan_err!("what is dealt by demand has no tokens");
        }
        match standing {
            Some(Standing { origin, position }) => origin.token(position.as_ref()),
            None => plan_err!("no epoch of the split has begun"),
        }
    }

    /// The token behind the last turn that all have acknowledged.
    pub(super) fn token_of_all(&self) -> Result<ResumeToken> {
        let standing = self.look(|table| table.position_of_all().cloned());
        self.token(standing.as_ref())
    }

    /// Why everything has stopped, for those who ask.
    pub(super) fn error(&self, stopped: &Stopped<Standing>) -> DataFusionError {
        let lost = match stopped {
            Stopped::Failed(message) => return exec_datafusion_err!("{message}"),
            Stopped::Lost(lost) => lost,
        };
        let turns = |turns: u64| if turns == u64::MAX { "all".to_owned() } else { turns.to_string() };
        let mut text = format!(
            "consumer {} of the split was lost in epoch {} behind {} turns",
            lost.consumer,
            lost.epoch,
            turns(lost.turns)
        );
        if self.has_tokens {
            let token = self.token(lost.position.as_ref());
            let token = token.map_or_else(|e| format!("there is no token: {e}"), |token| token.to_string());
            text.push_str(&format!(
                "; all have acknowledged {} turns, and can go on there with this token: {token}",
                turns(lost.acknowledged)
            ));
        }
        exec_datafusion_err!("{text}")
    }

    /// The consumer that was lost, in which epoch, and the token behind what all have acknowledged.
    pub(super) fn lost(&self) -> Option<(usize, u64, Option<ResumeToken>)> {
        let lost = self.look(|table| match table.stopped() {
            Some(Stopped::Lost(lost)) => Some(lost.clone()),
            _ => None,
        })?;
        Some((lost.consumer, lost.epoch, self.token(lost.position.as_ref()).ok()))
    }
}

impl ObservedIterator for Shared {
    fn statuses(&self) -> Vec<IteratorStatus> {
        (0..self.meters.len()).map(|consumer| self.status(consumer)).collect()
    }
}

impl Shared {
    fn status(&self, consumer: usize) -> IteratorStatus {
        let meter = self.meters[consumer].lock().clone();
        let table = self.table.lock();
        let seat = table.seat(consumer);
        let state = match seat.presence {
            Presence::Away { .. } => "away",
            Presence::Gone => "gone",
            Presence::Here if meter.waits.is_none() => "works",
            Presence::Here if seat.is_inside() => "waits",
            Presence::Here => "arrived",
        };
        let is_waiting = meter.waits.is_some() && matches!(seat.presence, Presence::Here);
        let waits_for = match is_waiting.then(|| names(&table.waits_for(consumer))) {
            Some(names) if names.is_empty() => "the dataset".to_owned(),
            names => names.unwrap_or_default(),
        };
        let standing = table.position_of(consumer).cloned();
        let (epoch, buffered_bytes) = ((seat.entered > 0).then_some(seat.label), table.buffered_bytes(consumer) as u64);
        drop(table);
        let passed = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        let labels = standing.as_ref().map(|s| s.origin.epoch_and_window(s.position.as_ref()));
        IteratorStatus {
            name: self.name.clone(),
            consumer: consumer as u64,
            state,
            waits_for,
            epoch: labels.map(|(epoch, _)| epoch).or(epoch),
            window: labels.and_then(|(_, window)| window),
            rows: meter.rows,
            waited: meter.waited + passed(meter.waits),
            user: meter.user + passed(meter.works),
            buffered_bytes,
            token: self.token(standing.as_ref()).map(|token| token.to_string()).unwrap_or_default(),
        }
    }
}

/// The numbers of consumers, one after the other.
fn names(consumers: &[usize]) -> String {
    consumers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
