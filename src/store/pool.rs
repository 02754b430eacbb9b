//! DataFusion's memory pool on the shared budget: an operator that asks first pushes blocks out, and is refused only
//! when there is nothing left to push out or it has had its fair share.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

use super::budget::Use;
use super::{BlockStore, Budget};
use crate::config::ByteSize;

/// A consumer that can spill always gets this much, when the budget has it: one batch must fit or nothing can start.
const SPILLABLE_FLOOR: usize = 1 << 20;
/// A merge may always have this part of the memory of operators. No more is set aside for it before a sort begins.
pub(crate) const LEAST_MERGE_PART: usize = 16;
/// What a consumer can have beyond all shares, as long as it is within the limit: too little to fail for.
const MOST_TRIFLE: usize = 2 << 20;
/// The same as a part of the limit.
const TRIFLE_PART: usize = 16;
/// The batch with which a sort begins is not refused up to this part of the limit, whatever others have.
const BATCH_PART: usize = 2;
/// How often the groups of an aggregate are there again while its table doubles, or is sorted to be spilled.
const COPIES_OF_GROUPS: usize = 2;
/// What repartitions may have together, as a part of the memory of operators: they hold batches for partitions that are
/// busy. Beyond that they spill.
const QUEUE_PART: usize = 4;
/// What partial aggregates may have together, as such a part. Beyond that they pass on what they have.
const PARTIAL_PART: usize = 4;
/// What a merge takes for each byte of the rows when its keys are as large as they.
pub(crate) const LEAST_MERGE_FACTOR: usize = 2;
/// How the consumers of a sort are called, that of its merge with another word behind.
const SORTER: &str = "ExternalSorter";
/// How the build sides of hash joins are called, with or without a partition behind.
const BUILD: &str = "HashJoinInput";
/// Holders that a refusal names.
const NAMED_HOLDERS: usize = 4;

/// The pool that a session's operators reserve from.
#[derive(Debug)]
pub struct SharedMemoryPool {
    store: Arc<BlockStore>,
    consumers: Mutex<Consumers>,
}

#[derive(Debug, Default)]
struct Consumers {
    by_id: HashMap<usize, Registered>,
}

#[derive(Debug)]
struct Registered {
    kind: Kind,
    holder: Holder,
    /// Bytes that a merge takes for each byte of the rows: those of the batch and of its keys.
    merge_factor: usize,
    /// Whether it is one more table of an aggregate that has several for each thread.
    folded: bool,
}

/// What a query holds, as one of its consumers sees it.
#[derive(Debug)]
struct Holds {
    query: u64,
    kind: Kind,
    /// Bytes of the consumer itself.
    consumer: usize,
    /// Bytes of all consumers.
    bytes: usize,
    /// How many spill when they have had their share. The tables of an aggregate count once for each thread.
    sharing: usize,
    /// How many aggregates are among them, and how many tables they have.
    aggregates: usize,
    tables: usize,
    /// Bytes of those that do not.
    not_sharing: usize,
    /// How many merge runs of a sort.
    merging: usize,
    /// Bytes of repartitions, and of partial aggregates.
    queued: usize,
    partial: usize,
    /// What the sorter has whose batches the consumer merges, and the most that it had.
    sorter: usize,
    sorter_peak: usize,
    merge_factor: usize,
}

/// What one consumer of an operator has reserved.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Number of the query, 0 where it is not known.
    pub query: u64,
    /// Name of the consumer, like `ExternalSorter[0]`.
    pub operator: String,
    /// Whether it spills when it is refused more.
    pub can_spill: bool,
    /// Bytes it has now.
    pub bytes: usize,
    /// The most bytes that it had.
    pub peak_bytes: usize,
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
        MOST_TRIFLE.min(self.budget().limit() / TRIFLE_PART)
    }

    /// Whether `wanted` bytes are too little to fail for, where only tasks are in their way: they give back what they have
    /// when they end.
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
        let merge_factor = needs.map_or(LEAST_MERGE_FACTOR, |needs| needs.merge_factor);
        let registered = Registered { kind, holder, merge_factor, folded };
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
                    // A sort cannot begin without a batch and what its merge sets aside. With nothing to spill, a refusal
                    // would be its end; the batch is there in any case.
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
                    // Its batches are joined into one when all are there, with its table: for a moment they exist twice.
                    Kind::Build => reservation.size(),
                    // It sorts a copy of its groups when it spills.
                    Kind::Grouping if !must => reservation.size(),
                    _ => 0,
                };
                room = additional + copy;
                let over_share = match holds.kind {
                    // One that holds nothing has nothing to spill: a refusal would be its end.
                    Kind::Sorter => reservation.size() > 0 && wanted > holds.fair_sorter(most),
                    Kind::Sharing => reservation.size() > 0 && wanted > holds.fair(most),
                    // The merge of what was spilled comes first, and leaves room for the groups, which then cannot spill: a
                    // refusal would be their end, so they may have more than their share of what is free.
                    Kind::Grouping if reservation.size() < holds.consumer => {
                        wanted > holds.fair_table(most) / 2 * 3 && !must
                    }
                    Kind::Grouping => holds.consumer > 0 && wanted > holds.fair_groups(most),
                    Kind::Merge => wanted > holds.fair_merge(most) && !must,
                    Kind::Queue => holds.queued + additional > most / QUEUE_PART,
                    Kind::Partial => holds.partial + additional > most / PARTIAL_PART,
                    Kind::Build | Kind::Unspillable => false,
                };
                let over_limit = holds.bytes + room > most && !must;
                if !trifle && (over_share || over_limit) {
                    return Ok(false);
                }
                if self.budget().excess(room) == 0 && self.budget().try_take(Use::Operators, additional) {
                    consumers.add(consumer, additional);
                    return Ok(true);
                }
            }
            // Blocks leave without the lock: writing them may take long. Meanwhile others take memory too, so it may take
            // several turns.
            let excess = self.budget().excess(room);
            if self.store.make_room(excess.max(1))? == 0 && self.budget().excess(room) > 0 {
                if must {
                    // It is there, counted or not, until what it works for is done.
                    self.budget().take(Use::Operators, additional);
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

/// What a consumer does when it is refused more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It spills what it has, and begins anew.
    Sharing,
    /// A sort, which does so too, by a merge that takes memory of its own.
    Sorter,
    /// An aggregate, which does so too, and at its end merges what it has spilled into its groups.
    Grouping,
    /// An aggregate before a repartition, which passes on what it has. Those behind it need the memory more: they would spill.
    Partial,
    /// The merge of a sort's runs, which takes as many at once as it gets memory for.
    Merge,
    /// A repartition, which writes what it cannot keep batch by batch.
    Queue,
    /// The build side of a hash join, which fails; the query is then planned again without such joins.
    Build,
    /// It fails.
    Unspillable,
}

impl Kind {
    fn of(consumer: &MemoryConsumer) -> Self {
        let name = consumer.name();
        if name.starts_with("Repartition") {
            Self::Queue
        } else if name.starts_with(BUILD) {
            Self::Build
        } else if let Some(suffix) = name.strip_prefix(SORTER) {
            if suffix.starts_with("Merge") { Self::Merge } else { Self::Sorter }
        } else if consumer.can_spill() && name.contains("Partial") {
            Self::Partial
        } else if consumer.can_spill() && name.contains("Aggregate") {
            Self::Grouping
        } else if consumer.can_spill() || name.starts_with("SMJStream") {
            // A sort-merge join spills without saying so.
            Self::Sharing
        } else {
            Self::Unspillable
        }
    }
}

/// The partition by which an operator calls its consumer, as in `FinalHashAggregateStream[3]`; 0 without one.
fn partition_of(operator: &str) -> usize {
    let number = operator.split_once('[').and_then(|(_, rest)| rest.split([' ', ']']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
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
        if !self.budget().try_take(Use::Operators, additional) {
            let _made_room = self.store.make_room(self.budget().excess(additional));
            self.budget().take(Use::Operators, additional);
        }
        self.consumers.lock().add(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.consumers.lock().remove(reservation.consumer(), shrink);
        self.budget().give_back(Use::Operators, shrink);
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

impl Consumers {
    fn of_query_of(&self, consumer: &MemoryConsumer) -> Holds {
        let asking = self.by_id.get(&consumer.id());
        let mut holds = Holds {
            query: asking.map_or(0, |asking| asking.holder.query),
            kind: asking.map_or_else(|| Kind::of(consumer), |asking| asking.kind),
            consumer: asking.map_or(0, |asking| asking.holder.bytes),
            bytes: 0,
            sharing: 0,
            aggregates: 0,
            tables: 0,
            not_sharing: 0,
            merging: 0,
            queued: 0,
            partial: 0,
            sorter: 0,
            sorter_peak: 0,
            merge_factor: asking.map_or(LEAST_MERGE_FACTOR, |asking| asking.merge_factor),
        };
        let merged = match (holds.kind, asking) {
            (Kind::Merge, Some(asking)) => {
                asking.holder.operator.strip_prefix(SORTER).and_then(|s| s.strip_prefix("Merge"))
            }
            _ => None,
        };
        for Registered { kind, holder, folded, .. } in
            self.by_id.values().filter(|other| other.holder.query == holds.query)
        {
            holds.bytes += holder.bytes;
            match kind {
                Kind::Sharing | Kind::Sorter => holds.sharing += 1,
                Kind::Grouping => {
                    holds.tables += 1;
                    holds.aggregates += usize::from(!folded);
                    holds.sharing += usize::from(!folded);
                }
                Kind::Merge => {
                    holds.merging += 1;
                    holds.not_sharing += holder.bytes;
                }
                Kind::Queue => {
                    holds.queued += holder.bytes;
                    holds.not_sharing += holder.bytes;
                }
                Kind::Partial => {
                    holds.partial += holder.bytes;
                    holds.not_sharing += holder.bytes;
                }
                Kind::Build | Kind::Unspillable => holds.not_sharing += holder.bytes,
            }
            if *kind == Kind::Sorter && merged.is_some() && merged == holder.operator.strip_prefix(SORTER) {
                holds.sorter += holder.bytes;
                holds.sorter_peak = holds.sorter_peak.max(holder.peak_bytes);
            }
        }
        holds
    }

    fn add(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if let Some(Registered { holder, .. }) = self.by_id.get_mut(&consumer.id()) {
            holder.bytes += bytes;
            holder.peak_bytes = holder.peak_bytes.max(holder.bytes);
        }
    }

    fn remove(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if let Some(Registered { holder, .. }) = self.by_id.get_mut(&consumer.id()) {
            holder.bytes -= bytes;
        }
    }
}

impl Holds {
    /// What each consumer that shares may hold, out of `most` for the query.
    fn fair(&self, most: usize) -> usize {
        (most.saturating_sub(self.not_sharing) / self.sharing.max(1)).max(SPILLABLE_FLOOR)
    }

    /// The share of one table of an aggregate.
    fn fair_table(&self, most: usize) -> usize {
        self.fair(most) / self.tables_each()
    }

    /// What a table of an aggregate may hold until it is spilled. One for each thread doubles, or is sorted, at a time.
    fn fair_groups(&self, most: usize) -> usize {
        self.fair(most) / (self.tables_each() + COPIES_OF_GROUPS)
    }

    fn tables_each(&self) -> usize {
        self.tables.div_ceil(self.aggregates.max(1)).max(1)
    }

    /// What a sorter may hold, so that the merge by which it spills has room too. It counts each batch twice. Of the merge's
    /// batches and keys it gives one back.
    fn fair_sorter(&self, most: usize) -> usize {
        (self.fair(most) / (self.merge_factor + 1) * 2).max(SPILLABLE_FLOOR)
    }

    /// Whether a merge takes over what its sorter gives back: the batches, and what their keys take. The sorter spills by
    /// it, so a refusal would be the end of the sort.
    fn takes_over(&self, wanted: usize) -> bool {
        wanted + self.sorter <= self.sorter_peak.saturating_mul(self.merge_factor + 2) / 2
    }

    /// What a merge may hold of what was spilled. A quarter of all stays for the merge of the partitions above, which
    /// cannot do with less.
    fn fair_merge(&self, most: usize) -> usize {
        let share = most / self.sharing.max(self.merging).max(1) / 4 * 3;
        share.max(most / LEAST_MERGE_PART).max(SPILLABLE_FLOOR)
    }
}

impl fmt::Display for SharedMemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blockyard({})", self.budget())
    }
}

/// What the pool knows of a query's plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryNeeds {
    /// Bytes that it was planned for.
    pub(crate) memory: usize,
    /// Bytes that a merge of its sorts takes for each byte of the rows: those of the batch and of its keys.
    pub(crate) merge_factor: usize,
    /// Threads that it may have.
    pub(crate) threads: usize,
}

/// The pool as one query sees it: what its operators reserve is theirs by name.
#[derive(Debug)]
pub(crate) struct QueryPool {
    query: u64,
    needs: QueryNeeds,
    shared: Arc<SharedMemoryPool>,
    /// What its operators have.
    bytes: Arc<AtomicUsize>,
    /// Blocks that it has lost because a task failed.
    errored_blocks: AtomicUsize,
}

impl QueryPool {
    /// The view of query number `query`. What its operators have is counted in `bytes` too.
    pub(crate) fn new(query: u64, needs: QueryNeeds, shared: Arc<SharedMemoryPool>, bytes: Arc<AtomicUsize>) -> Self {
        Self { query, needs, shared, bytes, errored_blocks: AtomicUsize::new(0) }
    }

    /// The bytes that the query of a task was planned for, where that is known.
    pub(crate) fn memory_of(context: &TaskContext) -> Option<usize> {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map(|pool| pool.needs.memory)
    }

    /// Blocks that the query of a task has lost, where the query is known.
    pub(crate) fn errored_blocks_of(context: &TaskContext) -> Option<&AtomicUsize> {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map(|pool| &pool.errored_blocks)
    }

    /// Number of the query that a task belongs to, 0 where it is not known.
    pub(crate) fn query_of(context: &TaskContext) -> u64 {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map_or(0, |pool| pool.query)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        self.shared.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.shared.register_for(self.query, Some(&self.needs), consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.shared.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.shared.grow(reservation, additional);
        self.bytes.fetch_add(additional, Relaxed);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.shared.shrink(reservation, shrink);
        self.bytes.fetch_sub(shrink, Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.shared.try_grow(reservation, additional)?;
        self.bytes.fetch_add(additional, Relaxed);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.shared.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.shared.memory_limit()
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

#[cfg(test)]
mod tests;
