//! What the scheduler knows of an operator.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::allocator::{Allowance, Demand};
use super::pool::{Pool, PoolSpec};
use super::resources::Resources;

/// An operator of a running query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(super) u64);

/// A worker that waits until it may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(super) u64);

/// What is said of an operator when it is added.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpSpec {
    /// What people call it, like `ReadParquet->MapBatches(f)`.
    pub(crate) name: String,
    /// What one task needs.
    pub(crate) needs: Resources,
    /// The most tasks that may run at once.
    pub(crate) max_tasks: Option<usize>,
    /// Who takes its blocks; `None` for somebody whom the scheduler does not know.
    pub(crate) consumer: Option<OpId>,
    /// Whether an all-to-all operator takes its blocks, which wants all of them before it gives any.
    pub(crate) feeds_all_to_all: bool,
    /// The actors that run its tasks, if it has such.
    pub(crate) pool: Option<PoolSpec>,
    /// Whether it may wait for what nobody here knows of, such as a table of somebody else.
    pub(crate) waits_outside: bool,
}

/// Why an operator does not start more tasks than it has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// There is nothing to work on, or what there is comes from stages that have not given it yet.
    Input,
    /// Its tasks, or those of others, have what it needs.
    Resources(String),
    /// The policy of this name holds it back.
    Backpressure(&'static str),
    /// Its blocks are not taken.
    Consumer,
    /// Its actors work, or are being built.
    Actors,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input => write!(f, "waiting for input"),
            Self::Resources(name) => write!(f, "waiting for {name}"),
            Self::Backpressure(policy) => write!(f, "backpressured by {policy}"),
            Self::Consumer => write!(f, "waiting for the consumer"),
            Self::Actors => write!(f, "waiting for actors"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Op {
    pub(super) query: u64,
    pub(super) spec: OpSpec,
    /// Steps to the end of the plan.
    pub(super) depth: usize,
    /// Workers that want to start a task.
    pub(super) waiting: VecDeque<Ticket>,
    /// Workers in a task that gave up their resources until their block is wanted.
    pub(super) parked: VecDeque<Ticket>,
    /// Parked workers for whose block everybody waits.
    pub(super) urgent: VecDeque<Ticket>,
    /// Tasks that hold resources.
    pub(super) running: usize,
    /// Tasks that gave up their resources until their input is there.
    pub(super) awaiting_input: usize,
    pub(super) started: usize,
    pub(super) finished: usize,
    pub(super) produced_blocks: usize,
    pub(super) produced_bytes: u64,
    /// Blocks in its out queue.
    pub(super) queued_blocks: usize,
    pub(super) queued_bytes: u64,
    /// Bytes of its blocks that were taken and are still held.
    pub(super) held_bytes: u64,
    /// Whether somebody outside waits for a block.
    pub(super) consumer_waits: bool,
    pub(super) budget: Allowance,
    pub(super) last_output: Duration,
    /// Why it waits, as of the last look.
    pub(super) wait: Option<Wait>,
    pub(super) since: Duration,
    /// Time in which it ran nothing, by the reason.
    pub(super) waited: BTreeMap<Wait, Duration>,
    /// Time in which tasks ran.
    pub(super) ran: Duration,
    /// The same, counted once for each of them.
    pub(super) task_time: Duration,
    /// Time in which a policy held it back, whether or not it ran something.
    pub(super) held_back: BTreeMap<&'static str, Duration>,
    /// The most tasks that ran at once.
    pub(super) max_running: usize,
    /// When it last ran something, while it runs nothing.
    pub(super) idle_since: Duration,
    pub(super) pool: Option<Pool>,
}

impl Op {
    pub(super) fn new(query: u64, spec: OpSpec, now: Duration) -> Self {
        Self {
            query,
            pool: spec.pool.map(Pool::new),
            spec,
            depth: 0,
            waiting: VecDeque::new(),
            parked: VecDeque::new(),
            urgent: VecDeque::new(),
            running: 0,
            awaiting_input: 0,
            started: 0,
            finished: 0,
            produced_blocks: 0,
            produced_bytes: 0,
            queued_blocks: 0,
            queued_bytes: 0,
            held_bytes: 0,
            consumer_waits: false,
            budget: Allowance::default(),
            last_output: now,
            wait: None,
            since: now,
            waited: BTreeMap::new(),
            ran: Duration::ZERO,
            held_back: BTreeMap::new(),
            max_running: 0,
            idle_since: now,
            task_time: Duration::ZERO,
        }
    }

    /// The most tasks that may run at once now.
    pub(super) fn max_tasks(&self) -> Option<usize> {
        let actors = self.pool.as_ref().map(|pool| pool.state.ready);
        [self.spec.max_tasks, actors].into_iter().flatten().min()
    }

    /// Tasks that have begun and not ended.
    pub(super) fn open(&self) -> usize {
        self.started - self.finished
    }

    pub(super) fn output_bytes(&self) -> u64 {
        self.queued_bytes + self.held_bytes
    }

    /// Bytes of a block, as far as is known; 0 before the first.
    pub(super) fn mean_block_bytes(&self) -> u64 {
        self.produced_bytes / self.produced_blocks.max(1) as u64
    }

    /// What a task is expected to give without being held back: at most two blocks wait in it.
    pub(super) fn task_bytes(&self) -> u64 {
        let blocks = self.produced_blocks as f64 / self.finished.max(1) as f64;
        (self.mean_block_bytes() as f64 * blocks.min(2.0)) as u64
    }

    pub(super) fn demand(&self) -> Demand {
        Demand {
            task: self.spec.needs.amounts(),
            max_tasks: self.max_tasks(),
            used: self.spec.needs.amounts().times(self.running as u64),
            pending_bytes: self.task_bytes() * self.open() as u64,
            output_bytes: self.output_bytes(),
            is_unbounded: self.spec.feeds_all_to_all,
        }
    }

    /// Counts the time since the last change for what it was doing.
    pub(super) fn touch(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.since);
        self.since = now;
        if let Some(Wait::Backpressure(policy)) = self.wait {
            *self.held_back.entry(policy).or_default() += passed;
        }
        if self.running > 0 {
            self.ran += passed;
            self.task_time += passed * self.running as u32;
        } else if let Some(wait) = &self.wait {
            *self.waited.entry(wait.clone()).or_default() += passed;
        }
    }
}

/// An operator of a running query, as policies see it.
#[derive(Debug, Clone, Copy)]
pub struct OpView<'a> {
    pub(super) id: OpId,
    pub(super) ops: &'a BTreeMap<OpId, Op>,
    /// Whether nobody else would use what is free of CPUs and GPUs.
    idle: bool,
}

impl<'a> OpView<'a> {
    pub(super) fn new(id: OpId, ops: &'a BTreeMap<OpId, Op>) -> Self {
        Self { id, ops, idle: false }
    }

    /// The same operator where nobody else asks for the CPUs and GPUs that are free.
    pub(super) fn with_idle_processors(self) -> Self {
        Self { idle: true, ..self }
    }

    pub(super) fn op(&self) -> &'a Op {
        &self.ops[&self.id]
    }

    /// The operator.
    pub fn id(&self) -> OpId {
        self.id
    }

    /// What people call it.
    pub fn name(&self) -> &'a str {
        &self.op().spec.name
    }

    /// What one task needs.
    pub fn needs(&self) -> &'a Resources {
        &self.op().spec.needs
    }

    /// Tasks that have begun and not ended.
    pub fn open_tasks(&self) -> usize {
        self.op().open()
    }

    /// The most tasks that may run at once.
    pub fn max_tasks(&self) -> Option<usize> {
        self.op().max_tasks()
    }

    /// Blocks that wait for it.
    pub fn input_blocks(&self) -> usize {
        self.inputs().map(|input| input.op().queued_blocks).sum()
    }

    /// Bytes of blocks that wait for it.
    pub fn input_bytes(&self) -> u64 {
        self.inputs().map(|input| input.op().queued_bytes).sum()
    }

    /// Bytes in its out queue.
    pub fn queued_bytes(&self) -> u64 {
        self.op().queued_bytes
    }

    /// Bytes of its blocks that a consumer works on.
    pub fn taken_bytes(&self) -> u64 {
        self.op().held_bytes
    }

    /// Bytes that a task is expected to give at once; 0 before the first has ended.
    pub fn task_bytes(&self) -> u64 {
        self.op().task_bytes()
    }

    /// Whether one more task is within what the operator may use, by the reservation of resources. CPUs and GPUs that
    /// are reserved for others count only if these ask for them: they are free again when the task ends, while memory
    /// is held.
    pub fn task_is_within_budget(&self) -> bool {
        let op = self.op();
        let needed = op.spec.needs.amounts().with_bytes(op.task_bytes());
        let needed = if self.idle { needed.without_processors() } else { needed };
        needed.fits(op.budget.tasks)
    }

    /// Bytes that its tasks may give, by the reservation of resources.
    pub fn output_budget(&self) -> u64 {
        self.op().budget.output_bytes
    }

    /// The part of all bytes that it may use which it uses.
    pub fn utilization(&self) -> f64 {
        let op = self.op();
        match op.budget.total_bytes {
            0 => 1.0,
            total => 1.0 - (op.budget.output_bytes as f64 / total as f64).min(1.0),
        }
    }

    /// Whether what takes its blocks wants all of them first.
    pub fn feeds_all_to_all(&self) -> bool {
        self.op().spec.feeds_all_to_all
    }

    /// Who takes its blocks; `None` for somebody outside the scheduler.
    pub fn consumer(&self) -> Option<OpView<'a>> {
        self.op().spec.consumer.map(|id| OpView::new(id, self.ops))
    }

    /// Operators whose blocks it takes.
    pub fn inputs(&self) -> impl Iterator<Item = OpView<'a>> + use<'a> {
        let (me, ops) = (self.id, self.ops);
        let inputs = ops.iter().filter(move |(_, op)| op.spec.consumer == Some(me));
        inputs.map(move |(id, _)| OpView::new(*id, ops))
    }
}
