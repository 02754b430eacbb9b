//! [`ReadMemory`].

/// What reading takes in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadMemory {
    /// Bytes of a row once it is decoded; 0 where the source does not know.
    pub(crate) row_bytes: usize,
    /// Bytes that each task holds while it runs, beside the batches that it gives; empty where the source does not
    /// know.
    pub(crate) task_bytes: Vec<usize>,
    /// Bytes of the rows of each task, as far as the source knows before it reads them; empty where it does not.
    pub(crate) rows_bytes: Vec<usize>,
}
