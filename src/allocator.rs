//! The allocator of the tool. Memory that is freed has to go back to the operating system soon, or the memory limit would
//! say little about the size of the process.

#![expect(unsafe_code, reason = "jemalloc finds its settings by the name of a symbol")]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Pages that nobody uses go back within a twentieth of a second, by the threads that allocate: the thread that jemalloc
/// has for it comes ten times a second only. Buffers of a mebibyte and more go back at once. An arena per processor, which
/// all threads on it share: memory that waits in the arena of a thread that is idle would stay. Threads keep nothing but
/// small buffers for themselves: there can be many that read and write files now and then.
#[cfg(target_os = "linux")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] =
    b"percpu_arena:percpu,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,tcache_max:4096\0";

/// As on Linux, with few arenas where a thread cannot tell its processor.
#[cfg(not(target_os = "linux"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] = b"narenas:4,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:1048576,tcache_max:4096\0";
