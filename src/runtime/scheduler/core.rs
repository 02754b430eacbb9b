//! The decisions, without threads or a clock: events go in, grants come out. The simulation drives the same code.
//!
//! A worker asks before it starts a task, and before it goes on with one that gave up its resources. Among those who
//! ask,
//!
//! 1. the operator has resources free, of all queries and of its own,
//! 2. no policy holds it back,
//! 3. and the one with the shortest out queue comes first; queries take turns by the CPUs that they have.
//!
//! **Nothing ever stalls.** Tasks that run depend on nobody: while a task waits until its block is wanted, or until
//! another stage has made its input, it holds no resources. So when nothing of a query runs, what it waits for cannot
//! come from within, and the first of those who ask goes on whatever the policies say (Ray's guard, 3.4). A task whose
//! block everybody waits for, because it is next in order, goes on as soon as there are resources, and so does one
//! whose input has come.

mod grants;
mod status;

pub(super) use grants::Lacking;
pub(crate) use status::OpStatus;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;

use super::allocator::allocate;
use super::op::{Op, OpId, OpSpec, OpView, Ticket};
use super::policies::BackpressurePolicy;
use super::pool::PoolState;
use super::resources::Resources;
use super::solver::{Load, slots};

/// By what the operator is chosen that goes on next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ranking {
    /// The bytes in its out queue.
    #[default]
    OutQueue,
    /// The bytes of all of its blocks that are held.
    Memory,
}

impl Ranking {
    /// By its name: `out_queue` or `memory`.
    pub(crate) fn by_name(name: &str) -> Result<Self> {
        match name {
            "out_queue" => Ok(Self::OutQueue),
            "memory" => Ok(Self::Memory),
            _ => Err(crate::error::unknown_name("ranking", name, "", &["out_queue", "memory"])),
        }
    }
}

/// The part of object store memory that queries may use: the rest is for what is read and written.
const STORE_PART: u64 = 2;
#[derive(Debug)]
pub(super) struct Core {
    total: Resources,
    used: Resources,
    queries: BTreeMap<u64, Query>,
    ops: BTreeMap<OpId, Op>,
    policies: Vec<Arc<dyn BackpressurePolicy>>,
    ranking: Ranking,
    next: u64,
}

#[derive(Debug)]
struct Query {
    limits: Resources,
    used: Resources,
    ops: Vec<OpId>,
    /// When something last began, ended or came out.
    progress: Duration,
    /// Number of the grant that it got last.
    last_grant: u64,
    /// Whether budgets are of what operators used before.
    stale: bool,
}

impl Core {
    pub(super) fn new(total: Resources, policies: Vec<Arc<dyn BackpressurePolicy>>, ranking: Ranking) -> Self {
        let used = Resources::default();
        Self { total, used, queries: BTreeMap::new(), ops: BTreeMap::new(), policies, ranking, next: 0 }
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What all queries together may use.
    pub(super) fn total(&self) -> &Resources {
        &self.total
    }

    /// Changes what there is and how it is divided, for running queries too.
    pub(super) fn configure(&mut self, total: Resources, policies: Vec<Arc<dyn BackpressurePolicy>>, ranking: Ranking) {
        (self.total, self.policies, self.ranking) = (total, policies, ranking);
        self.queries.values_mut().for_each(|query| query.stale = true);
    }

    /// Adds an operator to a query, which begins with its first. What a task needs is at most what there is of CPUs and
    /// memory: a task that could never start is no use. Other resources that are not there are an error: the name, what
    /// is wanted and what there is.
    pub(super) fn add(
        &mut self,
        query: u64,
        limits: &Resources,
        mut spec: OpSpec,
        now: Duration,
    ) -> std::result::Result<OpId, Lacking> {
        let most = self.total.least(limits);
        spec.needs.milli_cpus = spec.needs.milli_cpus.min(most.milli_cpus);
        spec.needs.memory = spec.needs.memory.min(most.memory);
        spec.needs.object_store_memory = 0;
        let most = Resources { custom: self.total.custom.clone(), ..most };
        if let Some(lacking) = spec.needs.lacking(&most) {
            return Err(lacking);
        }
        let id = OpId(self.next_number());
        let begun = || Query {
            limits: limits.clone(),
            used: Resources::default(),
            ops: Vec::new(),
            progress: now,
            last_grant: 0,
            stale: true,
        };
        self.queries.entry(query).or_insert_with(begun).ops.push(id);
        self.ops.insert(id, Op::new(query, spec, now));
        self.connect(query);
        Ok(id)
    }

    /// Finds how far each operator of a query is from the end of the plan.
    fn connect(&mut self, query: u64) {
        let ids = self.queries.get(&query).map_or(Vec::new(), |q| q.ops.clone());
        for id in &ids {
            let mut depth = 0;
            let mut at = *id;
            while let Some(consumer) = self.ops.get(&at).and_then(|op| op.spec.consumer).filter(|_| depth < ids.len()) {
                depth += 1;
                at = consumer;
            }
            if let Some(op) = self.ops.get_mut(id) {
                op.depth = depth;
            }
        }
    }

    /// Removes an operator that ended or was cancelled, with whatever it still had. Its tasks must have gone.
    pub(super) fn remove(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else {
            return;
        };
        for other in self.ops.values_mut().filter(|other| other.spec.consumer == Some(id)) {
            other.spec.consumer = None;
        }
        self.give_back(op.query, &op.spec.needs.times(op.running as u64));
        let Some(query) = self.queries.get_mut(&op.query) else {
            return;
        };
        query.ops.retain(|other| *other != id);
        query.stale = true;
        if query.ops.is_empty() {
            self.queries.remove(&op.query);
        }
    }

    fn give_back(&mut self, query: u64, resources: &Resources) {
        self.used = self.used.minus(resources);
        if let Some(query) = self.queries.get_mut(&query) {
            query.used = query.used.minus(resources);
            query.stale = true;
        }
    }

    /// Divides a query's resources among its operators, if anything has changed.
    fn divide(&mut self, query: u64) {
        let Some(found) = self.queries.get_mut(&query).filter(|query| query.stale) else {
            return;
        };
        found.stale = false;
        let limits = self.total.amounts().least(found.limits.amounts());
        let limits = limits.with_bytes(limits.part(STORE_PART).bytes());
        let mut ids = found.ops.clone();
        // From the sources on.
        ids.sort_by_key(|id| std::cmp::Reverse(self.ops[id].depth));
        let demands: Vec<_> = ids.iter().map(|id| self.ops[id].demand()).collect();
        for (id, budget) in ids.iter().zip(allocate(limits, &demands)) {
            if let Some(op) = self.ops.get_mut(id) {
                op.budget = budget;
            }
        }
    }

    fn with_op(&mut self, id: OpId, now: Duration, f: impl FnOnce(&mut Op)) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.touch(now);
            f(op);
        }
    }

    fn progress(&mut self, id: OpId, now: Duration) {
        if let Some(query) = self.ops.get(&id).and_then(|op| self.queries.get_mut(&op.query)) {
            query.progress = now;
            query.stale = true;
        }
    }

    /// A worker of the operator asks to start a task, whose input is there.
    pub(super) fn ask_start(&mut self, id: OpId, now: Duration) -> Ticket {
        let ticket = Ticket(self.next_number());
        self.with_op(id, now, |op| op.waiting.push_back(ticket));
        ticket
    }

    /// A running task gives up its resources, since nobody wants its next block yet.
    pub(super) fn pause(&mut self, id: OpId, now: Duration) {
        let mut freed = None;
        self.with_op(id, now, |op| {
            op.running -= 1;
            op.idle_since = now;
            freed = Some((op.query, op.spec.needs.clone()));
        });
        if let Some((query, needs)) = freed {
            self.give_back(query, &needs);
        }
    }

    /// A running task gives up its resources, since other stages have not made its input yet: they may need them.
    pub(super) fn await_input(&mut self, id: OpId, now: Duration) {
        self.pause(id, now);
        self.with_op(id, now, |op| op.awaiting_input += 1);
    }

    /// A task that waited for its input has some, or ended.
    pub(super) fn input_came(&mut self, id: OpId, now: Duration) {
        self.with_op(id, now, |op| op.awaiting_input -= 1);
    }

    /// A paused task asks to go on. `urgent` if everybody waits for its next block.
    pub(super) fn ask_resume(&mut self, id: OpId, urgent: bool, now: Duration) -> Ticket {
        let ticket = Ticket(self.next_number());
        self.with_op(id, now, |op| if urgent { op.urgent.push_back(ticket) } else { op.parked.push_back(ticket) });
        ticket
    }

    /// What the actors of an operator do now.
    pub(super) fn pool_is(&mut self, id: OpId, state: PoolState, now: Duration) {
        let mut changed = None;
        self.with_op(id, now, |op| {
            if let Some(pool) = &mut op.pool {
                changed = (pool.state.ready != state.ready).then_some(op.query);
                pool.state = state;
            }
        });
        // How many tasks it can run is what its budget is of.
        if let Some(query) = changed.and_then(|query| self.queries.get_mut(&query)) {
            query.stale = true;
        }
    }

    /// By how many actors the operator's pool should grow, or shrink if it is negative. Who asks has to do it.
    pub(super) fn pool_change(&mut self, id: OpId, now: Duration) -> isize {
        let queued = OpView::new(id, &self.ops).inputs().map(|input| input.op().queued_blocks).sum();
        let Some(pool) = self.ops.get(&id).and_then(|op| op.pool.as_ref()) else {
            return 0;
        };
        // What there is room for only matters to a pool that would grow.
        let room = if pool.wants_more(queued, now) { self.room_for_actors(id) } else { usize::MAX };
        self.ops.get_mut(&id).and_then(|op| op.pool.as_mut()).map_or(0, |pool| pool.change(queued, room, now))
    }

    /// Actors of an operator for which there are resources, and which it could keep busy: more than the slowest
    /// operator of the plan can follow are no use.
    fn room_for_actors(&self, id: OpId) -> usize {
        let Some((op, query)) = self.ops.get(&id).and_then(|op| Some((op, self.queries.get(&op.query)?))) else {
            return 0;
        };
        let limits = self.total.amounts().least(query.limits.amounts());
        let fits = limits.0.iter().zip(op.spec.needs.amounts().0).filter(|(_, needed)| *needed > 0);
        let named = op.spec.needs.custom.iter().filter(|(_, needed)| **needed > 0);
        let named = named.map(|(name, needed)| self.total.named(name) / needed);
        let room =
            fits.map(|(limit, needed)| limit / needed).chain(named).min().map_or(usize::MAX, |room| room as usize);
        let loads: Option<Vec<_>> = query.ops.iter().map(|id| self.load(*id)).collect();
        let place = query.ops.iter().position(|other| *other == id);
        let slots = loads.zip(place).map(|(loads, place)| slots(limits, &loads)[place]);
        slots.filter(|slots| slots.is_finite()).map_or(room, |slots| room.min(slots.ceil() as usize)).max(1)
    }

    /// What a unit of the plan's work costs an operator, once that is known: the unit is a task of the source.
    fn load(&self, id: OpId) -> Option<Load> {
        let op = &self.ops[&id];
        let mut units = op.finished as f64;
        let mut at = OpView::new(id, &self.ops);
        for _ in 0..self.ops.len() {
            let Some(input) = at.inputs().next() else { break };
            let (blocks, tasks) = (input.op().produced_blocks as f64, input.op().finished as f64);
            units *= if blocks > 0.0 { tasks / blocks } else { 0.0 };
            at = input;
        }
        let most = op.spec.pool.map_or(op.spec.max_tasks, |pool| pool.max);
        let task = op.spec.needs.amounts();
        (units > 0.0).then(|| Load { work: op.task_time.as_secs_f64() / units, task, most })
    }

    /// Nobody waits for this ticket any more.
    pub(super) fn withdraw(&mut self, id: OpId, ticket: Ticket, now: Duration) {
        self.with_op(id, now, |op| {
            op.waiting.retain(|t| *t != ticket);
            op.parked.retain(|t| *t != ticket);
            op.urgent.retain(|t| *t != ticket);
        });
    }

    /// A paused task ended.
    pub(super) fn abandoned(&mut self, id: OpId, now: Duration) {
        self.with_op(id, now, |op| op.finished += 1);
        self.progress(id, now);
    }

    /// Whether a running task may give its next block now, rather than park.
    pub(super) fn may_give(&mut self, id: OpId) -> bool {
        if let Some(query) = self.ops.get(&id).map(|op| op.query) {
            self.divide(query);
        }
        let view = OpView::new(id, &self.ops);
        self.ops.contains_key(&id) && self.output_refusal(view).is_none()
    }

    /// A task gave a block to the out queue.
    pub(super) fn produced(&mut self, id: OpId, bytes: u64, now: Duration) {
        self.with_op(id, now, |op| {
            op.produced_blocks += 1;
            op.produced_bytes += bytes;
            op.queued_blocks += 1;
            op.queued_bytes += bytes;
            op.last_output = now;
        });
        self.progress(id, now);
    }

    /// The consumer took a block from the out queue.
    pub(super) fn taken(&mut self, id: OpId, bytes: u64, now: Duration) {
        self.with_op(id, now, |op| {
            op.queued_blocks = op.queued_blocks.saturating_sub(1);
            op.queued_bytes = op.queued_bytes.saturating_sub(bytes);
            op.held_bytes += bytes;
        });
        self.progress(id, now);
    }

    /// A block that was taken is no longer held.
    pub(super) fn freed(&mut self, id: OpId, bytes: u64, now: Duration) {
        self.with_op(id, now, |op| op.held_bytes = op.held_bytes.saturating_sub(bytes));
        self.progress(id, now);
    }

    /// Somebody outside waits for the operator's next block, or no longer does.
    pub(super) fn consumer_waits(&mut self, id: OpId, waits: bool, now: Duration) {
        self.with_op(id, now, |op| op.consumer_waits = waits);
    }

    /// A running task ended, well or not.
    pub(super) fn finished(&mut self, id: OpId, now: Duration) {
        let mut freed = None;
        self.with_op(id, now, |op| {
            op.running -= 1;
            op.idle_since = now;
            op.finished += 1;
            freed = Some((op.query, op.spec.needs.clone()));
        });
        if let Some((query, needs)) = freed {
            self.give_back(query, &needs);
        }
        self.progress(id, now);
    }
}
