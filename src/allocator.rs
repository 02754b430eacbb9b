//! The allocator of the tool. When the process is as large as its limit, what is freed has to go back to the operating
//! system soon, or the memory limit would say little; otherwise it is kept for the next who asks.

#![expect(
    unsafe_code,
    reason = "jemalloc finds its settings by the name of a symbol, and takes any value for a setting, as the kernel does"
)]

use std::fs::File;
use std::sync::Arc;

use blockyard::store::{Allocator, CacheLevel};
use tikv_jemalloc_ctl::raw;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Until it hears otherwise, pages that nobody uses go back within a twentieth of a second, by the threads that
/// allocate: the thread that jemalloc has for it comes ten times a second only. Buffers of a mebibyte and more go back
/// at once. Pages are huge where the kernel makes them so unasked and [`huge_pages`] lets it: asked for, they made
/// everything a third slower on a virtual machine that gives free memory back to its host. An arena per processor,
/// which all threads on it share: memory that waits in the arena of a thread that is idle would stay. Threads keep
/// nothing but small buffers for themselves: there can be many that read and write files now and then.
#[cfg(target_os = "linux")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] = b"percpu_arena:percpu,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,\
    tcache_max:4096\0";

/// As on Linux, with few arenas where a thread cannot tell its processor.
#[cfg(not(target_os = "linux"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] = b"narenas:4,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,tcache_max:4096\0";

/// For how many milliseconds free pages are kept: where nothing should be, below the limit, and where memory is plenty.
/// Buffers of reads come and go with each row group; pages that are made anew for them were a tenth of the CPU time.
const SHORT_MS: isize = 50;
const LONG_MS: isize = 1000;
const PLENTY_MS: isize = 4000;
/// Free memory in one piece of this many bytes goes back at once, where nothing should be kept and otherwise. Buffers
/// that grow take more than they fill: from what was kept, that would be memory.
const SHORT_PIECE: usize = 1 << 20;
const LONG_PIECE: usize = 32 << 20;
/// A buffer that is large enough for the arena of large ones, which is made when there is the first.
const LARGE: usize = 2 << 20;

/// The allocator as one that can be told.
pub(crate) fn allocator() -> Arc<dyn Allocator> {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
    Arc::new(Jemalloc { size: ProcessSize::open() })
}

#[derive(Debug)]
struct Jemalloc {
    size: Option<ProcessSize>,
}

impl Allocator for Jemalloc {
    fn keep(&self, keep: CacheLevel) {
        huge_pages(keep == CacheLevel::FreedAndHuge);
        // What cannot be set stays as it is: a setting is no reason to fail.
        // SAFETY: jemalloc says that this is of type `unsigned`.
        let Ok(arenas) = (unsafe { raw::read::<u32>(b"arenas.narenas\0") }) else {
            return;
        };
        for arena in 0..arenas {
            // The last of those that jemalloc makes itself is for large buffers.
            let (decay, at_once) = match keep {
                CacheLevel::Nothing if arena + 1 == arenas => (0, SHORT_PIECE),
                CacheLevel::Nothing => (SHORT_MS, SHORT_PIECE),
                CacheLevel::Freed => (LONG_MS, LONG_PIECE),
                CacheLevel::FreedAndHuge => (PLENTY_MS, usize::MAX),
            };
            let (ms, oversize) =
                (format!("arena.{arena}.dirty_decay_ms\0"), format!("arena.{arena}.oversize_threshold\0"));
            // SAFETY: jemalloc says that these are of type `size_t` and `ssize_t`.
            let _set = unsafe { raw::write(oversize.as_bytes(), at_once) };
            let _set = unsafe { raw::write(ms.as_bytes(), decay) };
        }
    }

    fn resident(&self) -> Option<usize> {
        self.size.as_ref()?.resident()
    }
}

/// Whether pages may be huge from now on. A huge page is in memory as a whole when one byte of it is: when memory is
/// short, a few buffers would take much more than they have.
#[cfg(target_os = "linux")]
fn huge_pages(may_be: bool) {
    // SAFETY: it takes four numbers and touches no memory.
    let _set = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!may_be), 0, 0, 0) };
}

#[cfg(not(target_os = "linux"))]
fn huge_pages(_may_be: bool) {}

/// Where the kernel tells the size of the process, as text: its pages, and those that are in memory.
#[derive(Debug)]
struct ProcessSize {
    file: File,
    page_bytes: usize,
}

impl ProcessSize {
    #[cfg(target_os = "linux")]
    fn open() -> Option<Self> {
        // SAFETY: it takes a number and touches no memory.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        Some(Self { file: File::open("/proc/self/statm").ok()?, page_bytes })
    }

    #[cfg(not(target_os = "linux"))]
    fn open() -> Option<Self> {
        None
    }

    #[cfg(unix)]
    fn resident(&self) -> Option<usize> {
        let mut text = [0; 128];
        let length = std::os::unix::fs::FileExt::read_at(&self.file, &mut text, 0).ok()?;
        let pages = str::from_utf8(text.get(..length)?).ok()?.split(' ').nth(1)?;
        Some(pages.parse::<usize>().ok()? * self.page_bytes)
    }

    #[cfg(not(unix))]
    fn resident(&self) -> Option<usize> {
        None
    }
}
