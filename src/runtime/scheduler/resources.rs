//! Amounts of logical resources.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::ByteSize;

/// An amount of each resource. CPUs and GPUs are logical and counted in thousandths: they say how many tasks run at
/// once, not how fast.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub milli_cpus: u64,
    /// Thousandths of a GPU.
    pub milli_gpus: u64,
    /// Bytes that tasks say they need.
    pub memory: u64,
    /// Bytes of blocks.
    pub object_store_memory: u64,
    /// What the application has named, in thousandths.
    pub custom: BTreeMap<String, u64>,
}

impl Resources {
    /// As much of everything as anybody could want. Custom resources are only there where they are named.
    pub fn unlimited() -> Self {
        Self {
            milli_cpus: u64::MAX,
            milli_gpus: u64::MAX,
            memory: u64::MAX,
            object_store_memory: u64::MAX,
            custom: BTreeMap::new(),
        }
    }

    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let names = self.custom.keys().chain(other.custom.keys());
        let custom = names.map(|name| (name.clone(), f(self.named(name), other.named(name)))).collect();
        Self {
            milli_cpus: f(self.milli_cpus, other.milli_cpus),
            milli_gpus: f(self.milli_gpus, other.milli_gpus),
            memory: f(self.memory, other.memory),
            object_store_memory: f(self.object_store_memory, other.object_store_memory),
            custom,
        }
    }

    pub(super) fn named(&self, name: &str) -> u64 {
        self.custom.get(name).copied().unwrap_or(0)
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        // What is without bound stays so.
        self.zip(other, |a, b| if a == u64::MAX { a } else { a.saturating_sub(b) })
    }

    pub(super) fn least(&self, other: &Self) -> Self {
        self.zip(other, u64::min)
    }

    pub(crate) fn times(&self, factor: u64) -> Self {
        self.zip(&Self::default(), |a, _| a.saturating_mul(factor))
    }

    /// What there is without custom resources.
    pub(super) fn amounts(&self) -> Amounts {
        Amounts([self.milli_cpus, self.milli_gpus, self.memory, self.object_store_memory])
    }

    /// Whether there is enough of everything in `available`.
    #[cfg(test)]
    pub(super) fn fits(&self, available: &Self) -> bool {
        self.lacking(available).is_none()
    }

    /// The resource of which there is not enough in `available`: its name, what is wanted and what there is.
    pub(super) fn lacking(&self, available: &Self) -> Option<(String, u64, u64)> {
        let fixed = [
            ("CPUs", self.milli_cpus, available.milli_cpus),
            ("GPUs", self.milli_gpus, available.milli_gpus),
            ("memory", self.memory, available.memory),
            ("object store memory", self.object_store_memory, available.object_store_memory),
        ];
        let fixed = fixed.into_iter().map(|(name, wanted, there)| (name.to_owned(), wanted, there));
        let custom = self.custom.iter().map(|(name, wanted)| (name.clone(), *wanted, available.named(name)));
        fixed.chain(custom).find(|(_, wanted, there)| wanted > there)
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = |amount: u64| amount as f64 / 1000.0;
        let mut parts = Vec::new();
        if self.milli_cpus > 0 {
            parts.push(format!("{} CPU", thousandths(self.milli_cpus)));
        }
        if self.milli_gpus > 0 {
            parts.push(format!("{} GPU", thousandths(self.milli_gpus)));
        }
        if self.memory > 0 {
            parts.push(format!("{} memory", ByteSize(self.memory as usize)));
        }
        if self.object_store_memory > 0 {
            parts.push(format!("{} object store", ByteSize(self.object_store_memory as usize)));
        }
        parts
            .extend(self.custom.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{} {name}", thousandths(*n))));
        f.write_str(&if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") })
    }
}

/// CPUs, GPUs, memory and object store memory: what the allocator divides, many times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Amounts(pub(super) [u64; 4]);

impl Amounts {
    pub(super) const UNLIMITED: Self = Self([u64::MAX; 4]);

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        // What is without bound stays so.
        self.zip(other, |a, b| if a == u64::MAX { a } else { a.saturating_sub(b) })
    }

    pub(super) fn least(self, other: Self) -> Self {
        self.zip(other, u64::min)
    }

    pub(super) fn most(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }

    pub(super) fn times(self, factor: u64) -> Self {
        self.zip(Self::default(), |a, _| a.saturating_mul(factor))
    }

    /// One of `parts` equal parts.
    pub(super) fn part(self, parts: u64) -> Self {
        self.zip(Self::default(), |a, _| if a == u64::MAX { a } else { a / parts.max(1) })
    }

    /// Bytes of blocks.
    pub(super) fn bytes(self) -> u64 {
        self.0[3]
    }

    /// The same with other bytes of blocks.
    pub(super) fn with_bytes(mut self, bytes: u64) -> Self {
        self.0[3] = bytes;
        self
    }

    /// The same without CPUs and GPUs.
    pub(super) fn without_processors(mut self) -> Self {
        (self.0[0], self.0[1]) = (0, 0);
        self
    }

    /// Whether there is enough of everything in `available`.
    pub(super) fn fits(self, available: Self) -> bool {
        self.0.iter().zip(available.0).all(|(wanted, there)| *wanted <= there)
    }
}
