//! How a map operator is to run.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, plan_err};

use super::{FunctionRef, MapOptions};
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
    /// As many as there is work for, within these bounds. The lower one may be 0; without an upper one, as many as there
    /// are resources for.
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

/// Threads that one operator may be given by number: a process has some tens of thousands at most.
const MAX_WORKERS: usize = 1024;

/// Calls of an async function that a task has in flight, if nothing is said.
const CALLS_IN_FLIGHT: usize = 16;

impl MapOptions {
    /// Workers and resources for `function`, if what is said of them fits together.
    pub fn compute(&self, function: &FunctionRef) -> Result<Compute> {
        let (is_stateful, is_async, function) = (function.is_stateful(), function.is_async(), function.name());
        let max_concurrency = match self.max_concurrency {
            Some(0) => return plan_err!("max_concurrency must be at least 1, got 0"),
            Some(_) if !is_async => {
                return plan_err!("max_concurrency is for async functions, and '{function}' is none");
            }
            said if is_async => said.unwrap_or(CALLS_IN_FLIGHT),
            _ => 0,
        };
        let thousandths = |name: &str, amount: f64| match (0.0..=1e6).contains(&amount) {
            true => Ok((amount * 1000.0).round() as u32),
            false if amount > 1e6 => plan_err!("{name} must not be more than 1000000, got {amount:e}"),
            false => plan_err!("{name} must not be negative, got {amount}"),
        };
        let amount = |name, amount: Option<f64>| amount.map(|amount| thousandths(name, amount)).transpose();
        let resources = self.resources.iter().map(|(name, n)| Ok((name.clone(), thousandths(name, *n)?)));
        Ok(Compute {
            workers: self.workers(function, is_stateful)?,
            milli_cpus: amount("num_cpus", self.num_cpus)?,
            milli_gpus: amount("num_gpus", self.num_gpus)?,
            memory: self.memory,
            resources: resources.collect::<Result<_>>()?,
            max_concurrency,
        })
    }

    fn workers(&self, function: &str, is_stateful: bool) -> Result<Workers> {
        let (actors, size) = match self.compute {
            ComputeStrategy::Auto => (is_stateful, None),
            ComputeStrategy::Tasks(_) if is_stateful => {
                return plan_err!("'{function}' has state, which tasks do not keep; use compute => 'actors'");
            }
            ComputeStrategy::Tasks(size) => (false, size),
            ComputeStrategy::Actors(size) => (true, size),
        };
        let size = match (size, self.concurrency) {
            (Some(size), Some(concurrency)) if size != concurrency => {
                return plan_err!("compute says {size} and concurrency says {concurrency}; one of them is enough");
            }
            (size, concurrency) => size.or(concurrency),
        };
        match size {
            Some(Concurrency::Fixed(n) | Concurrency::Range(_, Some(n)) | Concurrency::Range(n, None))
                if n > MAX_WORKERS =>
            {
                return plan_err!("concurrency must be at most {MAX_WORKERS}, since each has a thread, got {n}");
            }
            Some(Concurrency::Fixed(0) | Concurrency::Range(_, Some(0))) => {
                return plan_err!("concurrency must be at least 1, got 0");
            }
            Some(Concurrency::Range(min, Some(max))) if min > max => {
                return plan_err!("the range {min}..{max} of concurrency is empty");
            }
            Some(range @ Concurrency::Range(..)) if !actors => {
                return plan_err!("a range of concurrency, {range}, is for actors: add compute => 'actors'");
            }
            _ => {}
        }
        let in_flight = self.max_tasks_in_flight_per_actor;
        if !actors {
            return match (in_flight, size) {
                (Some(_), _) => plan_err!("max_tasks_in_flight_per_actor is for actors"),
                (None, Some(Concurrency::Fixed(n))) => Ok(Workers::Tasks(Some(n))),
                (None, _) => Ok(Workers::Tasks(None)),
            };
        }
        let (min, max) = match size {
            None => (1, None),
            Some(Concurrency::Fixed(n)) => (n, Some(n)),
            Some(Concurrency::Range(min, max)) => (min, max),
        };
        match in_flight {
            Some(0) => plan_err!("max_tasks_in_flight_per_actor must be at least 1, got 0"),
            _ => Ok(Workers::Actors(ActorPool { min, max, max_tasks_in_flight: in_flight.unwrap_or(2) })),
        }
    }
}

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

    /// The arguments of `map_batches` that say this, each with its value.
    pub fn arguments(&self) -> Vec<(&'static str, String)> {
        let Self { workers, milli_cpus, milli_gpus, memory, resources, .. } = self.canonical();
        let thousandths = |n: u32| (f64::from(n) / 1000.0).to_string();
        let mut arguments = Vec::new();
        match workers {
            Workers::Tasks(None) => {}
            Workers::Tasks(Some(n)) => arguments.push(("concurrency", n.to_string())),
            Workers::Actors(ActorPool { min, max, max_tasks_in_flight }) => {
                let size = if max == Some(min) { Concurrency::Fixed(min) } else { Concurrency::Range(min, max) };
                arguments.push(("compute", format!("actors({size})")));
                if max_tasks_in_flight != 2 {
                    arguments.push(("max_tasks_in_flight_per_actor", max_tasks_in_flight.to_string()));
                }
            }
        }
        arguments.extend(milli_cpus.map(|n| ("num_cpus", thousandths(n))));
        arguments.extend(milli_gpus.map(|n| ("num_gpus", thousandths(n))));
        arguments.extend(memory.map(|memory| ("memory", memory.to_string())));
        if self.max_concurrency != 0 && self.max_concurrency != CALLS_IN_FLIGHT {
            arguments.push(("max_concurrency", self.max_concurrency.to_string()));
        }
        if !resources.is_empty() {
            let named: Vec<_> = resources.iter().map(|(name, n)| format!("{name}={}", thousandths(*n))).collect();
            arguments.push(("resources", named.join(",")));
        }
        arguments
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.arguments().into_iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{actor, from_closure};

    fn function(is_stateful: bool) -> FunctionRef {
        match is_stateful {
            true => actor("f", || Ok(Ok)),
            false => from_closure(Ok).declare(Some("f".to_owned()), None, false),
        }
    }

    fn checked(strategy: &str, concurrency: &str, is_stateful: bool) -> std::result::Result<String, String> {
        let options = MapOptions {
            compute: if strategy.is_empty() { ComputeStrategy::Auto } else { strategy.parse().unwrap() },
            concurrency: (!concurrency.is_empty()).then(|| concurrency.parse().unwrap()),
            ..Default::default()
        };
        match options.compute(&function(is_stateful)) {
            Ok(compute) => Ok(compute.to_string().trim_start_matches(", ").to_owned()),
            Err(e) => Err(e.message().into_owned()),
        }
    }

    #[test]
    fn every_spelling_of_tasks_and_actors() {
        for (strategy, concurrency, is_stateful, means) in [
            ("", "", false, ""),
            ("tasks", "", false, ""),
            ("", "8", false, "concurrency=8"),
            ("tasks(8)", "", false, "concurrency=8"),
            ("tasks(8)", "8", false, "concurrency=8"),
            ("", "", true, "compute=actors(1..)"),
            ("", "4", true, "compute=actors(4)"),
            ("", "2..8", true, "compute=actors(2..8)"),
            ("actors", "", false, "compute=actors(1..)"),
            ("actors", "4", false, "compute=actors(4)"),
            ("actors(4)", "", false, "compute=actors(4)"),
            ("actors( 0..8 )", "", false, "compute=actors(0..8)"),
            ("actors(3..)", "", true, "compute=actors(3..)"),
        ] {
            assert_eq!(checked(strategy, concurrency, is_stateful).as_deref(), Ok(means), "{strategy} {concurrency}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_an_error_that_says_why() {
        for (strategy, concurrency, is_stateful, text) in [
            ("tasks", "", true, "'f' has state, which tasks do not keep; use compute => 'actors'"),
            ("", "2..8", false, "a range of concurrency, 2..8, is for actors"),
            ("actors(100000)", "", false, "concurrency must be at most 1024, since each has a thread, got 100000"),
            ("actors(100000..)", "", true, "concurrency must be at most 1024"),
            ("", "4000000000", false, "concurrency must be at most 1024"),
            ("actors(2)", "3", false, "compute says 2 and concurrency says 3"),
            ("actors(3..2)", "", false, "the range 3..2 of concurrency is empty"),
            ("actors(0)", "", false, "concurrency must be at least 1, got 0"),
        ] {
            let error = checked(strategy, concurrency, is_stateful).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!("actors(many)".parse::<ComputeStrategy>().unwrap_err().to_string().contains("'many'"));
        assert!("actor".parse::<ComputeStrategy>().unwrap_err().to_string().contains("unknown compute 'actor'"));
    }

    #[test]
    fn what_says_the_default_equals_it() {
        let options = MapOptions {
            num_cpus: Some(1.0),
            num_gpus: Some(0.0),
            memory: Some(ByteSize(0)),
            resources: [("license".to_owned(), 0.0)].into(),
            ..Default::default()
        };
        let compute = options.compute(&function(false)).unwrap();
        assert_eq!(compute.canonical(), Compute::default());
        assert!(compute.needs_nothing_special());
        let other = MapOptions { num_cpus: Some(0.75), ..options.clone() };
        assert!(!other.compute(&function(false)).unwrap().needs_nothing_special());
        assert!(MapOptions { num_gpus: Some(-1.0), ..options }.compute(&function(false)).is_err());
    }
}
