//! No more tasks at once than the operator's `concurrency`, or fewer while its queue grows.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::super::op::{OpId, OpView};
use super::BackpressurePolicy;

/// How fast the level follows a queue that grows: 1 - 0.9².
const RISING: f64 = 0.19;
/// And one that shrinks.
const FALLING: f64 = 0.1;
/// The controller leaves an operator alone as long as it has this part of its bytes left.
const PLENTY: f64 = 0.1;

/// At most `concurrency` tasks. The adaptive form also takes a task away when the out queue is longer than usual, and
/// gives one more when it is shorter, by an exponentially weighted mean of its bytes.
#[derive(Debug, Default)]
pub struct ConcurrencyCap {
    levels: Option<Mutex<HashMap<OpId, Level>>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    mean: f64,
    deviation: f64,
}

impl Level {
    /// Takes a new length in, and returns by how much to change the number of tasks.
    fn observe(&mut self, queued: f64) -> i64 {
        let before = self.mean;
        let alpha = if queued > before { RISING } else { FALLING };
        self.mean += alpha * (queued - before);
        self.deviation += alpha * ((queued - before).abs() - self.deviation);
        if queued > self.mean + self.deviation {
            -1
        } else if queued < self.mean - self.deviation {
            1
        } else {
            0
        }
    }
}

impl ConcurrencyCap {
    /// With the controller.
    pub fn adaptive() -> Self {
        Self { levels: Some(Mutex::default()) }
    }
}

impl BackpressurePolicy for ConcurrencyCap {
    fn name(&self) -> &'static str {
        "ConcurrencyCap"
    }

    fn can_start(&self, op: OpView<'_>) -> bool {
        let most = op.max_tasks().unwrap_or(usize::MAX);
        if op.open_tasks() >= most {
            return false;
        }
        let Some(levels) = self.levels.as_ref().filter(|_| op.utilization() >= 1.0 - PLENTY) else {
            return true;
        };
        let change = levels.lock().entry(op.id()).or_default().observe(op.queued_bytes() as f64);
        let wanted = (op.open_tasks() as i64 + change).clamp(1, most.min(i64::MAX as usize) as i64);
        // One that holds keeps as many as it has: a task that ended may be followed by another.
        (op.open_tasks() as i64) < wanted || (change == 0 && op.open_tasks() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_grows_takes_tasks_away_and_one_that_shrinks_gives_them_back() {
        let mut level = Level::default();
        assert_eq!(level.observe(100.0), -1);
        for _ in 0..200 {
            level.observe(100.0);
        }
        assert!((level.mean - 100.0).abs() < 1.0 && level.deviation < 1.0, "{level:?}");
        assert_eq!(level.observe(100.0), 0);
        assert_eq!(level.observe(10.0), 1);
        assert_eq!(level.observe(1000.0), -1);
    }
}
