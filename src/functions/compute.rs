//! How a map operator is to run.

use std::fmt;

use datafusion::common::{Result, plan_err};

use crate::config::ByteSize;

/// How many rows a function gets at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum BatchSize {
    /// The batches that stream by, of at most `datafusion.execution.batch_size` rows. Nothing is copied.
    #[default]
    AsTheyCome,
    /// This many rows; the last batch of a task may be shorter. At least 1.
    Rows(usize),
    /// The whole block in one batch.
    WholeBlock,
}

impl From<usize> for BatchSize {
    fn from(rows: usize) -> Self {
        Self::Rows(rows)
    }
}

/// Concurrency and resources of a map operator. Two operators fuse only when theirs are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, Default)]
pub struct Compute {
    /// Most tasks that run at once. `None`: as many as there are threads.
    pub concurrency: Option<usize>,
    /// Logical CPUs of a task in thousandths. `None`: 1000.
    pub milli_cpus: Option<u32>,
    /// Memory that a task is expected to need. `None` or 0: not said.
    pub memory: Option<ByteSize>,
}

impl Compute {
    /// The compute of a call. `num_cpus` must not be negative, `concurrency` at least 1.
    pub fn try_new(concurrency: Option<usize>, num_cpus: Option<f64>, memory: Option<ByteSize>) -> Result<Self> {
        if concurrency == Some(0) {
            return plan_err!("concurrency must be at least 1, got 0");
        }
        if let Some(cpus) = num_cpus.filter(|cpus| !(0.0..=1e6).contains(cpus)) {
            return plan_err!("num_cpus must not be negative, got {cpus}");
        }
        Ok(Self { concurrency, milli_cpus: num_cpus.map(|cpus| (cpus * 1000.0).round() as u32), memory })
    }

    /// The same with everything that is said to be the default left out, so that equal means the same.
    pub fn canonical(&self) -> Self {
        Self {
            concurrency: self.concurrency,
            milli_cpus: self.milli_cpus.filter(|c| *c != 1000),
            memory: self.memory.filter(|m| m.0 != 0),
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { concurrency, milli_cpus, memory } = self.canonical();
        if let Some(n) = concurrency {
            write!(f, ", concurrency={n}")?;
        }
        if let Some(c) = milli_cpus {
            write!(f, ", num_cpus={}", f64::from(c) / 1000.0)?;
        }
        if let Some(m) = memory {
            write!(f, ", memory={m}")?;
        }
        Ok(())
    }
}
