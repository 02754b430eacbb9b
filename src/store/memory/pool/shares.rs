//! Who has reserved what, and the share that each may have.
//!
//! DataFusion tells a pool the name of an operator, and whether it can spill. What it does when it is refused more
//! follows from that (`Kind`), and its share from what the others of its query do and hold.

use std::collections::HashMap;

use datafusion::execution::memory_pool::MemoryConsumer;

/// A consumer that can spill always gets this much, when the budget has it: one batch must fit or nothing can start.
pub(super) const SPILLABLE_FLOOR: usize = 1 << 20;
/// A merge may always have this part of the memory of operators. No more is set aside for it before a sort begins.
pub(crate) const MIN_MERGE_PART: usize = 16;
/// How often the groups of an aggregate are there again while its table doubles, or is sorted to be spilled.
pub(super) const COPIES_OF_GROUPS: usize = 2;
/// What a merge takes for each byte of the rows when its keys are as large as they.
pub(crate) const MIN_MERGE_FACTOR: usize = 2;
/// What repartitions may have together, as a part of the memory of operators: they hold batches for partitions that are
/// busy. Beyond that they spill.
const QUEUE_PART: usize = 4;
/// What partial aggregates may have together, as such a part. Beyond that they pass on what they have.
const PARTIAL_PART: usize = 4;
/// How the consumers of a sort are called, that of its merge with another word behind.
pub(super) const SORTER: &str = "ExternalSorter";
/// How the build sides of hash joins are called, with or without a partition behind.
pub(super) const BUILD: &str = "HashJoinInput";

/// The consumers of all queries.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    pub(super) by_id: HashMap<usize, Consumer>,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) kind: Kind,
    pub(super) holder: Holder,
    /// Bytes that a merge takes for each byte of the rows: those of the batch and of its keys.
    pub(super) merge_factor: usize,
    /// Whether it is one more table of an aggregate that has several for each thread.
    pub(super) folded: bool,
}

/// What a query holds, as one of its consumers sees it.
#[derive(Debug)]
pub(super) struct Holds {
    pub(super) query: u64,
    pub(super) kind: Kind,
    /// Bytes of the consumer itself.
    pub(super) consumer: usize,
    /// Bytes of all consumers.
    pub(super) bytes: usize,
    /// How many spill when they have had their share. The tables of an aggregate count once for each thread.
    pub(super) sharing: usize,
    /// How many aggregates are among them, and how many tables they have.
    pub(super) aggregates: usize,
    pub(super) tables: usize,
    /// Bytes of those that do not.
    pub(super) not_sharing: usize,
    /// How many merge runs of a sort.
    pub(super) merging: usize,
    /// Bytes of repartitions, and of partial aggregates.
    pub(super) queued: usize,
    pub(super) partial: usize,
    /// What the sorter has whose batches the consumer merges, and the most that it had.
    pub(super) sorter: usize,
    pub(super) sorter_peak: usize,
    pub(super) merge_factor: usize,
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

/// What a consumer does when it is refused more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It spills what it has, and begins anew.
    Sharing,
    /// A sort, which does so too, by a merge that takes memory of its own.
    Sorter,
    /// An aggregate, which does so too, and at its end merges what it has spilled into its groups.
    Grouping,
    /// An aggregate before a repartition, which passes on what it has. Those behind it need the memory more: they would
    /// spill.
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
    pub(super) fn of(consumer: &MemoryConsumer) -> Self {
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
pub(super) fn partition_of(operator: &str) -> usize {
    let number = operator.split_once('[').and_then(|(_, rest)| rest.split([' ', ']']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Consumers {
    pub(super) fn of_query_of(&self, consumer: &MemoryConsumer) -> Holds {
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
            merge_factor: asking.map_or(MIN_MERGE_FACTOR, |asking| asking.merge_factor),
        };
        let merged = match (holds.kind, asking) {
            (Kind::Merge, Some(asking)) => {
                asking.holder.operator.strip_prefix(SORTER).and_then(|s| s.strip_prefix("Merge"))
            }
            _ => None,
        };
        for Consumer { kind, holder, folded, .. } in
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

    pub(super) fn add(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if let Some(Consumer { holder, .. }) = self.by_id.get_mut(&consumer.id()) {
            holder.bytes += bytes;
            holder.peak_bytes = holder.peak_bytes.max(holder.bytes);
        }
    }

    pub(super) fn remove(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if let Some(Consumer { holder, .. }) = self.by_id.get_mut(&consumer.id()) {
            holder.bytes -= bytes;
        }
    }
}

impl Holds {
    /// Whether a reservation of `reserved` bytes has had its share of `most` with `additional` more. `must`: a refusal
    /// would be the end of what it is for.
    pub(super) fn is_over_share(&self, reserved: usize, additional: usize, most: usize, must: bool) -> bool {
        let wanted = self.consumer + additional;
        match self.kind {
            // One that holds nothing has nothing to spill: a refusal would be its end.
            Kind::Sorter => reserved > 0 && wanted > self.fair_sorter(most),
            Kind::Sharing => reserved > 0 && wanted > self.fair(most),
            // The merge of what was spilled comes first, and leaves room for the groups, which then cannot
            // spill: a refusal would be their end, so they may have more than their share of what is free.
            Kind::Grouping if reserved < self.consumer => wanted > self.fair_table(most) / 2 * 3 && !must,
            Kind::Grouping => self.consumer > 0 && wanted > self.fair_groups(most),
            Kind::Merge => wanted > self.fair_merge(most) && !must,
            Kind::Queue => self.queued + additional > most / QUEUE_PART,
            Kind::Partial => self.partial + additional > most / PARTIAL_PART,
            Kind::Build | Kind::Unspillable => false,
        }
    }

    /// What each consumer that shares may hold, out of `most` for the query.
    pub(super) fn fair(&self, most: usize) -> usize {
        (most.saturating_sub(self.not_sharing) / self.sharing.max(1)).max(SPILLABLE_FLOOR)
    }

    /// The share of one table of an aggregate.
    pub(super) fn fair_table(&self, most: usize) -> usize {
        self.fair(most) / self.tables_each()
    }

    /// What a table of an aggregate may hold until it is spilled. One for each thread doubles, or is sorted, at a time.
    pub(super) fn fair_groups(&self, most: usize) -> usize {
        self.fair(most) / (self.tables_each() + COPIES_OF_GROUPS)
    }

    pub(super) fn tables_each(&self) -> usize {
        self.tables.div_ceil(self.aggregates.max(1)).max(1)
    }

    /// What a sorter may hold, so that the merge by which it spills has room too. It counts each batch twice. Of the
    /// merge's batches and keys it gives one back.
    pub(super) fn fair_sorter(&self, most: usize) -> usize {
        (self.fair(most) / (self.merge_factor + 1) * 2).max(SPILLABLE_FLOOR)
    }

    /// Whether a merge takes over what its sorter gives back: the batches, and what their keys take. The sorter spills
    /// by it, so a refusal would be the end of the sort.
    pub(super) fn takes_over(&self, wanted: usize) -> bool {
        wanted + self.sorter <= self.sorter_peak.saturating_mul(self.merge_factor + 2) / 2
    }

    /// What a merge may hold of what was spilled. A quarter of all stays for the merge of the partitions above, which
    /// cannot do with less.
    pub(super) fn fair_merge(&self, most: usize) -> usize {
        let share = most / self.sharing.max(self.merging).max(1) / 4 * 3;
        share.max(most / MIN_MERGE_PART).max(SPILLABLE_FLOOR)
    }
}
