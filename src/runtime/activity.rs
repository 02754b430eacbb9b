//! Whether anything is under way in this process that could end by itself: a call of a function, a read, a job on a
//! thread.
//!
//! Where nothing is, nothing takes CPU time, and no call holds a thread, what waits for other parts of its query waits
//! for ever.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use futures::future::poll_fn;
use tokio::runtime::Handle;

/// What is under way now, in all sessions: they share threads and files.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// A process that takes less than this part of a CPU does nothing but look at clocks.
const IDLE_PART: u32 = 20;

/// Something that is under way until this drops.
pub(crate) struct UnderWay(());

impl UnderWay {
    pub(crate) fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Relaxed);
        Self(())
    }

    /// Waits for something that goes on by itself, outside of the query.
    pub(crate) async fn during<T>(work: impl Future<Output = T>) -> T {
        let _begun = Self::begin();
        work.await
    }

    /// Waits for something that may have to wait for the query itself: under way is only what holds its thread.
    pub(crate) async fn while_polled<T>(work: impl Future<Output = T>) -> T {
        let mut work = Box::pin(work);
        poll_fn(move |context| {
            let _begun = Self::begin();
            work.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Relaxed);
    }
}

/// Looks again and again whether anything is under way.
#[derive(Debug)]
pub(crate) struct Stillness {
    since: Instant,
    looked: Instant,
    cpu: ProcessTime,
    /// How often each thread of the runtime has gone to sleep or woken up.
    wakings: Vec<u64>,
}

impl Stillness {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, looked: now, cpu: ProcessTime::now(), wakings: wakings() }
    }

    /// For how long nothing has been under way, as of the looks up to now.
    pub(crate) fn look(&mut self) -> Duration {
        let (now, cpu, wakings) = (Instant::now(), ProcessTime::now(), wakings());
        let works = cpu.duration_since(self.cpu) > (now - self.looked) / IDLE_PART;
        // An odd number is of a thread that is awake: since the last look in one and the same call.
        let in_a_call = wakings.iter().zip(&self.wakings).any(|(now, before)| now % 2 == 1 && now == before);
        if works || in_a_call || UNDER_WAY.load(Relaxed) > 0 {
            self.since = now;
        }
        (self.looked, self.cpu, self.wakings) = (now, cpu, wakings);
        now - self.since
    }
}

fn wakings() -> Vec<u64> {
    let metrics = Handle::try_current().map(|runtime| runtime.metrics());
    metrics.map_or(Vec::new(), |m| (0..m.num_workers()).map(|worker| m.worker_park_unpark_count(worker)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of the process may be under way: what is waited for here is that they let go.
    #[test]
    fn nothing_is_still_while_something_is_under_way() {
        let mut stillness = Stillness::new();
        let begun = UnderWay::begin();
        assert!(stillness.look() < Duration::from_millis(1));
        assert!(stillness.look() < Duration::from_millis(1));
        drop(begun);
        while stillness.look() == Duration::ZERO {
            std::thread::yield_now();
        }
    }
}
