//! DataFusion's memory pool on the shared budget: an operator that asks first pushes blocks out, and is refused only
//! when there is nothing left to push out or it has had its fair share.

mod query_pool;
mod shares;

pub(crate) use query_pool::{Governor, QueryNeeds, QueryPool};
pub use shares::Holder;
pub(crate) use shares::{MIN_MERGE_FACTOR, MIN_MERGE_PART};

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

use self::shares::{BUILD, Consumer, Consumers, Kind, partition_of};
use super::budget::MemoryUse;
use crate::config::ByteSize;
use crate::store::{BlockStore, Budget};

/// What a consumer can have beyond all shares, as long as it is within the limit: too little to fail for.
const MAX_TRIFLE: usize = 2 << 20;
/// The same as a part of the limit.
const TRIFLE_PART: usize = 16;
/// The batch with which a sort begins is not refused up to this part of the limit, whatever others have.
const BATCH_PART: usize = 2;
/// Holders that a refusal names.
const NAMED_HOLDERS: usize = 4;

/// The pool that a session's operators reserve from.
#[derive(Debug)]
pub struct SharedMemoryPool {
    store: Arc<BlockStore>,
    consumers: Mutex<Consumers>,
}

impl SharedMemoryPool {
    /// A pool which shares the budget of `store`.
    pub fn new(store: Arc<BlockStore>) -> Self {
        Self { store, consumers: Mutex::default() }
    }

    /// What operators hold now, the most first.
    pub fn holders(&self) -> Vec<Holder> {
        let mut holders: Vec<_> =
            self.consumers.lock().by_id.values().map(|consumer| consumer.holder.clone()).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }

    fn trifle(&self) -> usize {
        MAX_TRIFLE.min(self.budget().limit() / TRIFLE_PART)
    }

    /// Whether `wanted` bytes are too little to fail for, where only tasks are in their way: they give back what they
    /// have when they end.
    fn a_trifle_is_left(&self, wanted: usize) -> bool {
        let budget = self.budget();
        let of_operators = budget.execution() + wanted <= Self::operators_limit(budget.limit());
        wanted <= self.trifle() && of_operators && budget.excess(wanted) <= budget.tasks()
    }

    /// The most that operators may have together.
    fn operators_limit(limit: usize) -> usize {
        limit / 8 * 7
    }

    /// The most that the operators of a query may have now: the rest is for reading blocks back and for tasks, without
    /// which nothing moves, and what others have or were promised.
    fn allowance(&self, query: u64) -> usize {
        let limit = self.budget().limit();
        let most = Self::operators_limit(limit).min(limit.saturating_sub(self.budget().tasks()));
        most.saturating_sub(self.store.operators_beside(query))
    }

    fn budget(&self) -> &Budget {
        self.store.budget()
    }

    fn register_for(&self, query: u64, needs: Option<&QueryNeeds>, consumer: &MemoryConsumer) {
        let (operator, can_spill) = (consumer.name().to_owned(), consumer.can_spill());
        let kind = Kind::of(consumer);
        let folded = kind == Kind::Grouping && needs.is_some_and(|needs| partition_of(&operator) >= needs.threads);
        let holder = Holder { query, operator, can_spill, bytes: 0, peak_bytes: 0 };
        let merge_factor = needs.map_or(MIN_MERGE_FACTOR, |needs| needs.merge_factor);
        let registered = Consumer { kind, holder, merge_factor, folded };
        self.consumers.lock().by_id.insert(consumer.id(), registered);
    }

    /// Takes memory for an operator, pushing blocks out. Returns whether it got it.
    fn take(&self, reservation: &MemoryReservation, additional: usize) -> Result<bool> {
        let consumer = reservation.consumer();
        loop {
            let (must, room);
            {
                let mut consumers = self.consumers.lock();
                let holds = consumers.of_query_of(consumer);
                let most = self.allowance(holds.query);
                let wanted = holds.consumer + additional;
                let trifle = wanted <= self.trifle();
                must = match holds.kind {
                    // A sort cannot begin without a batch and what its merge sets aside. With nothing to spill, a
                    // refusal would be its end; the batch is there in any case.
                    Kind::Sorter => trifle || (reservation.size() == 0 && wanted <= self.budget().limit() / BATCH_PART),
                    Kind::Merge => trifle || holds.takes_over(wanted),
                    // Groups into which what was spilled is merged, by another reservation of the same aggregate.
                    Kind::Grouping => {
                        let groups = reservation.size() + additional;
                        let merging = 2 * reservation.size() < holds.consumer && groups <= holds.fair_table(most) / 4;
                        merging || (reservation.size() == 0 && self.a_trifle_is_left(wanted))
                    }
                    Kind::Sharing | Kind::Partial => reservation.size() == 0 && self.a_trifle_is_left(wanted),
                    Kind::Build | Kind::Unspillable => self.a_trifle_is_left(wanted),
                    Kind::Queue => false,
                };
                let copy = match holds.kind {
                    // Its batches are joined into one when all are there, with its table: for a moment they exist
                    // twice.
                    Kind::Build => reservation.size(),
                    // It sorts a copy of its groups when it spills.
                    Kind::Grouping if !must => reservation.size(),
                    _ => 0,
                };
                room = additional + copy;
                let over_share = holds.is_over_share(reservation.size(), additional, most, must);
                let over_limit = holds.bytes + room > most && !must;
                if !trifle && (over_share || over_limit) {
                    return Ok(false);
                }
                if self.budget().excess(room) == 0 && self.budget().try_take(MemoryUse::Operators, additional) {
                    consumers.add(consumer, additional);
                    return Ok(true);
                }
            }
            // Blocks leave without the lock: writing them may take long. Meanwhile others take memory too, so it may
            // take several turns.
            let excess = self.budget().excess(room);
            if self.store.make_room(excess.max(1))? == 0 && self.budget().excess(room) > 0 {
                if must {
                    // It is there, counted or not, until what it works for is done.
                    self.budget().take(MemoryUse::Operators, additional);
                    self.consumers.lock().add(consumer, additional);
                }
                return Ok(must);
            }
        }
    }

    fn refuse(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionError {
        let holders: Vec<String> = self
            .holders()
            .iter()
            .filter(|holder| holder.bytes > 0)
            .take(NAMED_HOLDERS)
            .map(|holder| format!("{} {}", holder.operator, ByteSize(holder.bytes)))
            .collect();
        let text = format!(
            "{} needs {} more on top of the {} that it holds, but memory is {}, of which operators may have {}, most of it \
             held by {}. Raise \
             blockyard.memory_limit, or lower datafusion.execution.target_partitions so that fewer operators share it",
            reservation.consumer().name(),
            ByteSize(additional),
            ByteSize(reservation.size()),
            self.budget(),
            ByteSize(Self::operators_limit(self.budget().limit())),
            if holders.is_empty() { "no operator".to_owned() } else { holders.join(", ") },
        );
        let name = reservation.consumer().name();
        if name.starts_with(BUILD) {
            return DataFusionError::ResourcesExhausted(
                text + "; blockyard.prefer_spilling_joins plans joins that spill",
            );
        }
        // On this kind of error a nested-loop join goes on in a way that can return wrong rows (DataFusion 55).
        match name.starts_with("NestedLoopJoinLoad") {
            true => DataFusionError::Execution(text + "; a nested-loop join cannot spill"),
            false => DataFusionError::ResourcesExhausted(text),
        }
    }
}

impl MemoryPool for SharedMemoryPool {
    fn name(&self) -> &str {
        "blockyard"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.register_for(0, None, consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.consumers.lock().by_id.remove(&consumer.id());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        // Nobody may refuse here: make room as far as that goes, and let the peak show the rest.
        if !self.budget().try_take(MemoryUse::Operators, additional) {
            let _made_room = self.store.make_room(self.budget().excess(additional));
            self.budget().take(MemoryUse::Operators, additional);
        }
        self.consumers.lock().add(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.consumers.lock().remove(reservation.consumer(), shrink);
        self.budget().give_back(MemoryUse::Operators, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if additional == 0 || self.take(reservation, additional)? {
            self.store.wake_writer();
            return Ok(());
        }
        Err(self.refuse(reservation, additional))
    }

    fn reserved(&self) -> usize {
        self.budget().execution()
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.budget().limit() {
            usize::MAX => MemoryLimit::Infinite,
            bytes => MemoryLimit::Finite(bytes),
        }
    }
}

impl fmt::Display for SharedMemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blockyard({})", self.budget())
    }
}

#[cfg(test)]
mod tests;
