//! What it takes to read: the CPU time in which a thread decodes, and in which it works on what was given before it
//! asks for more. Wall time says what runs beside it just as well: on a busy machine, twice as much for the same work.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

/// Numbers batches that were given, so that each is told from all others.
static GIVEN: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The batch that the thread works on: no read has run on it since that gave it.
    static AT_WORK: Cell<u64> = const { Cell::new(0) };
}

/// Measures one read.
#[derive(Debug, Default)]
pub(super) struct ReadClock {
    is_measured: bool,
    waits_count: bool,
    decoding: Duration,
    waiting: Duration,
    waiting_since: Option<Instant>,
    rows: usize,
    /// What was done with so many of the rows, where nothing came in between.
    worked: Duration,
    worked_on: usize,
    given: Option<Given>,
}

/// The batch that was given last.
#[derive(Debug, Clone, Copy)]
struct Given {
    number: u64,
    rows: usize,
    /// What the thread had taken by then.
    at: Duration,
}

impl ReadClock {
    /// One that says nothing if nobody wants to know. `waits_count` where what is waited for is part of the cost.
    pub(super) fn new(is_measured: bool, waits_count: bool) -> Self {
        Self { is_measured, waits_count, ..Self::default() }
    }

    /// Measures what reads.
    pub(super) async fn during<F: Future>(&mut self, reading: F) -> F::Output {
        let mut reading = pin!(reading);
        poll_fn(|context| {
            let begun = self.begin();
            let polled = reading.as_mut().poll(context);
            if let Some(begun) = begun {
                self.decoding += begun.elapsed();
                self.waiting_since = matches!(polled, Poll::Pending).then(Instant::now);
            }
            polled
        })
        .await
    }

    fn begin(&mut self) -> Option<ThreadTime> {
        let at_work = AT_WORK.replace(0);
        if !self.is_measured {
            return None;
        }
        let now = ThreadTime::now();
        if let Some(given) = self.given.take_if(|given| given.number == at_work) {
            self.worked += now.as_duration().saturating_sub(given.at);
            self.worked_on += given.rows;
        }
        if let Some(since) = self.waiting_since.take() {
            self.waiting += since.elapsed();
        }
        Some(now)
    }

    /// So many rows are given to whoever asked.
    pub(super) fn give(&mut self, rows: usize) {
        if self.is_measured {
            let given = Given { number: GIVEN.fetch_add(1, Relaxed), rows, at: ThreadTime::now().as_duration() };
            AT_WORK.set(given.number);
            self.rows += rows;
            self.given = Some(given);
        }
    }

    /// What all took. Rows of which is not known what was done with them are taken to be like the others.
    pub(super) fn cost(&self) -> Duration {
        let part = if self.worked_on == 0 { 0.0 } else { self.rows as f64 / self.worked_on as f64 };
        let waiting = if self.waits_count { self.waiting } else { Duration::ZERO };
        self.decoding + self.worked.mul_f64(part) + waiting
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::FutureExt;

    use super::*;

    fn work() {
        let begun = ThreadTime::now();
        while begun.elapsed() < Duration::from_millis(2) {}
    }

    /// Reads and gives batches, between which `between` happens.
    fn cost(mut clock: ReadClock, batches: usize, between: impl Fn(usize)) -> Duration {
        for batch in 0..batches {
            clock.during(ready(())).now_or_never();
            clock.give(100);
            between(batch);
        }
        clock.during(ready(())).now_or_never();
        clock.cost()
    }

    #[test]
    fn work_on_batches_counts_and_that_of_other_reads_does_not() {
        let ms = Duration::from_millis;
        let alone = cost(ReadClock::new(true, false), 3, |_| work());
        assert!(alone >= ms(6), "{alone:?}");
        // Of two batches out of four is not known what was done with them.
        let other = |batch| {
            work();
            if batch % 2 == 0 {
                ReadClock::default().during(ready(())).now_or_never();
                (0..10).for_each(|_| work());
            }
        };
        let beside = cost(ReadClock::new(true, false), 4, other);
        assert!((ms(8)..ms(20)).contains(&beside), "{beside:?}");
        assert_eq!(cost(ReadClock::new(false, true), 3, |_| work()), Duration::ZERO);
    }
}
