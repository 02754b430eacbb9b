//! Tells an allocator how much of the memory that nobody uses it may keep.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::store::Budget;

/// There is no longer plenty of memory when fewer bytes than this are free: more than an allocator keeps, and than is
/// taken before it hears of it.
const SHORT: usize = 384 << 20;
/// There is when this many are free.
const PLENTY: usize = 512 << 20;
/// The process is small when it is below the limit by this, until it reaches the limit.
const ROOM: usize = 64 << 20;
/// How often the size of the process is looked at while bytes move.
const LOOK: Duration = Duration::from_millis(1);
/// So many looks without a move, and nobody looks until something moves.
const IDLE_LOOKS: usize = 1000;

/// What an allocator does with memory that is free, from the least that it keeps to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheLevel {
    /// Nothing: all goes back to the operating system at once.
    Nothing,
    /// What is freed, for up to a second: the process is smaller than its limit. It hears when it is not.
    Freed,
    /// What is freed, for some seconds, and pages may be huge where the kernel makes them so: memory is plenty.
    FreedAndHuge,
}

/// The allocator of a process, as far as it can be told what to do with memory that nobody uses.
///
/// Fresh pages are slow: the kernel clears each of them. An allocator that keeps what is freed for the next who asks
/// can make reading and writing files twice as fast. But what it keeps counts as memory of the process.
pub trait Allocator: Debug + Send + Sync {
    /// What to keep from now on. What is kept beyond that goes back. Called when it changes.
    fn keep(&self, keep: CacheLevel);

    /// Bytes of the process that are in memory. Where that cannot be told, nothing is kept unless memory is plenty.
    fn resident(&self) -> Option<usize>;
}

/// What an allocator has been told.
#[derive(Debug)]
pub(crate) struct Pressure {
    allocator: Arc<dyn Allocator>,
    told: Mutex<Advice>,
    news: Condvar,
    /// Whether nobody looks until something moves.
    idle: AtomicBool,
}

#[derive(Debug)]
struct Advice {
    keep: CacheLevel,
    ended: bool,
}

impl Pressure {
    /// Tells `allocator` to keep nothing, until more is known.
    pub(crate) fn new(allocator: Arc<dyn Allocator>) -> Self {
        allocator.keep(CacheLevel::Nothing);
        let told = Mutex::new(Advice { keep: CacheLevel::Nothing, ended: false });
        Self { allocator, told, news: Condvar::new(), idle: AtomicBool::new(false) }
    }

    /// Bytes were taken or given back.
    pub(crate) fn moved(&self) {
        if self.idle.load(Relaxed) && self.idle.swap(false, Relaxed) {
            let _waits = self.told.lock();
            self.news.notify_all();
        }
    }

    /// Nobody needs [`Pressure::watch`] any more.
    pub(crate) fn end(&self) {
        self.told.lock().ended = true;
        self.news.notify_all();
    }

    /// Looks at what is in use and at the size of the process as long as bytes move, until the budget is gone.
    pub(crate) fn watch(&self, budget: &Weak<Budget>) {
        let (mut moves, mut still) = (0, 0);
        let mut told = self.told.lock();
        while !told.ended {
            let Some(budget) = budget.upgrade() else { return };
            self.look(&mut told, budget.allocator_limit(), budget.used());
            let now = budget.moves();
            still = if now == moves { still + 1 } else { 0 };
            moves = now;
            // Who drops the last budget waits for the lock.
            MutexGuard::unlocked(&mut told, || drop(budget));
            if told.ended {
                return;
            }
            if still < IDLE_LOOKS {
                let _timeout = self.news.wait_for(&mut told, LOOK);
            } else {
                still = 0;
                self.idle.store(true, Relaxed);
                self.news.wait(&mut told);
            }
        }
    }

    /// Tells the allocator what to keep, if that has changed.
    fn look(&self, told: &mut Advice, limit: usize, used: usize) {
        let keep = self.keep(told.keep, limit, used);
        if keep != told.keep {
            told.keep = keep;
            self.allocator.keep(keep);
        }
    }

    fn keep(&self, was: CacheLevel, limit: usize, used: usize) -> CacheLevel {
        let resident = self.allocator.resident();
        // What is lent, and what is not counted, is in the process only.
        let free = limit.saturating_sub(used.max(resident.unwrap_or(0)));
        let plenty = free >= if was == CacheLevel::FreedAndHuge { SHORT } else { PLENTY };
        let most = if was == CacheLevel::Nothing { limit.saturating_sub(ROOM) } else { limit };
        match resident {
            _ if plenty => CacheLevel::FreedAndHuge,
            Some(resident) if resident < most => CacheLevel::Freed,
            _ => CacheLevel::Nothing,
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a thread of a test is joined by it")]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// An allocator of a process of a size, which notes what it hears.
    #[derive(Debug, Default)]
    struct Hears {
        resident: AtomicUsize,
        heard: Mutex<Vec<CacheLevel>>,
        news: Condvar,
    }

    impl Allocator for Hears {
        fn keep(&self, keep: CacheLevel) {
            self.heard.lock().push(keep);
            self.news.notify_all();
        }

        fn resident(&self) -> Option<usize> {
            Some(self.resident.load(Relaxed))
        }
    }

    #[test]
    fn an_allocator_hears_of_changes_only() {
        let hears = Arc::<Hears>::default();
        let pressure = Pressure::new(Arc::<Hears>::clone(&hears));
        let limit = 2 * PLENTY;
        let mut told = Advice { keep: CacheLevel::Nothing, ended: false };
        for (free, resident) in [
            (PLENTY, limit - PLENTY),
            (2 * PLENTY, limit - SHORT),
            (SHORT - 1, 0),
            (PLENTY - 1, limit - 1),
            (PLENTY - 1, limit),
            (0, limit - ROOM),
            (2 * PLENTY, limit - ROOM - 1),
            (PLENTY, limit - PLENTY),
            (2 * PLENTY, limit),
        ] {
            hears.resident.store(resident, Relaxed);
            pressure.look(&mut told, limit, limit - free);
        }
        let some = [CacheLevel::FreedAndHuge, CacheLevel::Freed, CacheLevel::Nothing];
        assert_eq!(
            *hears.heard.lock(),
            [&[CacheLevel::Nothing][..], &some, &[CacheLevel::Freed], &some[..1], &some[2..]].concat()
        );
    }

    #[test]
    fn who_watches_sees_the_process_grow_and_ends_with_the_budget() {
        let hears = Arc::<Hears>::default();
        let limit = PLENTY - 1;
        let budget = Arc::new(Budget::new(limit).with_allocator(Some(Arc::<Hears>::clone(&hears) as _)));
        let watch = std::thread::spawn(Budget::watch(&budget).unwrap());
        let mut heard = hears.heard.lock();
        while heard.last() != Some(&CacheLevel::Freed) {
            hears.news.wait(&mut heard);
        }
        hears.resident.store(limit, Relaxed);
        while heard.last() != Some(&CacheLevel::Nothing) {
            hears.news.wait(&mut heard);
        }
        drop((heard, budget));
        watch.join().unwrap();
    }
}
