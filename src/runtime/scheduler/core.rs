//! The decisions, without threads or a clock: events go in, grants come out. The simulation drives the same code.
//!
//! A worker asks before it starts a task, and before it goes on with one that gave up its resources. Among those who ask,
//!
//! 1. the operator has resources free, of all queries and of its own,
//! 2. no policy holds it back,
//! 3. and the one with the shortest out queue comes first; queries take turns by the CPUs that they have.
//!
//! **Nothing ever stalls.** Tasks that run depend on nobody: while a task waits until its block is wanted, or until another
//! stage has made its input, it holds no resources. So when nothing of a query runs, what it waits for cannot come from
//! within, and the first of those who ask goes on whatever the policies say (Ray's guard, 3.4). A task whose block everybody
//! waits for, because it is next in order, goes on as soon as there are resources, and so does one whose input has come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;

use super::allocator::allocate;
use super::op::{Op, OpId, OpSpec, OpView, Ticket, Wait};
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
/// An operator that has given nothing for this long may give a block.
const IDLE: Duration = Duration::from_secs(10);

/// A query in which nothing has been under way for so long will never end. What is under way is seen at once, so this is for
/// clocks that jump and machines that halt.
const STILL: Duration = Duration::from_secs(10);

/// What an operator waits for of which nobody asks for anything that it could get.
fn idle_wait(op: &Op) -> Wait {
    let waits_for_actors = op.pool.as_ref().is_some_and(|pool| pool.state.in_flight > op.open());
    if waits_for_actors && op.most_tasks().is_some_and(|most| op.open() >= most) {
        Wait::Actors
    } else if op.open() > op.running + op.awaiting_input {
        // Tasks that neither run nor ask nor wait for their input wait until their blocks are taken.
        Wait::Consumer
    } else {
        Wait::Input
    }
}

/// A resource that is missing, how much of it is wanted, and how much there is.
pub(super) type Lacking = (String, u64, u64);

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

/// What a query waits for, for people.
#[derive(Debug, Clone)]
pub(crate) struct OpStatus {
    pub(crate) query: u64,
    /// Who takes its blocks, where the scheduler knows.
    pub(crate) consumer: Option<OpId>,
    /// Time in which policies held it back, whether or not it ran something meanwhile.
    pub(crate) held_back: BTreeMap<&'static str, Duration>,
    /// The most tasks that ran at once.
    pub(crate) most_running: usize,
    /// For how long it has run nothing.
    pub(crate) idle: Duration,
    pub(crate) name: String,
    pub(crate) needs: Resources,
    pub(crate) running: usize,
    pub(crate) paused: usize,
    pub(crate) waiting: usize,
    pub(crate) finished: usize,
    pub(crate) produced_blocks: usize,
    pub(crate) produced_bytes: u64,
    pub(crate) queued_blocks: usize,
    pub(crate) queued_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) actors: Option<PoolState>,
    pub(crate) wait: Option<Wait>,
    pub(crate) ran: Duration,
    pub(crate) waited: BTreeMap<Wait, Duration>,
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

    /// Actors of an operator for which there are resources, and which it could keep busy: more than the slowest operator of
    /// the plan can follow are no use.
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

    /// The next worker that may go on, as long as there is one.
    pub(super) fn next_grant(&mut self, now: Duration) -> Option<(OpId, Ticket)> {
        let mut queries: Vec<_> = self.queries.iter().map(|(id, q)| (q.used.milli_cpus, q.last_grant, *id)).collect();
        // None starves: the one that has least comes first, and then the one that waits longest.
        queries.sort_unstable();
        queries.into_iter().find_map(|(.., query)| self.next_grant_of(query, now))
    }

    fn next_grant_of(&mut self, query: u64, now: Duration) -> Option<(OpId, Ticket)> {
        let ids = self.queries.get(&query)?.ops.clone();
        // How many tasks an operator has at most is a promise, which nothing overrides.
        let may_start = |op: &Op| !op.waiting.is_empty() && op.most_tasks().is_none_or(|most| op.open() < most);
        let asking = |op: &Op| may_start(op) || !op.parked.is_empty() || !op.urgent.is_empty();
        // Urgent, rank, depth, start rather than resume.
        if ids.iter().any(|id| asking(&self.ops[id])) {
            self.divide(query);
        }
        let mut best: Option<((bool, u64, usize, bool), OpId)> = None;
        // What may only start because nobody else uses the processors.
        let mut idle: Option<((u64, usize), OpId)> = None;
        let mut first: Option<((u64, usize, bool), OpId)> = None;
        let mut waits = Vec::new();
        for id in &ids {
            let op = &self.ops[id];
            if !asking(op) {
                waits.push((*id, Some(idle_wait(op))));
                continue;
            }
            if let Some(lacking) = self.lacking(op) {
                waits.push((*id, Some(Wait::Resources(lacking))));
                continue;
            }
            let view = OpView::new(*id, &self.ops);
            let rank = self.rank(op);
            let starts = op.urgent.is_empty() && op.parked.is_empty();
            if self.is_wanted(op) && first.is_none_or(|(key, _)| (rank, op.depth, starts) < key) {
                first = Some(((rank, op.depth, starts), *id));
            }
            // What is parked goes first: a task that ends frees its input.
            let refusals = [
                (!op.urgent.is_empty()).then_some(None),
                (!op.parked.is_empty()).then(|| self.output_refusal(view)),
                may_start(op).then(|| self.start_refusal(view)),
            ];
            let granted = refusals.iter().position(|refusal| *refusal == Some(None));
            match granted {
                Some(place) => {
                    waits.push((*id, None));
                    let key = (place > 0, rank, op.depth, place == 2);
                    if best.is_none_or(|(other, _)| key < other) {
                        best = Some((key, *id));
                    }
                }
                None => {
                    let may_start = may_start(op) && self.start_refusal(view.with_idle_processors()).is_none();
                    if may_start && idle.is_none_or(|(key, _)| (rank, op.depth) < key) {
                        idle = Some(((rank, op.depth), *id));
                    }
                    waits.push((*id, refusals.into_iter().flatten().flatten().next()));
                }
            }
        }
        let granted = best.map(|((.., start), id)| (start, id)).or(idle.map(|(_, id)| (true, id)));
        for (id, wait) in waits {
            self.note_wait(id, wait.filter(|_| granted.is_none_or(|(_, granted)| granted != id)), now);
        }
        if let Some((start, id)) = granted {
            return self.grant(id, start, now);
        }
        // Nothing of the query runs, so nothing would ever change: policies give way.
        let runs = ids.iter().any(|id| self.ops[id].running > 0);
        let ((.., start), id) = first.filter(|_| !runs)?;
        self.grant(id, start, now)
    }

    fn note_wait(&mut self, id: OpId, wait: Option<Wait>, now: Duration) {
        if let Some(op) = self.ops.get_mut(&id).filter(|op| op.wait != wait) {
            op.touch(now);
            op.wait = wait;
        }
    }

    fn grant(&mut self, id: OpId, start: bool, now: Duration) -> Option<(OpId, Ticket)> {
        let op = self.ops.get_mut(&id)?;
        op.touch(now);
        let ticket = match start {
            true => op.waiting.pop_front(),
            false => op.urgent.pop_front().or_else(|| op.parked.pop_front()),
        }?;
        op.started += usize::from(start);
        op.running += 1;
        op.most_running = op.most_running.max(op.running);
        let (query, needs) = (op.query, op.spec.needs.clone());
        self.used = self.used.plus(&needs);
        let grants = self.next_number();
        if let Some(query) = self.queries.get_mut(&query) {
            query.used = query.used.plus(&needs);
            query.progress = now;
            query.last_grant = grants;
            query.stale = true;
        }
        Some((id, ticket))
    }

    fn rank(&self, op: &Op) -> u64 {
        match self.ranking {
            Ranking::OutQueue => op.queued_bytes,
            Ranking::Memory => op.output_bytes() + op.task_bytes() * op.open() as u64,
        }
    }

    /// Whether somebody waits for what comes of the operator in the end.
    fn is_wanted(&self, op: &Op) -> bool {
        let mut at = op;
        for _ in 0..=self.ops.len() {
            match at.spec.consumer.and_then(|consumer| self.ops.get(&consumer)) {
                Some(consumer) => at = consumer,
                None => break,
            }
        }
        at.consumer_waits || at.spec.feeds_all_to_all
    }

    /// The resource that is missing for one more task.
    fn lacking(&self, op: &Op) -> Option<String> {
        let query = self.queries.get(&op.query)?;
        let own = Resources { custom: self.total.custom.clone(), ..query.limits.clone() };
        // There may be less than when the operator was added: a task then still runs, alone.
        let needs = Resources {
            milli_cpus: op.spec.needs.milli_cpus.min(self.total.milli_cpus),
            memory: op.spec.needs.memory.min(self.total.memory),
            ..op.spec.needs.clone()
        };
        let lacking = needs.lacking(&self.total.minus(&self.used));
        lacking.or_else(|| needs.lacking(&own.minus(&query.used))).map(|(name, ..)| name)
    }

    /// An operator of a query whose tasks ask for what there is no longer, however long they wait: its name, and what
    /// it lacks.
    pub(super) fn impossible(&self, query: u64) -> Option<(String, Lacking)> {
        let asks = |op: &&Op| !op.waiting.is_empty() || !op.parked.is_empty() || !op.urgent.is_empty();
        let mut ops = self.ops.values().filter(|op| op.query == query).filter(asks);
        ops.find_map(|op| {
            let needs = Resources { milli_cpus: 0, memory: 0, ..op.spec.needs.clone() };
            needs.lacking(&self.total).map(|lacking| (op.spec.name.clone(), lacking))
        })
    }

    fn start_refusal(&self, view: OpView<'_>) -> Option<Wait> {
        let refused = self.policies.iter().find(|policy| !policy.can_start(view));
        refused.map(|policy| Wait::Backpressure(policy.name()))
    }

    /// Why the operator's tasks may give nothing.
    fn output_refusal(&self, view: OpView<'_>) -> Option<Wait> {
        let refused = self.policies.iter().find(|policy| policy.output_bytes(view) == Some(0))?;
        let op = view.op();
        let starving = match view.consumer() {
            None => op.consumer_waits && op.queued_blocks == 0,
            Some(consumer) => consumer.open_tasks() == 0 && op.queued_blocks == 0,
        };
        let idle = op.since.saturating_sub(op.last_output) > IDLE && op.queued_blocks == 0;
        (!starving && !idle).then(|| Wait::Backpressure(refused.name()))
    }

    /// Whether any task of a query runs.
    pub(super) fn runs(&self, query: u64) -> bool {
        self.ops.values().any(|op| op.query == query && op.running > 0)
    }

    /// For how long a query has waited for nothing but itself, where that is so: all that it reads is known here, its
    /// blocks are waited for, and for so long nothing has come. `quiet` is the time in which nothing was under way elsewhere.
    pub(super) fn waits_for_itself(&self, query: u64, quiet: Duration, now: Duration) -> Option<Duration> {
        let is_closed = |op: &Op| !op.spec.waits_outside && (op.spec.consumer.is_some() || op.consumer_waits);
        let waits = now.saturating_sub(self.last_progress(query)?).min(quiet);
        let all_closed = self.ops.values().filter(|op| op.query == query).all(is_closed);
        (waits >= STILL && all_closed).then_some(waits)
    }

    /// When something last happened in a query.
    pub(super) fn last_progress(&self, query: u64) -> Option<Duration> {
        self.queries.get(&query).map(|query| query.progress)
    }

    /// The operators of all queries as they stand.
    pub(super) fn statuses(&self, now: Duration) -> Vec<OpStatus> {
        self.ops.keys().filter_map(|id| self.status(*id, now)).collect()
    }

    /// An operator as it stands.
    pub(super) fn status(&self, id: OpId, now: Duration) -> Option<OpStatus> {
        let status = |op: &Op| {
            let passed = now.saturating_sub(op.since);
            let (mut ran, mut waited, mut held_back) = (op.ran, op.waited.clone(), op.held_back.clone());
            match &op.wait {
                _ if op.running > 0 => ran += passed,
                Some(wait) => *waited.entry(wait.clone()).or_default() += passed,
                None => {}
            }
            if let Some(Wait::Backpressure(policy)) = op.wait {
                *held_back.entry(policy).or_default() += passed;
            }
            OpStatus {
                query: op.query,
                consumer: op.spec.consumer,
                held_back,
                most_running: op.most_running,
                idle: if op.running > 0 { Duration::ZERO } else { now.saturating_sub(op.idle_since) },
                name: op.spec.name.clone(),
                needs: op.spec.needs.clone(),
                running: op.running,
                paused: op.open() - op.running,
                waiting: op.waiting.len(),
                finished: op.finished,
                produced_blocks: op.produced_blocks,
                produced_bytes: op.produced_bytes,
                queued_blocks: op.queued_blocks,
                queued_bytes: op.queued_bytes,
                held_bytes: op.held_bytes,
                actors: op.pool.as_ref().map(|pool| pool.state),
                wait: op.wait.clone(),
                ran,
                waited,
            }
        };
        self.ops.get(&id).map(status)
    }

    /// What each operator of a query waits for, as one line.
    pub(super) fn explain(&self, query: u64, now: Duration) -> String {
        let of_query = self.statuses(now).into_iter().filter(|op| op.query == query);
        let parts: Vec<_> = of_query
            .map(|op| {
                let wait =
                    op.wait.as_ref().filter(|_| op.running == 0).map_or("running".to_owned(), ToString::to_string);
                let queued = op.queued_blocks;
                format!(
                    "{} is {wait} ({} tasks run, {} are paused, {} ask, {queued} blocks queued)",
                    op.name, op.running, op.paused, op.waiting
                )
            })
            .collect();
        format!("{}; free: {} of {}", parts.join("; "), self.total.minus(&self.used), self.total)
    }
}
