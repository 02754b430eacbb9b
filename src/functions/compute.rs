//! How a map operator is to run.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, plan_err};

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

/// A number of tasks or actors, or a range of it. Written `8` or `2..8`; `2..` has no upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concurrency {
    /// This many.
    Fixed(usize),
    /// As many as there is work for, within these bounds. The lower one may be 0; without an upper one, as many as
    /// there are resources for.
    Range(usize, Option<usize>),
}

impl From<usize> for Concurrency {
    fn from(n: usize) -> Self {
        Self::Fixed(n)
    }
}

impl From<(usize, usize)> for Concurrency {
    fn from((min, max): (usize, usize)) -> Self {
        Self::Range(min, Some(max))
    }
}

impl FromStr for Concurrency {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let parsed = match text.split_once("..") {
            None => number(text).map(Self::Fixed),
            Some((min, "")) => number(min).map(|min| Self::Range(min, None)),
            Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| Self::Range(min, Some(max))),
        };
        match parsed {
            Some(concurrency) => Ok(concurrency),
            None => plan_err!("'{text}' is not a concurrency; write for example 8, 2..8 or 2.."),
        }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Range(min, Some(max)) => write!(f, "{min}..{max}"),
            Self::Range(min, None) => write!(f, "{min}.."),
        }
    }
}

/// What the user says of tasks and actors. Written `tasks`, `tasks(8)`, `actors`, `actors(4)` or `actors(2..8)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComputeStrategy {
    /// Actors for functions with state, else tasks.
    #[default]
    Auto,
    /// Tasks: any thread runs any of them.
    Tasks(Option<Concurrency>),
    /// Actors: threads that run one task after the other and keep state between them.
    Actors(Option<Concurrency>),
}

impl ComputeStrategy {
    /// How many there are, if it says so.
    pub(crate) fn size(self) -> Option<Concurrency> {
        match self {
            Self::Auto => None,
            Self::Tasks(size) | Self::Actors(size) => size,
        }
    }

    /// The same without saying how many there are.
    pub(crate) fn without_size(self) -> Self {
        match self {
            Self::Auto => Self::Auto,
            Self::Tasks(_) => Self::Tasks(None),
            Self::Actors(_) => Self::Actors(None),
        }
    }
}

impl FromStr for ComputeStrategy {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let (name, size) = match text.trim().strip_suffix(')').and_then(|text| text.split_once('(')) {
            Some((name, size)) => (name.trim(), Some(size.parse()?)),
            None => (text.trim(), None),
        };
        match name {
            "tasks" => Ok(Self::Tasks(size)),
            "actors" => Ok(Self::Actors(size)),
            _ => plan_err!("unknown compute '{text}'; write tasks, tasks(8), actors, actors(4) or actors(2..8)"),
        }
    }
}

/// The actors of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorPool {
    /// The fewest of them, which are started before there is work.
    pub min: usize,
    /// The most of them. `None`: as many as there are resources for.
    pub max: Option<usize>,
    /// Tasks that an actor has at most: one that it runs, and others whose input is fetched meanwhile.
    pub max_tasks_in_flight: usize,
}

/// What runs the tasks of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workers {
    /// Tasks, and the most that run at once. `None`: as many as there are threads.
    Tasks(Option<usize>),
    /// Actors.
    Actors(ActorPool),
}

impl ActorPool {
    /// Tasks that an actor has at most, if nothing is said.
    pub(crate) const MAX_TASKS_IN_FLIGHT: usize = 2;

    /// How many there are.
    pub(crate) fn size(self) -> Concurrency {
        if self.max == Some(self.min) { Concurrency::Fixed(self.min) } else { Concurrency::Range(self.min, self.max) }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::Tasks(None)
    }
}

/// Workers and resources of a map operator. Two operators fuse only when theirs are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, Default)]
pub struct Compute {
    /// What runs the tasks.
    pub workers: Workers,
    /// Logical CPUs of a task in thousandths. `None`: 1000.
    pub milli_cpus: Option<u32>,
    /// GPUs of a task while it runs, in thousandths. `None` or 0: none.
    pub milli_gpus: Option<u32>,
    /// Memory that a task is expected to need while it runs. `None` or 0: not said.
    pub memory: Option<ByteSize>,
    /// Resources by name, in thousandths.
    pub resources: BTreeMap<String, u32>,
    /// Calls of an async function that each task has in flight at most; 0 for functions that are not async.
    pub max_concurrency: usize,
}

/// Calls of an async function that a task has in flight, if nothing is said.
pub(super) const CALLS_IN_FLIGHT: usize = 16;

impl Compute {
    /// The same with everything that is said to be the default left out, so that equal means the same.
    pub fn canonical(&self) -> Self {
        Self {
            workers: self.workers,
            milli_cpus: self.milli_cpus.filter(|c| *c != 1000),
            milli_gpus: self.milli_gpus.filter(|g| *g != 0),
            memory: self.memory.filter(|m| m.0 != 0),
            resources: self.resources.iter().filter(|(_, n)| **n != 0).map(|(name, n)| (name.clone(), *n)).collect(),
            // How many calls a task has in flight is the step's business: it does not keep stages apart.
            max_concurrency: 0,
        }
    }

    /// Whether a task needs what any task needs that says nothing.
    pub fn needs_nothing_special(&self) -> bool {
        Self { workers: Workers::default(), ..self.canonical() } == Self::default()
    }

    /// How many calls of an async function a task has in flight, where that is not the default.
    pub(crate) fn said_max_concurrency(&self) -> Option<usize> {
        Some(self.max_concurrency).filter(|n| ![0, CALLS_IN_FLIGHT].contains(n))
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, milli_cpus, milli_gpus, memory, resources, .. } = self.canonical();
        let thousandths = |n: u32| f64::from(n) / 1000.0;
        match workers {
            Workers::Tasks(None) => {}
            Workers::Tasks(Some(n)) => write!(f, ", concurrency={n}")?,
            Workers::Actors(pool) => {
                write!(f, ", compute=actors({})", pool.size())?;
                if pool.max_tasks_in_flight != ActorPool::MAX_TASKS_IN_FLIGHT {
                    write!(f, ", max_tasks_in_flight_per_actor={}", pool.max_tasks_in_flight)?;
                }
            }
        }
        milli_cpus.map_or(Ok(()), |n| write!(f, ", num_cpus={}", thousandths(n)))?;
        milli_gpus.map_or(Ok(()), |n| write!(f, ", num_gpus={}", thousandths(n)))?;
        memory.map_or(Ok(()), |memory| write!(f, ", memory={memory}"))?;
        self.said_max_concurrency().map_or(Ok(()), |n| write!(f, ", max_concurrency={n}"))?;
        if resources.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = resources.iter().map(|(name, n)| format!("{name}={}", thousandths(*n))).collect();
        write!(f, ", resources={}", named.join(","))
    }
}
