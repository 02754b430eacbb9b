//! Where a task or a block stands in the order of a dataset.

use std::fmt;
use std::sync::Arc;

/// Identity of a task or block: the path by which it came from the input. Read task 7 is `7`, the second block that it
/// emits is `7.1`, a task over that block has the same id, and what that task emits is `7.1.0`, and so on.
///
/// Ids compare in the order of the rows. They come from the data and the plan, never from threads or arrival, so a task
/// that runs again has the same id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Arc<[u32]>);

impl TaskId {
    /// The `index`-th task of a source.
    pub fn root(index: usize) -> Self {
        Self(Arc::new([index as u32]))
    }

    /// The `index`-th thing that came out of this one.
    pub fn child(&self, index: usize) -> Self {
        self.0.iter().copied().chain([index as u32]).collect::<Vec<_>>().into()
    }

    /// Whether it is the first thing that came out of another, or the first task of a source.
    pub(crate) fn is_first(&self) -> bool {
        self.0.last() == Some(&0)
    }

    /// The number of the input that it is within, and what it is there.
    pub(crate) fn out_of(&self) -> Option<(u32, Self)> {
        let (first, rest) = self.0.split_first()?;
        Some((*first, Self::from(rest.to_vec())))
    }

    /// The same within the `index`-th of several inputs.
    pub fn within(&self, index: usize) -> Self {
        [index as u32].into_iter().chain(self.0.iter().copied()).collect::<Vec<_>>().into()
    }

    /// Whether it is a task or what came out of it.
    pub(crate) fn is_within(&self, task: &Self) -> bool {
        self.0.starts_with(&task.0)
    }

    /// The task of the source that it came from, where it came from one source.
    pub(crate) fn task_of_source(&self) -> usize {
        self.0.first().map_or(0, |index| *index as usize)
    }

    /// The first `parts` parts: the task that it came from.
    pub(crate) fn first_parts(&self, parts: usize) -> Self {
        self.0.iter().take(parts).copied().collect::<Vec<_>>().into()
    }

    /// The path.
    pub(crate) fn parts(&self) -> &[u32] {
        &self.0
    }

    /// A number that depends on nothing but the id, for seeding.
    pub fn hash(&self) -> u64 {
        self.0.iter().fold(0xcbf2_9ce4_8422_2325, |h, part| mix(h ^ u64::from(*part)))
    }
}

impl From<Vec<u32>> for TaskId {
    fn from(path: Vec<u32>) -> Self {
        Self(path.into())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            write!(f, "{part}")?;
        }
        Ok(())
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits in which every input bit reaches every
/// output bit.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number for row `row` of the task with hash `task`, the same in every run.
pub(crate) fn row_random(seed: u64, task: u64, row: u64) -> u64 {
    mix(mix(seed ^ mix(task)) ^ row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_the_order_of_rows() {
        let task = TaskId::root(7);
        assert!(task.child(1) < task.child(2));
        assert!(task.child(2).child(9) < task.child(10));
        assert!(task.child(9999) < TaskId::root(8));
        assert!(task.child(0).is_first() && !task.is_first());
        assert_eq!(task.child(1).child(0).to_string(), "7.1.0");
    }
}
