//! When a pool of actors grows and shrinks: Ray's thresholds (3.16), as a pure function of what the pool does now.

use std::time::Duration;

/// Tasks per actor from which a pool grows, running and waiting ones. At most one in eight places of an actor is then
/// free.
const GROW_AT: f64 = 1.75;
const GROW_AT_PART: f64 = 0.875;
/// Tasks per actor up to which a pool shrinks.
const SHRINK_AT: f64 = 0.5;
/// Actors of a pool that nobody has given a bound, whatever the resources: each has a thread.
const MAX_ACTORS: usize = 1024;
/// How long a pool that has grown does not shrink.
const REST: Duration = Duration::from_secs(10);

/// The actors that an operator may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    /// The fewest.
    pub(crate) min: usize,
    /// The most. `None`: as many as there are resources for.
    pub(crate) max: Option<usize>,
    /// Tasks that an actor has at most, running and waiting.
    pub(crate) max_tasks_in_flight: usize,
}

/// The actors that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PoolState {
    /// Actors that can run a task.
    pub(crate) ready: usize,
    /// Actors that are being built.
    pub(crate) pending: usize,
    /// Tasks that run, and those whose input was taken for them.
    pub(crate) in_flight: usize,
    /// Whether there will be no more tasks than those.
    pub(crate) input_ended: bool,
}

impl PoolState {
    pub(crate) fn size(&self) -> usize {
        self.ready + self.pending
    }
}

#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) spec: PoolSpec,
    pub(super) state: PoolState,
    /// When it last grew.
    grown: Option<Duration>,
}

impl Pool {
    pub(super) fn new(spec: PoolSpec) -> Self {
        Self { spec, state: PoolState::default(), grown: None }
    }

    /// By how many actors to grow, or to shrink if it is negative. `queued` blocks wait for the operator, and there are
    /// resources for `room` actors.
    pub(super) fn change(&mut self, queued: usize, room: usize, now: Duration) -> isize {
        let change = self.decide(queued, room.max(1), now);
        if change > 0 {
            self.grown = Some(now);
        }
        change
    }

    /// Whether it would grow if there were room.
    pub(super) fn wants_more(&self, queued: usize, now: Duration) -> bool {
        self.decide(queued, usize::MAX, now) > 0
    }

    fn decide(&self, queued: usize, room: usize, now: Duration) -> isize {
        let PoolState { in_flight, pending, input_ended, .. } = self.state;
        let size = self.state.size();
        let most = self.spec.max.unwrap_or(MAX_ACTORS).max(1);
        if input_ended && queued == 0 && in_flight < size {
            return in_flight as isize - size as isize;
        }
        if size < self.spec.min && !input_ended {
            return (self.spec.min - size) as isize;
        }
        if size > most {
            return most as isize - size as isize;
        }
        if in_flight == 0 && queued == 0 && self.grown.is_none() {
            return 0;
        }
        if size == 0 {
            return isize::from(in_flight > 0);
        }
        let load = in_flight as f64 / size as f64;
        let grow_at = GROW_AT.min(GROW_AT_PART * self.spec.max_tasks_in_flight as f64);
        if load >= grow_at {
            let wanted = ((in_flight + queued) as f64 / grow_at).ceil() as usize;
            // No more than there are tasks, which would go again at once.
            let most = most.min(room).min(in_flight + queued).max(size);
            let wanted = wanted.max(size + 1).min(most);
            return wanted as isize - size as isize;
        }
        let rests = self.grown.is_some_and(|grown| now.saturating_sub(grown) < REST);
        if load <= SHRINK_AT && pending == 0 && size > self.spec.min && !rests {
            return -1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(min: usize, max: usize, ready: usize, in_flight: usize) -> Pool {
        let mut pool = Pool::new(PoolSpec { min, max: Some(max), max_tasks_in_flight: 2 });
        pool.state = PoolState { ready, in_flight, ..PoolState::default() };
        pool
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_starts_with_the_fewest_and_grows_with_the_backlog() {
        assert_eq!(pool(2, 8, 0, 0).change(0, 100, at(0)), 2);
        assert_eq!(pool(1, 8, 1, 1).change(50, 100, at(0)), 0, "one waits for the second task");
        assert_eq!(pool(1, 8, 1, 2).change(0, 100, at(0)), 1);
        assert_eq!(pool(1, 8, 2, 4).change(0, 100, at(0)), 1, "4 tasks at 1.75 for each");
        assert_eq!(pool(1, 8, 1, 2).change(5, 100, at(0)), 3, "7 tasks at 1.75 for each");
        assert_eq!(pool(1, 8, 1, 2).change(500, 100, at(0)), 7);
        assert_eq!(pool(1, 8, 1, 2).change(500, 3, at(0)), 2);
        assert_eq!(pool(1, 8, 8, 16).change(500, 100, at(0)), 0);
    }

    #[test]
    fn a_pool_of_none_starts_one_when_there_is_work() {
        assert_eq!(pool(0, 8, 0, 0).change(9, 100, at(0)), 0);
        assert_eq!(pool(0, 8, 0, 1).change(9, 0, at(0)), 1);
    }

    #[test]
    fn it_shrinks_one_by_one_and_not_soon_after_it_grew() {
        let mut it = pool(1, 8, 4, 8);
        assert!(it.change(4, 100, at(0)) > 0);
        it.state.in_flight = 1;
        assert_eq!(it.change(0, 100, at(9)), 0);
        assert_eq!(it.change(0, 100, at(10)), -1);
        it.state.ready = 1;
        it.state.in_flight = 0;
        assert_eq!(it.change(0, 100, at(99)), 0, "the fewest stay");
    }

    #[test]
    fn actors_without_work_go_when_there_is_no_more_input() {
        let mut it = pool(4, 8, 4, 1);
        it.state.input_ended = true;
        assert_eq!(it.change(0, 100, at(0)), -3);
        it.state = PoolState { in_flight: 0, ready: 1, ..it.state };
        assert_eq!(it.change(0, 100, at(0)), -1);
    }

    #[test]
    fn one_task_at_a_time_is_enough_to_grow_where_no_more_are_allowed() {
        let mut it = pool(1, 8, 1, 1);
        it.spec.max_tasks_in_flight = 1;
        assert!(it.change(5, 100, at(0)) > 0);
    }
}
