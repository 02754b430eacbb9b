//! How many requests a store gets at once, and what has become of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The limit grows by one after so long without a refusal.
const GROWTH: Duration = Duration::from_secs(1);
/// It is below what was refused last for so much longer.
const CAUTION: Duration = Duration::from_secs(8);
/// For how long nothing is asked for after a refusal, and the longest after several.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Where so few were too many, one less is much less than what the server allows. Then they also get a pace: this part
/// of what they were in the second before.
const FEW: usize = 8;
const PACE_PART: f64 = 0.95;
/// Over so long they are counted.
const PACE_WINDOW: Duration = Duration::from_secs(1);

/// The requests to one store: at most `most` at once. A server that refuses for their number gets none for a moment,
/// then one, and when it answers that, half as many as before, and one more for each second in which it does not
/// refuse. At what it has refused last, growth stops for a while. Of a few, begun not faster than was refused, there
/// may be as many as were refused.
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
    /// Those that have no answer. What comes after one waits for who takes it, which may wait for other requests.
    unanswered: usize,
    /// How many of these there may be since `since`, when it was changed.
    limit: usize,
    since: Instant,
    /// How many were too many last.
    refused: Option<usize>,
    /// Refusals since the last answer, and when the next request may be made.
    refusals: u32,
    not_before: Instant,
    /// When those of the last second began, where they are few.
    begun: VecDeque<Instant>,
    /// How far apart requests begin for a while after the last refusal.
    pace: Option<Duration>,
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
        let now = Instant::now();
        let flow = Mutex::new(Flow {
            under_way: 0,
            unanswered: 0,
            limit: most,
            since: now,
            refused: None,
            refusals: 0,
            not_before: now,
            begun: VecDeque::new(),
            pace: None,
        });
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
            let pause = {
                let (mut flow, now) = (self.flow.lock(), Instant::now());
                let limit = flow.limit_at(now, self.most);
                let pause = flow.not_before.saturating_duration_since(now);
                if pause.is_zero() && flow.unanswered < limit && flow.under_way < self.most {
                    flow.under_way += 1;
                    flow.unanswered += 1;
                    if limit <= FEW {
                        flow.begun.push_back(now);
                        flow.forget_begun(now);
                    }
                    if let Some(pace) = flow.pace_at(now) {
                        // Timers are late, and what is late is not to add up.
                        flow.not_before = flow.not_before.max(now.checked_sub(pace).unwrap_or(now)) + pace;
                    }
                    self.counts.requests.fetch_add(1, Relaxed);
                    // Once, however often it was woken in vain.
                    let waited = if held_back { begin.elapsed().as_millis() as u64 } else { 0 };
                    self.counts.held_back_ms.fetch_add(waited, Relaxed);
                    return UnderWay { traffic: Arc::clone(self), began: now, answered: AtomicBool::new(false) };
                }
                held_back |= limit < self.most;
                pause
            };
            // The limit grows, and others that were woken may have gone away.
            match pause.is_zero() {
                true => timeout(GROWTH, released).await.unwrap_or_default(),
                false => sleep(pause).await,
            }
        }
    }
}

impl Traffic {
    /// Wakes as many as may go on. The limit may have grown meanwhile.
    fn wake(&self, flow: &Flow) {
        let limit = flow.limit_at(Instant::now(), self.most);
        let room = limit.saturating_sub(flow.unanswered).min(self.most.saturating_sub(flow.under_way));
        (0..room).for_each(|_| self.released.notify_one());
    }
}

impl Flow {
    fn limit_at(&self, now: Instant, most: usize) -> usize {
        if self.refusals > 0 {
            return 1;
        }
        let steps = |time: Duration| (time.as_secs_f64() / GROWTH.as_secs_f64()) as usize;
        let grown = now.saturating_duration_since(self.since);
        let allowed = |refused: usize| if self.pace.is_some() { refused } else { refused - 1 };
        let until_refused = self.refused.map_or(most, allowed).saturating_sub(self.limit);
        let growth = match steps(grown) {
            growth if growth <= until_refused => growth,
            growth => until_refused.max(growth.saturating_sub(steps(CAUTION))),
        };
        most.min(self.limit + growth)
    }

    fn pace_at(&self, now: Instant) -> Option<Duration> {
        self.pace.filter(|_| now.saturating_duration_since(self.since) < CAUTION)
    }

    fn forget_begun(&mut self, now: Instant) {
        while self.begun.front().is_some_and(|begun| now.saturating_duration_since(*begun) > PACE_WINDOW) {
            self.begun.pop_front();
        }
    }
}

/// A request that is under way until this drops.
#[derive(Debug)]
pub(super) struct UnderWay {
    traffic: Arc<Traffic>,
    began: Instant,
    answered: AtomicBool,
}

impl UnderWay {
    /// The server has refused it since there were too many. Those that were under way then count as one refusal.
    pub(super) fn was_refused(&self) {
        self.traffic.counts.refused.fetch_add(1, Relaxed);
        let mut flow = self.traffic.flow.lock();
        self.is_answered(&mut flow);
        if self.began >= flow.since {
            let now = Instant::now();
            let limit = if flow.refusals > 0 { flow.limit } else { flow.limit_at(now, self.traffic.most) };
            // Those that follow on a refusal, or soon after, say nothing of how many are too many.
            if flow.refusals == 0 && now.saturating_duration_since(flow.since) >= PACE_WINDOW {
                flow.forget_begun(self.began);
                let rate = flow.begun.partition_point(|begun| *begun < self.began) as f64 * PACE_PART;
                flow.pace = (limit <= FEW && rate >= 1.0).then(|| PACE_WINDOW.div_f64(rate));
                flow.refused = Some(limit.max(2));
            }
            flow.limit = (limit / 2).max(1);
            flow.since = now;
            flow.refusals += 1;
            flow.not_before = now + MAX_PAUSE.min(PAUSE * 2_u32.saturating_pow(flow.refusals - 1));
        }
    }

    /// The server has answered it, and did not refuse it.
    pub(super) fn was_answered(&self) {
        let mut flow = self.traffic.flow.lock();
        if self.began >= flow.since {
            flow.refusals = 0;
        }
        self.is_answered(&mut flow);
        self.traffic.wake(&flow);
    }

    fn is_answered(&self, flow: &mut Flow) {
        if !self.answered.swap(true, Relaxed) {
            flow.unanswered -= 1;
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.traffic.counts
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut flow = self.traffic.flow.lock();
        flow.under_way -= 1;
        self.is_answered(&mut flow);
        self.traffic.wake(&flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refusals_halve_the_limit_once_for_those_under_way() {
        let traffic = Arc::new(Traffic::new(16));
        traffic.flow.lock().since -= Duration::from_secs(2);
        let mut under_way = Vec::new();
        for _ in 0..16 {
            under_way.push(traffic.enter().await);
        }
        assert_eq!(traffic.under_way(), 16);
        for request in under_way.drain(..) {
            request.was_refused();
        }
        let pause_ends = || traffic.flow.lock().not_before = Instant::now();
        // One at first, until it is answered.
        pause_ends();
        assert_eq!((traffic.limit(), traffic.under_way()), (1, 0));
        traffic.enter().await.was_answered();
        assert_eq!(traffic.limit(), 8);
        traffic.enter().await.was_refused();
        pause_ends();
        // However long it refuses.
        traffic.flow.lock().since -= Duration::from_secs(2);
        traffic.enter().await.was_refused();
        pause_ends();
        traffic.enter().await.was_answered();
        assert_eq!(traffic.limit(), 2);
        assert_eq!(traffic.counts.refused.load(Relaxed), 18);
        // One more for each second. Sixteen were too many: that is tried again after a while.
        let after = |seconds: u64| {
            traffic.flow.lock().since -= Duration::from_secs(seconds);
            traffic.limit()
        };
        assert_eq!([after(3), after(10), after(7), after(2)], [5, 15, 15, 16]);
    }

    #[tokio::test]
    async fn a_few_begin_no_faster_than_was_refused() {
        let traffic = Arc::new(Traffic::new(3));
        traffic.flow.lock().since -= Duration::from_secs(2);
        for _ in 0..20 {
            traffic.enter().await.was_answered();
        }
        traffic.enter().await.was_refused();
        {
            let mut flow = traffic.flow.lock();
            assert_eq!(flow.pace, Some(Duration::from_secs(1).div_f64(19.0)));
            flow.not_before = Instant::now();
        }
        traffic.enter().await.was_answered();
        assert!(traffic.flow.lock().not_before > Instant::now() + Duration::from_millis(20));
        // As many as were refused, and faster again after a while.
        let after = |seconds: u64| {
            let mut flow = traffic.flow.lock();
            flow.since -= Duration::from_secs(seconds);
            (flow.limit_at(Instant::now(), 3), flow.pace_at(Instant::now()).is_some())
        };
        assert_eq!([after(1), after(2), after(5)], [(2, true), (3, true), (3, false)]);
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
