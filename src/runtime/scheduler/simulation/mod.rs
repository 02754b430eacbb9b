//! The scheduler under a virtual clock: random plans, resources, block sizes, speeds, failures and consumers.
//! Everything follows from the seed, so that a seed that fails shows the same again.

mod barriers;
mod scenarios;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use self::barriers::{Below, Leaf};
use super::core::{Core, Ranking};
use super::op::{OpId, OpSpec, Ticket};
use super::policies::BackpressurePolicy;
use super::pool::{PoolSpec, PoolState};
use super::resources::Resources;
use crate::block::{TaskId, mix};
use crate::runtime::out_queue::OutQueue;

/// Blocks of a task that may wait without being taken.
const UNTAKEN: usize = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % n.max(1)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How an operator behaves.
#[derive(Debug, Clone)]
struct Stage {
    /// Places of its inputs in the plan; a source has none.
    inputs: Vec<usize>,
    /// Tasks of a source, an exchange or a plan.
    tasks: usize,
    leaf: Leaf,
    max_tasks: Option<usize>,
    needs: Resources,
    /// The most blocks that a task gives.
    fan_out: u64,
    /// Of how many tasks one gives nothing.
    drops_one_in: u64,
    /// Of how many tasks one fails and begins again.
    fails_one_in: u64,
    max_bytes: u64,
    max_micros: u64,
    feeds_all_to_all: bool,
    pool: Option<PoolSpec>,
    /// Time until an actor is ready.
    build_micros: u64,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            inputs: Vec::new(),
            tasks: 0,
            leaf: Leaf::Blocks,
            max_tasks: None,
            needs: cpus(1000),
            fan_out: 1,
            drops_one_in: u64::MAX,
            fails_one_in: u64::MAX,
            max_bytes: 100,
            max_micros: 100,
            feeds_all_to_all: false,
            pool: None,
            build_micros: 0,
        }
    }
}

/// How the consumer of a plan behaves.
#[derive(Debug, Clone, Copy, Default)]
struct Consumer {
    /// Time between a block and the wish for the next.
    micros: u64,
    /// Blocks after which it hangs up.
    hangs_up_after: Option<usize>,
    /// Blocks after which it takes no more, but stays.
    stops_after: Option<usize>,
}

/// A plan: its last stage is the one whose blocks the consumer takes.
#[derive(Debug, Clone)]
struct Plan {
    stages: Vec<Stage>,
    ordered: bool,
    limits: Resources,
    consumer: Consumer,
}

fn cpus(milli_cpus: u64) -> Resources {
    Resources { milli_cpus, ..Resources::default() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SimBlock {
    /// The rows that it came from.
    first_row: u64,
    rows: u64,
    bytes: u64,
}

#[derive(Debug)]
struct SimTask {
    /// The operator whose block it works on, and its bytes.
    input: Option<(usize, u64)>,
    blocks: VecDeque<SimBlock>,
    given: usize,
    fails: bool,
    /// Why it waits, if it does.
    paused: Option<Pause>,
    is_urgent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Its blocks have to be taken first.
    Untaken,
    Asks(Ticket),
    /// Stages below have to make its input first.
    Input,
    /// It has input, and asks to work on it.
    HasInput(Ticket),
}

struct SimOp {
    id: OpId,
    stage: Stage,
    next_task: usize,
    below: Below,
    asks: Option<Ticket>,
    queue: OutQueue<TaskId, SimBlock>,
    tasks: BTreeMap<TaskId, SimTask>,
    max_open: usize,
    actors: PoolState,
    max_actors: usize,
    /// Whether it is going to look whether to shrink, and how often it has done so since its last task began.
    looks: bool,
    looked: usize,
}

struct SimQuery {
    number: u64,
    plan: Plan,
    ops: Vec<SimOp>,
    /// Whether the consumer wants a block now.
    wants: bool,
    taken: Vec<SimBlock>,
    dropped_rows: u64,
    ended: bool,
    ended_at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A task has made its next block, or ended.
    Step {
        query: usize,
        op: usize,
        task: TaskId,
    },
    Wants {
        query: usize,
    },
    /// An actor is built.
    Built {
        query: usize,
        op: usize,
    },
    /// A pool looks whether it should shrink.
    Looks {
        query: usize,
        op: usize,
    },
}

struct World {
    core: Core,
    random: Random,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queries: Vec<SimQuery>,
    peak_bytes: u64,
    grants: usize,
    /// Whether tasks keep what they have while they wait for their input, which stalls.
    holds_while_waiting: bool,
}

/// Rows of a source task; no block has less than one.
const ROWS: u64 = 24;

impl World {
    fn new(seed: u64, total: Resources, policies: Vec<Arc<dyn BackpressurePolicy>>, plans: Vec<Plan>) -> Self {
        let ranking = if seed.is_multiple_of(2) { Ranking::OutQueue } else { Ranking::Memory };
        let mut core = Core::new(total, policies, ranking);
        let mut queries = Vec::new();
        for (number, plan) in (1..).zip(plans) {
            // The consumer of a stage is added first, as plans are pulled from their end.
            let mut ids: Vec<Option<OpId>> = vec![None; plan.stages.len()];
            for (place, stage) in plan.stages.iter().enumerate().rev() {
                // What is between stages and is none of them is nobody whom the scheduler knows.
                let takes = |other: &Stage| other.inputs.contains(&place) && other.leaf == Leaf::Blocks;
                let consumer = plan.stages.iter().position(takes);
                ids[place] = Some({
                    let spec = OpSpec {
                        name: format!("stage of {number}"),
                        needs: stage.needs.clone(),
                        max_tasks: stage.max_tasks,
                        consumer: consumer.and_then(|consumer| ids[consumer]),
                        feeds_all_to_all: stage.feeds_all_to_all,
                        pool: stage.pool,
                        waits_outside: false,
                    };
                    core.add(number, &plan.limits, spec, Duration::ZERO).unwrap()
                });
            }
            let ids = ids.into_iter().flatten();
            let ops = plan.stages.iter().zip(ids).map(|(stage, id)| SimOp {
                id,
                stage: stage.clone(),
                next_task: 0,
                below: Below::new(stage.tasks),
                asks: None,
                queue: OutQueue::new(plan.ordered),
                tasks: BTreeMap::new(),
                max_open: 0,
                actors: PoolState::default(),
                max_actors: 0,
                looks: false,
                looked: 0,
            });
            let ops = ops.collect();
            queries.push(SimQuery {
                number,
                plan,
                ops,
                wants: false,
                taken: vec![],
                dropped_rows: 0,
                ended: false,
                ended_at: 0,
            });
        }
        let (events, random) = (BinaryHeap::new(), Random(seed));
        let mut world = Self {
            core,
            random,
            now: 0,
            sequence: 0,
            events,
            queries,
            peak_bytes: 0,
            grants: 0,
            holds_while_waiting: false,
        };
        (0..world.queries.len()).for_each(|query| world.at(0, Event::Wants { query }));
        world
    }

    fn at(&mut self, after: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + after, self.sequence, event)));
    }

    fn time(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        self.settle();
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                Event::Wants { query } => {
                    let query = &mut self.queries[query];
                    query.wants = !query.ended;
                    if let Some(last) = query.ops.last().filter(|_| query.wants) {
                        self.core.consumer_waits(last.id, true, Duration::from_micros(time));
                    }
                }
                Event::Step { query, op, task } => self.step(query, op, &task),
                Event::Built { query, op } => {
                    let actors = &mut self.queries[query].ops[op].actors;
                    // One that was given up meanwhile is not counted any more.
                    if actors.pending > 0 {
                        actors.pending -= 1;
                        actors.ready += 1;
                    }
                }
                Event::Looks { query, op } => self.queries[query].ops[op].looks = false,
            }
            self.settle();
        }
    }

    /// Everything that follows at once from what happened.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "it goes round: {}", self.core.explain(1, self.time()));
            let mut changed = false;
            for query in 0..self.queries.len() {
                changed |= self.consume(query);
                for op in 0..self.queries[query].ops.len() {
                    changed |= self.pull(query, op);
                    changed |= self.input_comes(query, op);
                    changed |= self.scale(query, op);
                    changed |= self.dispatch(query, op);
                    changed |= self.wake(query, op);
                }
            }
            while let Some((id, ticket)) = self.core.next_grant(self.time()) {
                changed = true;
                self.grants += 1;
                self.granted(id, ticket);
                if self.grants.is_multiple_of(7) {
                    self.check();
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn check(&mut self) {
        let statuses = self.core.statuses(self.time());
        let mut used = Resources::default();
        for op in &statuses {
            used = used.plus(&op.needs.times(op.running as u64));
        }
        assert!(used.fits(self.core.total()), "{used} of {}", self.core.total());
        for query in &self.queries {
            let mut used = Resources::default();
            for op in statuses.iter().filter(|op| op.query == query.number) {
                used = used.plus(&op.needs.times(op.running as u64));
            }
            let limits = Resources { custom: self.core.total().custom.clone(), ..query.plan.limits.clone() };
            assert!(used.fits(&limits), "{used} of {limits} in query {}", query.number);
        }
        let bytes = statuses.iter().map(|op| op.queued_bytes + op.held_bytes).sum();
        self.peak_bytes = self.peak_bytes.max(bytes);
    }

    /// The consumer takes a block if it wants one.
    fn consume(&mut self, query: usize) -> bool {
        let now = self.time();
        let q = &mut self.queries[query];
        if !q.wants || q.ended {
            return false;
        }
        let last = q.ops.len() - 1;
        let Some((_, block)) = q.ops[last].queue.pop() else {
            if self.is_over(query, last) {
                self.end(query);
            }
            return false;
        };
        let id = q.ops[last].id;
        q.wants = false;
        q.taken.push(block);
        let (taken, consumer) = (q.taken.len(), q.plan.consumer);
        self.core.consumer_waits(id, false, now);
        self.core.taken(id, block.bytes, now);
        self.core.freed(id, block.bytes, now);
        if consumer.hangs_up_after == Some(taken) {
            self.end(query);
        } else if consumer.stops_after != Some(taken) {
            let after = self.random.between(0, consumer.micros);
            self.at(after, Event::Wants { query });
        }
        true
    }

    fn is_over(&self, query: usize, op: usize) -> bool {
        let of = &self.queries[query].ops[op];
        of.queue.is_empty()
            && of.tasks.is_empty()
            && of.asks.is_none()
            && of.next_task >= of.stage.tasks
            && of.stage.inputs.iter().all(|input| self.is_over(query, *input))
    }

    /// Ends a query and frees all it has.
    fn end(&mut self, query: usize) {
        self.queries[query].ended = true;
        self.queries[query].ended_at = self.now;
        let ids: Vec<_> = self.queries[query].ops.iter().map(|op| op.id).collect();
        ids.into_iter().for_each(|id| self.core.remove(id));
    }

    /// The input from which the operator's next task would come.
    fn ready_input(&self, query: usize, op: usize) -> Option<usize> {
        let ops = &self.queries[query].ops;
        let ordered = self.queries[query].plan.ordered;
        if ops[op].stage.leaf != Leaf::Blocks {
            return None;
        }
        let mut inputs = ops[op].stage.inputs.iter().copied();
        match ordered {
            // The first that has not ended, which may have nothing yet.
            true => inputs.find(|input| !self.is_over(query, *input)).filter(|input| ops[*input].queue.is_ready()),
            false => inputs.find(|input| ops[*input].queue.is_ready()),
        }
    }

    /// Starts and ends actors as the scheduler says.
    fn scale(&mut self, query: usize, op: usize) -> bool {
        let now = self.time();
        let of = &self.queries[query].ops[op];
        let Some(spec) = of.stage.pool.filter(|_| !self.queries[query].ended) else {
            return false;
        };
        let inputs = of.stage.inputs.iter().filter(|_| of.stage.leaf == Leaf::Blocks);
        let waiting: usize = inputs.map(|input| self.queries[query].ops[*input].queue.len()).sum();
        let waiting = waiting + self.own_tasks(query, op);
        let capacity = of.actors.size().max(1) * spec.max_tasks_in_flight;
        let in_flight = (of.tasks.len() + waiting).min(capacity.max(of.tasks.len()));
        let input_ended = of.next_task >= of.stage.tasks
            && of.stage.inputs.iter().all(|input| self.is_over(query, *input))
            && in_flight == of.tasks.len();
        let state = PoolState { in_flight, input_ended, ..of.actors };
        self.core.pool_is(of.id, state, now);
        let change = self.core.pool_change(of.id, now);
        let build_micros = of.stage.build_micros;
        let of = &mut self.queries[query].ops[op];
        of.actors = state;
        if change > 0 {
            of.actors.pending += change as usize;
            of.max_actors = of.max_actors.max(of.actors.size());
            let most = spec.max.unwrap_or(usize::MAX).max(spec.min);
            assert!(of.actors.size() <= most, "{} actors of at most {most}", of.actors.size());
            (0..change).for_each(|_| self.at(build_micros, Event::Built { query, op }));
        } else if change < 0 {
            let gone = of.actors.pending.min(-change as usize);
            of.actors.pending -= gone;
            let idle = of.actors.ready - of.tasks.len();
            of.actors.ready -= idle.min(-change as usize - gone);
        }
        let of = &mut self.queries[query].ops[op];
        self.core.pool_is(of.id, of.actors, now);
        // Long enough to shrink.
        if !of.looks && of.looked < 2 {
            of.looks = true;
            of.looked += 1;
            self.at(10_000_000, Event::Looks { query, op });
        }
        change != 0
    }

    /// Asks for a task to start, if there is something to work on.
    fn dispatch(&mut self, query: usize, op: usize) -> bool {
        let now = self.time();
        let of = &self.queries[query].ops[op];
        let has_input = self.own_tasks(query, op) > 0 || self.ready_input(query, op).is_some();
        if self.queries[query].ended || of.asks.is_some() || !has_input {
            return false;
        }
        let ticket = self.core.ask_start(of.id, now);
        self.queries[query].ops[op].asks = Some(ticket);
        true
    }

    /// Lets paused tasks ask whose blocks have been taken, and those for which everybody waits ask first.
    fn wake(&mut self, query: usize, op: usize) -> bool {
        let now = self.time();
        let of = &mut self.queries[query].ops[op];
        let mut changed = false;
        for (task, state) in &mut of.tasks {
            let urgent = of.queue.waits_for(task);
            match state.paused {
                Some(Pause::Untaken) if of.queue.untaken(task) < UNTAKEN => {
                    state.is_urgent = urgent;
                    state.paused = Some(Pause::Asks(self.core.ask_resume(of.id, urgent, now)));
                    changed = true;
                }
                Some(Pause::Asks(ticket)) if urgent && !state.is_urgent => {
                    self.core.withdraw(of.id, ticket, now);
                    state.is_urgent = true;
                    state.paused = Some(Pause::Asks(self.core.ask_resume(of.id, true, now)));
                    changed = true;
                }
                _ => {}
            }
        }
        changed
    }

    fn granted(&mut self, id: OpId, ticket: Ticket) {
        let find = |query: &SimQuery| query.ops.iter().position(|op| op.id == id);
        let (query, op) = self.queries.iter().enumerate().find_map(|(q, query)| Some((q, find(query)?))).unwrap();
        if self.queries[query].ops[op].asks == Some(ticket) {
            self.queries[query].ops[op].asks = None;
            return self.start(query, op);
        }
        let tasks = &mut self.queries[query].ops[op].tasks;
        let asked = |paused| paused == Some(Pause::Asks(ticket)) || paused == Some(Pause::HasInput(ticket));
        let (task, state) = tasks.iter_mut().find(|(_, task)| asked(task.paused)).unwrap();
        let had = state.paused.take();
        let task = task.clone();
        match had {
            Some(Pause::HasInput(_)) => {
                let micros = self.random.between(0, self.queries[query].ops[op].stage.max_micros);
                self.at(micros, Event::Step { query, op, task });
            }
            _ => self.give(query, op, &task, true),
        }
    }

    fn start(&mut self, query: usize, op: usize) {
        let now = self.time();
        let stage = self.queries[query].ops[op].stage.clone();
        let (task, rows, input) = match self.ready_input(query, op) {
            Some(input) => {
                let from = &mut self.queries[query].ops[input];
                let (parent, block) = from.queue.pop().unwrap();
                self.core.taken(from.id, block.bytes, now);
                let place = stage.inputs.iter().position(|i| *i == input).unwrap();
                // Blocks of one task come in turn.
                let of = &mut self.queries[query].ops[op];
                of.next_task += 1;
                let task = parent.child(of.next_task).within(place);
                (task, (block.first_row, block.rows), Some((input, block.bytes)))
            }
            None => {
                let of = &mut self.queries[query].ops[op];
                of.next_task += 1;
                let number = of.next_task - 1;
                // Sources have rows of their own.
                let first = (op * 1000 + number) as u64 * ROWS;
                (TaskId::root(number), (first, ROWS), None)
            }
        };
        let (first_row, rows) = rows;
        let count = match self.random.one_in(stage.drops_one_in) {
            true => 0,
            false => self.random.between(1, stage.fan_out).min(rows),
        };
        let blocks = (0..count).map(|part| {
            let (start, end) = (rows * part / count, rows * (part + 1) / count);
            let bytes = self.random.between(1, stage.max_bytes);
            SimBlock { first_row: first_row + start, rows: end - start, bytes }
        });
        let mut blocks: VecDeque<_> = blocks.collect();
        if stage.leaf != Leaf::Blocks {
            blocks = match stage.leaf {
                Leaf::Exchange => self.queries[query].ops[op].below.bucket(task.task_of_source()),
                _ => VecDeque::new(),
            };
        } else if blocks.is_empty() {
            self.queries[query].dropped_rows += rows;
        }
        let fails = self.random.one_in(stage.fails_one_in);
        let of = &mut self.queries[query].ops[op];
        of.queue.begin(task.clone());
        of.tasks.insert(task.clone(), SimTask { input, blocks, given: 0, fails, paused: None, is_urgent: false });
        of.max_open = of.max_open.max(of.tasks.len());
        of.looked = 0;
        if stage.pool.is_some() {
            assert!(of.tasks.len() <= of.actors.ready, "{} tasks of {} actors", of.tasks.len(), of.actors.ready);
        }
        if let Some(most) = stage.max_tasks {
            assert!(of.tasks.len() <= most, "{} tasks of at most {most}", of.tasks.len());
        }
        let micros = self.random.between(0, stage.max_micros);
        self.at(micros, Event::Step { query, op, task });
    }

    fn step(&mut self, query: usize, op: usize, task: &TaskId) {
        if self.queries[query].ended {
            return;
        }
        let now = self.time();
        let of = &mut self.queries[query].ops[op];
        let max_micros = of.stage.max_micros;
        let state = of.tasks.get_mut(task).unwrap();
        if state.fails {
            // It begins again, and makes once more what it has given, which nobody takes twice.
            state.fails = false;
            let after = self.random.between(0, max_micros) * (1 + state.given as u64);
            return self.at(after, Event::Step { query, op, task: task.clone() });
        }
        if self.awaits_input(query, op, task) {
            return;
        }
        let of = &mut self.queries[query].ops[op];
        if of.tasks[task].blocks.is_empty() {
            let state = of.tasks.remove(task).unwrap();
            of.queue.end(task);
            let id = of.id;
            self.core.finished(id, now);
            if let Some((input, bytes)) = state.input {
                let input = self.queries[query].ops[input].id;
                self.core.freed(input, bytes, now);
            }
            return;
        }
        self.give(query, op, task, false);
    }

    /// Gives the next block of a task, or pauses it unless it is `allowed`.
    fn give(&mut self, query: usize, op: usize, task: &TaskId, allowed: bool) {
        let now = self.time();
        let of = &mut self.queries[query].ops[op];
        let urgent = of.queue.waits_for(task);
        let state = of.tasks.get_mut(task).unwrap();
        if of.queue.untaken(task) >= UNTAKEN {
            state.paused = Some(Pause::Untaken);
            return self.core.pause(of.id, now);
        }
        if !allowed && !urgent && !self.core.may_give(of.id) {
            self.core.pause(of.id, now);
            state.is_urgent = false;
            state.paused = Some(Pause::Asks(self.core.ask_resume(of.id, false, now)));
            return;
        }
        let block = state.blocks.pop_front().unwrap();
        state.given += 1;
        of.queue.push(task, block);
        self.core.produced(of.id, block.bytes, now);
        let micros = self.random.between(0, of.stage.max_micros);
        self.at(micros, Event::Step { query, op, task: task.clone() });
    }

    /// Whether a query neither ended nor was left by its consumer.
    fn is_stalled(query: &SimQuery) -> bool {
        !query.ended && query.plan.consumer.stops_after.is_none_or(|n| query.taken.len() < n)
    }

    /// Asserts that all ended as it should have.
    fn verify(&self) {
        for query in &self.queries {
            let consumer = query.plan.consumer;
            let explained = self.core.explain(query.number, self.time());
            assert!(!Self::is_stalled(query), "query {} stalls: {explained}", query.number);
            let mut rows: Vec<_> = query.taken.iter().map(|block| (block.first_row, block.rows)).collect();
            let moves_rows = |stage: &Stage| stage.inputs.len() > 1 || stage.leaf != Leaf::Blocks;
            if query.plan.ordered && !query.plan.stages.iter().any(moves_rows) {
                assert!(rows.is_sorted(), "rows out of order: {rows:?}");
            }
            rows.sort_unstable();
            assert!(rows.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "rows came twice: {rows:?}");
            if consumer.hangs_up_after.is_none() && consumer.stops_after.is_none() {
                let sources = query.plan.stages.iter().filter(|stage| stage.inputs.is_empty());
                let sources: usize = sources.map(|stage| stage.tasks).sum();
                let came: u64 = rows.iter().map(|(_, rows)| rows).sum();
                assert_eq!(came + query.dropped_rows, sources as u64 * ROWS, "rows are lost");
            }
        }
        if self.queries.iter().all(|query| query.ended) {
            assert_eq!(self.core.statuses(self.time()).len(), 0);
        }
    }
}
