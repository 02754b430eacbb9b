//! How many requests a store gets at once, and what has become of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The limit grows by one after so long without a refusal.
const GROWTH: Duration = Duration::from_secs(1);

/// The requests to one store: at most `most` at once. A server that refuses for their number gets half as many, and
/// one more for each second in which it does not.
#[derive(Debug)]
pub(super) struct Traffic {
    most: usize,
    flow: Mutex<Flow>,
    released: Notify,
    pub(super) counts: Counts,
}

#[derive(Debug)]
struct Flow {
    under_way: usize,
    /// How many there may be since `since`, when it was changed.
    limit: usize,
    since: Instant,
}

/// What has become of requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    /// Requests that failed in a way in which the same may succeed, and are made again.
    pub(super) failed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) held_back_ms: AtomicU64,
}

impl Traffic {
    /// At most `most` requests at once.
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        let flow = Mutex::new(Flow { under_way: 0, limit: most, since: Instant::now() });
        Self { most, flow, released: Notify::new(), counts: Counts::default() }
    }

    /// How many requests there may be at once.
    pub(super) fn limit(&self) -> usize {
        self.flow.lock().limit_at(Instant::now(), self.most)
    }

    /// Requests that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.flow.lock().under_way
    }

    /// Waits until one more may be under way, for as long as what comes back is there.
    pub(super) async fn enter(self: &Arc<Self>) -> UnderWay {
        let (begin, mut held_back) = (Instant::now(), false);
        loop {
            let released = self.released.notified();
            {
                let mut flow = self.flow.lock();
                let limit = flow.limit_at(Instant::now(), self.most);
                if flow.under_way < limit {
                    flow.under_way += 1;
                    self.counts.requests.fetch_add(1, Relaxed);
                    // Once, however often it was woken in vain.
                    let waited = if held_back { begin.elapsed().as_millis() as u64 } else { 0 };
                    self.counts.held_back_ms.fetch_add(waited, Relaxed);
                    return UnderWay { traffic: Arc::clone(self), began: Instant::now() };
                }
                held_back |= limit < self.most;
            }
            released.await;
        }
    }
}

impl Flow {
    fn limit_at(&self, now: Instant, most: usize) -> usize {
        let grown = now.saturating_duration_since(self.since).as_secs_f64() / GROWTH.as_secs_f64();
        most.min(self.limit + grown as usize)
    }
}

/// A request that is under way until this drops.
#[derive(Debug)]
pub(super) struct UnderWay {
    traffic: Arc<Traffic>,
    began: Instant,
}

impl UnderWay {
    /// The server has refused it since there were too many. Those that were under way then count as one refusal.
    pub(super) fn was_refused(&self) {
        self.traffic.counts.refused.fetch_add(1, Relaxed);
        let mut flow = self.traffic.flow.lock();
        if self.began >= flow.since {
            let now = Instant::now();
            flow.limit = (flow.limit_at(now, self.traffic.most) / 2).max(1);
            flow.since = now;
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.traffic.counts
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let (under_way, limit) = {
            let mut flow = self.traffic.flow.lock();
            flow.under_way -= 1;
            (flow.under_way, flow.limit_at(Instant::now(), self.traffic.most))
        };
        // The limit may have grown meanwhile.
        (under_way..limit).for_each(|_| self.traffic.released.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refusals_halve_the_limit_once_for_those_under_way() {
        let traffic = Arc::new(Traffic::new(8));
        let mut under_way = Vec::new();
        for _ in 0..8 {
            under_way.push(traffic.enter().await);
        }
        assert_eq!(traffic.under_way(), 8);
        for request in under_way.drain(..) {
            request.was_refused();
        }
        assert_eq!((traffic.limit(), traffic.under_way()), (4, 0));
        traffic.enter().await.was_refused();
        assert_eq!(traffic.limit(), 2);
        assert_eq!(traffic.counts.refused.load(Relaxed), 9);
        // One more for each second.
        traffic.flow.lock().since -= Duration::from_secs(3);
        assert_eq!(traffic.limit(), 5);
        traffic.flow.lock().since -= Duration::from_secs(30);
        assert_eq!(traffic.limit(), 8);
    }

    #[tokio::test]
    async fn those_above_the_limit_wait_until_others_have_ended() {
        let traffic = Arc::new(Traffic::new(1));
        let first = traffic.enter().await;
        let mut second = Box::pin(traffic.enter());
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        let _second = second.await;
        assert_eq!(traffic.under_way(), 1);
    }
}
