//! The states of a stored block and the steps between them. Each step is atomic: it is taken under the lock of the
//! block.

/// Where a block is: `B` is the block in memory, `C` its copy on disk. There is always one of the two.
#[derive(Debug)]
pub(crate) enum BlockState<B, C> {
    /// In memory only.
    Dirty(B),
    /// In memory and on disk.
    Clean(B, C),
    /// On disk only.
    Spilled(C),
}

/// What came of an attempt to move a block out of memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Eviction<B> {
    /// This is no longer needed in memory.
    Out(B),
    /// Somebody needs it in memory.
    Pinned,
    /// It is not clean: it is out already, or was never written.
    NotClean,
}

impl<B: Clone, C: Clone> BlockState<B, C> {
    /// The block, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&B> {
        match self {
            Self::Dirty(block) | Self::Clean(block, _) => Some(block),
            Self::Spilled(_) => None,
        }
    }

    /// The copy on disk, if there is one.
    pub(crate) fn copy(&self) -> Option<&C> {
        match self {
            Self::Dirty(_) => None,
            Self::Clean(_, copy) | Self::Spilled(copy) => Some(copy),
        }
    }

    /// How tables call the state.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Dirty(_) => "dirty",
            Self::Clean(..) => "clean",
            Self::Spilled(_) => "spilled",
        }
    }

    /// What has to be written for the block to become clean; `None` if there is a copy.
    pub(crate) fn begin_write(&self) -> Option<B> {
        match self {
            Self::Dirty(block) => Some(block.clone()),
            Self::Clean(..) | Self::Spilled(_) => None,
        }
    }

    /// Dirty to clean. A copy that is not needed is dropped.
    pub(crate) fn end_write(&mut self, copy: C) {
        if let Self::Dirty(block) = self {
            *self = Self::Clean(block.clone(), copy);
        }
    }

    /// Clean to spilled, unless it is pinned.
    pub(crate) fn evict(&mut self, pinned: bool) -> Eviction<B> {
        match self {
            Self::Clean(..) if pinned => Eviction::Pinned,
            Self::Clean(block, copy) => {
                let (block, copy) = (block.clone(), copy.clone());
                *self = Self::Spilled(copy);
                Eviction::Out(block)
            }
            Self::Dirty(_) | Self::Spilled(_) => Eviction::NotClean,
        }
    }

    /// Spilled to clean with what was read back. Gives it back if the block is in memory already.
    pub(crate) fn settle(&mut self, block: B) -> Result<(), B> {
        match self {
            Self::Spilled(copy) => {
                *self = Self::Clean(block, copy.clone());
                Ok(())
            }
            Self::Dirty(_) | Self::Clean(..) => Err(block),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving of writers, evictors and readers over one block.

    use super::*;
    use std::collections::HashSet;

    /// A block is a number, a copy is the number that was written.
    const CONTENT: u8 = 7;

    /// What a thread is about to do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Step {
        BeginWrite,
        EndWrite(u8),
        Evict,
        /// Pin it, or start to read it back.
        Pin,
        Settle(u8),
        Unpin,
        Done,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct World {
        /// State by name, block, copy: the state machine itself is rebuilt from these.
        block: Option<u8>,
        copy: Option<u8>,
        pins: u8,
        /// Blocks that are counted as held in memory.
        counted: i8,
        threads: Vec<Step>,
    }

    impl World {
        fn state(&self) -> BlockState<u8, u8> {
            match (self.block, self.copy) {
                (Some(block), None) => BlockState::Dirty(block),
                (Some(block), Some(copy)) => BlockState::Clean(block, copy),
                (None, Some(copy)) => BlockState::Spilled(copy),
                (None, None) => panic!("the block is lost"),
            }
        }

        /// The world after one thread took its step.
        fn step(&self, thread: usize) -> Self {
            let mut world = self.clone();
            let mut state = self.state();
            world.threads[thread] = match self.threads[thread] {
                Step::BeginWrite => state.begin_write().map_or(Step::Done, Step::EndWrite),
                Step::EndWrite(written) => {
                    state.end_write(written);
                    Step::Evict
                }
                Step::Evict => {
                    match state.evict(self.pins > 0) {
                        Eviction::Out(block) => {
                            assert_eq!((block, self.pins), (CONTENT, 0), "a pinned block left");
                            world.counted -= 1;
                        }
                        Eviction::Pinned => assert!(self.pins > 0),
                        Eviction::NotClean => {}
                    }
                    Step::Done
                }
                Step::Pin => match state.in_memory() {
                    Some(block) => {
                        assert_eq!(*block, CONTENT);
                        world.pins += 1;
                        Step::Unpin
                    }
                    None => Step::Settle(*state.copy().unwrap()),
                },
                Step::Settle(read) => {
                    assert_eq!(read, CONTENT);
                    if state.settle(read).is_ok() {
                        world.counted += 1;
                    }
                    Step::Pin
                }
                Step::Unpin => {
                    assert_eq!(state.in_memory(), Some(&CONTENT), "a pinned block is in memory");
                    world.pins -= 1;
                    Step::Done
                }
                Step::Done => Step::Done,
            };
            (world.block, world.copy) = (state.in_memory().copied(), state.copy().copied());
            assert_eq!(world.counted, i8::from(world.block.is_some()), "{self:?} -> {world:?}");
            world
        }
    }

    #[test]
    fn no_interleaving_loses_a_block_or_its_count() {
        use Step::{BeginWrite, Done, Evict, Pin};
        let threads = vec![BeginWrite, BeginWrite, Evict, Evict, Pin, Pin];
        let start = World { block: Some(CONTENT), copy: None, pins: 0, counted: 1, threads };
        let mut seen = HashSet::new();
        let mut open = vec![start];
        let mut ends = 0;
        while let Some(world) = open.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let running: Vec<_> = (0..world.threads.len()).filter(|t| world.threads[*t] != Done).collect();
            ends += usize::from(running.is_empty());
            open.extend(running.into_iter().map(|thread| world.step(thread)));
        }
        assert!(ends > 0 && seen.len() > 500, "{ends} ends of {} worlds", seen.len());
    }
}
