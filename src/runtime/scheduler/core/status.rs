//! How queries and their operators stand, for people and for whoever looks for stalls.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Core;
use crate::runtime::scheduler::op::{Op, OpId, Wait};
use crate::runtime::scheduler::pool::PoolState;
use crate::runtime::scheduler::resources::Resources;

/// A query in which nothing has been under way for so long will never end. What is under way is seen at once, so this
/// is for clocks that jump and machines that halt.
const STILL: Duration = Duration::from_secs(10);

/// What a query waits for, for people.
#[derive(Debug, Clone)]
pub(crate) struct OpStatus {
    pub(crate) query: u64,
    /// Who takes its blocks, where the scheduler knows.
    pub(crate) consumer: Option<OpId>,
    /// Time in which policies held it back, whether or not it ran something meanwhile.
    pub(crate) held_back: BTreeMap<&'static str, Duration>,
    /// The most tasks that ran at once.
    pub(crate) max_running: usize,
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
    /// Whether any task of a query runs.
    pub(in crate::runtime::scheduler) fn runs(&self, query: u64) -> bool {
        self.ops.values().any(|op| op.query == query && op.running > 0)
    }

    /// For how long a query has waited for nothing but itself, where that is so: all that it reads is known here, its
    /// blocks are waited for, and for so long nothing has come. `quiet` is the time in which nothing was under way
    /// elsewhere.
    pub(in crate::runtime::scheduler) fn waits_for_itself(
        &self,
        query: u64,
        quiet: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let is_closed = |op: &Op| !op.spec.waits_outside && (op.spec.consumer.is_some() || op.consumer_waits);
        let waits = now.saturating_sub(self.last_progress(query)?).min(quiet);
        let all_closed = self.ops.values().filter(|op| op.query == query).all(is_closed);
        (waits >= STILL && all_closed).then_some(waits)
    }

    /// When something last happened in a query.
    pub(in crate::runtime::scheduler) fn last_progress(&self, query: u64) -> Option<Duration> {
        self.queries.get(&query).map(|query| query.progress)
    }

    /// The operators of all queries as they stand.
    pub(in crate::runtime::scheduler) fn statuses(&self, now: Duration) -> Vec<OpStatus> {
        self.ops.keys().filter_map(|id| self.status(*id, now)).collect()
    }

    /// An operator as it stands.
    pub(in crate::runtime::scheduler) fn status(&self, id: OpId, now: Duration) -> Option<OpStatus> {
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
                max_running: op.max_running,
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
    pub(in crate::runtime::scheduler) fn explain(&self, query: u64, now: Duration) -> String {
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
