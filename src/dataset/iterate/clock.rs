//! Where the time of an iterator goes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time that several threads add to.
#[derive(Debug, Default)]
pub(super) struct Timer(AtomicU64);

impl Timer {
    pub(super) fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// What an iterator measures.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) began: Instant,
    /// Whether the consumer waits now.
    pub(super) is_waiting: AtomicBool,
    /// The consumer waits for a batch.
    pub(super) waiting: Timer,
    /// The consumer does something else.
    pub(super) user: Timer,
    /// The driver waits for rows of the plan.
    pub(super) rows: Timer,
    /// The driver cuts batches.
    pub(super) batching: Timer,
    /// Functions of `map_ahead` run.
    pub(super) mapping: Timer,
    /// Until the first batch; 0 before it.
    pub(super) first: Timer,
    pub(super) batches: AtomicU64,
    pub(super) num_rows: AtomicU64,
    /// Rows of epochs that were left before their end.
    pub(super) skipped: AtomicU64,
}

impl Clock {
    /// Measures since `began`: until now the consumer has waited.
    pub(super) fn since(began: Instant) -> Self {
        let waiting = Timer::default();
        waiting.add(began.elapsed());
        Self {
            began,
            is_waiting: AtomicBool::default(),
            waiting,
            user: Timer::default(),
            rows: Timer::default(),
            batching: Timer::default(),
            mapping: Timer::default(),
            first: Timer::default(),
            batches: AtomicU64::new(0),
            num_rows: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    pub(super) fn stats(&self) -> IterStats {
        IterStats {
            batches: self.batches.load(Relaxed),
            rows: self.num_rows.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            elapsed: self.began.elapsed(),
            first_batch: self.first.get(),
            waiting: self.waiting.get(),
            waiting_for_rows: self.rows.get(),
            batching: self.batching.get(),
            mapping: self.mapping.get(),
            user: self.user.get(),
        }
    }
}

/// What an iterator did, and where its time went. The consumer waits or does something else; what is made ahead is made
/// beside both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IterStats {
    /// Batches handed out.
    pub batches: u64,
    /// Rows handed out.
    pub rows: u64,
    /// Rows of epochs of which a consumer did not want the rest.
    pub skipped: u64,
    /// Since the iterator began.
    pub elapsed: Duration,
    /// From its beginning to the first batch; 0 before it.
    pub first_batch: Duration,
    /// In which the consumer waited for batches, the first one included.
    pub waiting: Duration,
    /// In which the next batch waited for rows of the plan.
    pub waiting_for_rows: Duration,
    /// In which rows were put into batches.
    pub batching: Duration,
    /// In which functions of [`map_ahead`](super::Batches::map_ahead) ran, on all of their threads.
    pub mapping: Duration,
    /// In which the consumer had a batch and asked for no other.
    pub user: Duration,
}

impl IterStats {
    /// Who waited for whom, and what helps.
    fn sentence(&self) -> String {
        let part = |time: Duration| 100.0 * time.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9);
        // The first batch is waited for by everybody.
        let later = self.waiting.saturating_sub(self.first_batch);
        if self.batches == 0 {
            return "No batch has been handed out.".to_owned();
        }
        if part(later) < 5.0 {
            return format!(
                "The consumer waited {:.0} % of the time behind the first batch: the dataset keeps up with it.",
                part(later)
            );
        }
        let by = match () {
            () if self.mapping > self.waiting_for_rows + self.batching => "functions that map ahead; make these faster",
            () if self.batching > self.waiting_for_rows => "batches to be cut; a larger batch_size helps",
            () => "rows of the dataset; its stats() say which stage is slow, and a larger prefetch_batches evens out",
        };
        format!("The consumer waited {:.0} % of the time behind the first batch, for {by}.", part(later))
    }
}

impl fmt::Display for IterStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Dataset iterator time breakdown:")?;
        writeln!(f, "* Batches: {}, rows: {}", self.batches, self.rows)?;
        for (what, time) in [
            ("Time to first batch", self.first_batch),
            ("Waiting for batches", self.waiting),
            ("Waiting for rows, ahead", self.waiting_for_rows),
            ("Batching, ahead", self.batching),
            ("Mapping, ahead", self.mapping),
            ("User code", self.user),
            ("Total", self.elapsed),
        ] {
            writeln!(f, "* {what}: {:.3}s", time.as_secs_f64())?;
        }
        if self.skipped > 0 {
            writeln!(f, "* Rows of epochs that were left before their end: {}", self.skipped)?;
        }
        writeln!(f, "{}", self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_say_who_waited_for_whom() {
        let seconds = Duration::from_secs;
        let stats = |waiting: u64, rows: u64, batching: u64, mapping: u64| IterStats {
            batches: 10,
            rows: 100,
            skipped: 0,
            elapsed: seconds(100),
            first_batch: seconds(1),
            waiting: seconds(waiting),
            waiting_for_rows: seconds(rows),
            batching: seconds(batching),
            mapping: seconds(mapping),
            user: seconds(100 - waiting),
        };
        for (stats, said) in [
            (stats(2, 90, 1, 1), "waited 1 % of the time behind the first batch: the dataset keeps up"),
            (stats(61, 90, 1, 1), "waited 60 % of the time behind the first batch, for rows of the dataset"),
            (stats(61, 9, 30, 1), "for batches to be cut"),
            (stats(61, 9, 30, 80), "for functions that map ahead"),
        ] {
            let text = stats.to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}
