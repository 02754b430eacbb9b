//! Who goes on next, and why others do not.

use std::time::Duration;

use super::{Core, Ranking};
use crate::runtime::scheduler::op::{Op, OpId, OpView, Ticket, Wait};
use crate::runtime::scheduler::resources::Resources;

/// An operator that has given nothing for this long may give a block.
const IDLE: Duration = Duration::from_secs(10);

/// A resource that is missing, how much of it is wanted, and how much there is.
pub(in crate::runtime::scheduler) type Lacking = (String, u64, u64);

/// Operators of a query that could go on.
#[derive(Default)]
struct Candidates {
    /// Those that nothing holds back: urgent, rank, depth, start rather than resume.
    best: Option<((bool, u64, usize, bool), OpId)>,
    /// What may only start because nobody else uses the processors.
    idle: Option<((u64, usize), OpId)>,
    /// Those for which somebody waits, whatever holds them back.
    first: Option<((u64, usize, bool), OpId)>,
}

/// How many tasks an operator has at most is a promise, which nothing overrides.
fn may_start(op: &Op) -> bool {
    !op.waiting.is_empty() && op.max_tasks().is_none_or(|most| op.open() < most)
}

fn asks(op: &Op) -> bool {
    may_start(op) || !op.parked.is_empty() || !op.urgent.is_empty()
}

/// What an operator waits for of which nobody asks for anything that it could get.
fn idle_wait(op: &Op) -> Wait {
    let waits_for_actors = op.pool.as_ref().is_some_and(|pool| pool.state.in_flight > op.open());
    if waits_for_actors && op.max_tasks().is_some_and(|most| op.open() >= most) {
        Wait::Actors
    } else if op.open() > op.running + op.awaiting_input {
        // Tasks that neither run nor ask nor wait for their input wait until their blocks are taken.
        Wait::Consumer
    } else {
        Wait::Input
    }
}

impl Core {
    /// The next worker that may go on, as long as there is one.
    pub(in crate::runtime::scheduler) fn next_grant(&mut self, now: Duration) -> Option<(OpId, Ticket)> {
        let mut queries: Vec<_> = self.queries.iter().map(|(id, q)| (q.used.milli_cpus, q.last_grant, *id)).collect();
        // None starves: the one that has least comes first, and then the one that waits longest.
        queries.sort_unstable();
        queries.into_iter().find_map(|(.., query)| self.next_grant_of(query, now))
    }

    fn next_grant_of(&mut self, query: u64, now: Duration) -> Option<(OpId, Ticket)> {
        let ids = self.queries.get(&query)?.ops.clone();
        if ids.iter().any(|id| asks(&self.ops[id])) {
            self.divide(query);
        }
        let mut candidates = Candidates::default();
        let waits: Vec<_> = ids.iter().map(|id| (*id, self.consider(*id, &mut candidates))).collect();
        let Candidates { best, idle, first } = candidates;
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

    /// Adds an operator to the candidates for which it is one. What it waits for, if it is not among the best.
    fn consider(&self, id: OpId, candidates: &mut Candidates) -> Option<Wait> {
        let op = &self.ops[&id];
        if !asks(op) {
            return Some(idle_wait(op));
        }
        if let Some(lacking) = self.lacking(op) {
            return Some(Wait::Resources(lacking));
        }
        let Candidates { best, idle, first } = candidates;
        let view = OpView::new(id, &self.ops);
        let rank = self.rank(op);
        let starts = op.urgent.is_empty() && op.parked.is_empty();
        if self.is_wanted(op) && first.is_none_or(|(key, _)| (rank, op.depth, starts) < key) {
            *first = Some(((rank, op.depth, starts), id));
        }
        // What is parked goes first: a task that ends frees its input.
        let refusals = [
            (!op.urgent.is_empty()).then_some(None),
            (!op.parked.is_empty()).then(|| self.output_refusal(view)),
            may_start(op).then(|| self.start_refusal(view)),
        ];
        if let Some(place) = refusals.iter().position(|refusal| *refusal == Some(None)) {
            let key = (place > 0, rank, op.depth, place == 2);
            if best.is_none_or(|(other, _)| key < other) {
                *best = Some((key, id));
            }
            return None;
        }
        let may_start = may_start(op) && self.start_refusal(view.with_idle_processors()).is_none();
        if may_start && idle.is_none_or(|(key, _)| (rank, op.depth) < key) {
            *idle = Some(((rank, op.depth), id));
        }
        refusals.into_iter().flatten().flatten().next()
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
        op.max_running = op.max_running.max(op.running);
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
    pub(in crate::runtime::scheduler) fn impossible(&self, query: u64) -> Option<(String, Lacking)> {
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
    pub(super) fn output_refusal(&self, view: OpView<'_>) -> Option<Wait> {
        let refused = self.policies.iter().find(|policy| policy.output_bytes(view) == Some(0))?;
        let op = view.op();
        let starving = match view.consumer() {
            None => op.consumer_waits && op.queued_blocks == 0,
            Some(consumer) => consumer.open_tasks() == 0 && op.queued_blocks == 0,
        };
        let idle = op.since.saturating_sub(op.last_output) > IDLE && op.queued_blocks == 0;
        (!starving && !idle).then(|| Wait::Backpressure(refused.name()))
    }
}
