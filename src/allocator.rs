//! The allocator of the tool. Memory that is freed has to go back to the operating system soon, or the memory limit would
//! say little about the size of the process.

#![expect(unsafe_code, reason = "jemalloc finds its settings by the name of a symbol")]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Pages that nobody uses go back within a fifth of a second, by a thread of the allocator, and buffers of a mebibyte and
/// more at once. Few arenas: memory that one thread allocates and another frees stays in the arena of the first.
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8] =
    b"narenas:4,background_thread:true,dirty_decay_ms:200,muzzy_decay_ms:0,oversize_threshold:1048576\0";
