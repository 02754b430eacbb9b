//! Tells an allocator whether memory is short.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

/// Memory is short when fewer bytes than this are free: more than an allocator keeps, and than is taken before it hears of it.
const SHORT: usize = 384 << 20;
/// It no longer is when this many are free.
const PLENTY: usize = 512 << 20;

/// The allocator of a process, as far as it can be told what to do with memory that nobody uses.
///
/// Fresh pages are slow: the kernel clears each of them. An allocator that keeps what is freed for the next who asks can make
/// reading and writing files twice as fast. But what it keeps counts as memory of the process.
pub trait Allocator: Debug + Send + Sync {
    /// Memory of the session is short: free memory should go back to the operating system at once. Or it is not (`false`), and
    /// may be kept for a second. Called when that changes, by the thread that changes it.
    fn memory_is_short(&self, short: bool);
}

/// What an allocator has been told.
#[derive(Debug)]
pub(super) struct Pressure {
    allocator: Arc<dyn Allocator>,
    short: AtomicBool,
    telling: Mutex<()>,
}

impl Pressure {
    /// Tells `allocator` that memory is short, until more is known.
    pub(super) fn new(allocator: Arc<dyn Allocator>) -> Self {
        allocator.memory_is_short(true);
        Self { allocator, short: AtomicBool::new(true), telling: Mutex::new(()) }
    }

    /// So many bytes are free now.
    pub(super) fn free(&self, bytes: impl Fn() -> usize) {
        let short = |was: bool| bytes() < if was { PLENTY } else { SHORT };
        let was = self.short.load(Relaxed);
        if short(was) == was {
            return;
        }
        let _last = self.telling.lock();
        let was = self.short.load(Relaxed);
        let is = short(was);
        if is != was {
            self.short.store(is, Relaxed);
            self.allocator.memory_is_short(is);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Hears(Mutex<Vec<bool>>);

    impl Allocator for Hears {
        fn memory_is_short(&self, short: bool) {
            self.0.lock().push(short);
        }
    }

    #[test]
    fn an_allocator_hears_of_changes_only() {
        let hears = Arc::<Hears>::default();
        let pressure = Pressure::new(Arc::<Hears>::clone(&hears));
        [SHORT, PLENTY, 2 * PLENTY, SHORT, SHORT - 1, 0, PLENTY - 1, PLENTY]
            .iter()
            .for_each(|free| pressure.free(|| *free));
        assert_eq!(*hears.0.lock(), [true, false, true, false]);
    }
}
