//! The allocator of the tool. When memory is short, what is freed has to go back to the operating system soon, or the
//! memory limit would say little about the size of the process; when there is plenty, it is kept for the next who asks.

#![expect(
    unsafe_code,
    reason = "jemalloc finds its settings by the name of a symbol, and takes any value for a setting, as the kernel does"
)]

use std::sync::Arc;

use blockyard::Allocator;
use tikv_jemalloc_ctl::raw;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Pages that nobody uses go back within a twentieth of a second, by the threads that allocate: the thread that jemalloc
/// has for it comes ten times a second only. Buffers of a mebibyte and more go back at once. Pages are huge where the kernel has
/// some and [`huge_pages`] lets it: a page fault for every 4 KiB takes longer than to fill them. An arena per processor, which all threads on it share: memory that waits in the arena of a thread that is
/// idle would stay. Threads keep nothing but small buffers for themselves: there can be many that read and write files now
/// and then.
#[cfg(target_os = "linux")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] = b"percpu_arena:percpu,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,\
    thp:always,tcache_max:4096\0";

/// As on Linux, with few arenas where a thread cannot tell its processor.
#[cfg(not(target_os = "linux"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] = b"narenas:4,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,tcache_max:4096\0";

/// How long free pages are kept when memory is short, and otherwise.
const SHORT_MS: isize = 50;
const PLENTY_MS: isize = 1000;
/// Free memory in one piece of this many bytes goes back at once when memory is short.
const OVERSIZE: usize = 1 << 20;
/// A buffer that is large enough for the arena of large ones, which is made when there is the first.
const LARGE: usize = 2 << 20;

/// The allocator as one that can be told.
pub(crate) fn allocator() -> Arc<dyn Allocator> {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
    Arc::new(Jemalloc)
}

#[derive(Debug)]
struct Jemalloc;

/// Whether pages may be huge from now on. A huge page is in memory as a whole when one byte of it is: when memory is short, a few
/// buffers would take much more than they have.
#[cfg(target_os = "linux")]
fn huge_pages(may_be: bool) {
    // SAFETY: it takes four numbers and touches no memory.
    let _set = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!may_be), 0, 0, 0) };
}

#[cfg(not(target_os = "linux"))]
fn huge_pages(_may_be: bool) {}

impl Allocator for Jemalloc {
    fn memory_is_short(&self, short: bool) {
        huge_pages(!short);
        // What cannot be set stays as it is: a setting is no reason to fail.
        // SAFETY: jemalloc says that this is of type `unsigned`.
        let Ok(arenas) = (unsafe { raw::read::<u32>(b"arenas.narenas\0") }) else {
            return;
        };
        for arena in 0..arenas {
            // The last of those that jemalloc makes itself is for large buffers.
            let decay = match short {
                true if arena + 1 == arenas => 0,
                true => SHORT_MS,
                false => PLENTY_MS,
            };
            let at_once = if short { OVERSIZE } else { usize::MAX };
            let (keep, oversize) =
                (format!("arena.{arena}.dirty_decay_ms\0"), format!("arena.{arena}.oversize_threshold\0"));
            // SAFETY: jemalloc says that these are of type `size_t` and `ssize_t`.
            let _set = unsafe { raw::write(oversize.as_bytes(), at_once) };
            let _set = unsafe { raw::write(keep.as_bytes(), decay) };
        }
    }
}
