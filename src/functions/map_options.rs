//! What both front doors say of a map operator.

use std::collections::BTreeMap;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, plan_err};

use super::compute::CALLS_IN_FLIGHT;
use super::{
    ActorPool, BatchSize, Compute, ComputeStrategy, Concurrency, Failures, FunctionRef, MaxErrors, OnError, Workers,
};
use crate::arguments;
use crate::config::ByteSize;

arguments! {
    /// How a map operator runs. Start from the default and set what differs.
    #[derive(Debug, Clone)]
    pub struct MapOptions {
        /// Rows that the function gets at once, or `block` for all of a block. The batches that stream by if not said.
        pub batch_size: BatchSize = default,
        /// The most tasks that run at once, or how many actors there are; in Rust `Some(8.into())`, `Some((2,
        /// 8).into())`.
        pub concurrency: Option<Concurrency>,
        /// Logical CPUs of a task; 1 if not said.
        pub num_cpus: Option<f64>,
        /// Memory that a task is expected to need while it runs.
        pub memory: Option<ByteSize>,
        /// Tasks or actors, and how many: `tasks(8)`, `actors(2..8)`. Actors for functions with state if not said.
        pub compute: ComputeStrategy = default,
        /// GPUs of a task while it runs. There are `blockyard.num_gpus` of them.
        pub num_gpus: Option<f64>,
        /// Other resources that it needs, by name: `license=1`. There are as many as `blockyard.resources` says.
        pub resources: BTreeMap<String, f64> = default,
        /// Tasks that an actor has at most, one that it runs and others that wait for it; 2 if not said.
        pub max_tasks_in_flight_per_actor: Option<usize>,
        /// Calls of an async function that each task has in flight at most; 16 if not said.
        pub max_concurrency: Option<usize>,
        /// What becomes of rows for which the function fails: `fail`, `skip`, `null` or `divert`.
        pub on_error: OnError,
        /// How many such rows there may be, like `100` or `0.5%`; any number if not said.
        pub max_errors: Option<MaxErrors>,
        /// Whether the function gives the same rows for the same batches whenever it is called; true if not said.
        /// Without that an iterator has no resume token.
        pub deterministic: bool = true,
    }
    beside {
        /// Columns that the function returns, where calling it on an empty batch would not tell.
        pub schema: Option<SchemaRef>,
        /// What plans and stats show, instead of the name of the function.
        pub name: Option<String>,
        /// The function returns as many rows as it gets, so that a limit may move below it.
        pub preserves_row_count: bool,
    }
}

impl Default for MapOptions {
    fn default() -> Self {
        Self {
            batch_size: BatchSize::default(),
            concurrency: None,
            num_cpus: None,
            memory: None,
            compute: ComputeStrategy::default(),
            num_gpus: None,
            resources: BTreeMap::new(),
            max_tasks_in_flight_per_actor: None,
            max_concurrency: None,
            on_error: OnError::default(),
            max_errors: None,
            deterministic: true,
            schema: None,
            name: None,
            preserves_row_count: false,
        }
    }
}

impl MapOptions {
    /// The options of a call that gives an operator which calls `function` so.
    pub(crate) fn saying(
        function: &FunctionRef,
        batch_size: BatchSize,
        compute: &Compute,
        failures: &Failures,
    ) -> Self {
        let Compute { workers, milli_cpus, milli_gpus, memory, resources, .. } = compute.canonical();
        let units = |thousandths: u32| f64::from(thousandths) / 1000.0;
        let (compute_strategy, concurrency, in_flight) = match workers {
            Workers::Tasks(n) => (ComputeStrategy::Auto, n.map(Concurrency::Fixed), None),
            Workers::Actors(pool) => {
                let in_flight = Some(pool.max_tasks_in_flight).filter(|n| *n != ActorPool::MAX_TASKS_IN_FLIGHT);
                (ComputeStrategy::Actors(Some(pool.size())), None, in_flight)
            }
        };
        Self {
            batch_size,
            concurrency,
            num_cpus: milli_cpus.map(units),
            memory,
            compute: compute_strategy,
            num_gpus: milli_gpus.map(units),
            resources: resources.into_iter().map(|(name, n)| (name, units(n))).collect(),
            max_tasks_in_flight_per_actor: in_flight,
            max_concurrency: compute.said_max_concurrency(),
            on_error: failures.on_error.clone(),
            max_errors: failures.max_errors,
            deterministic: function.is_deterministic(),
            ..Self::default()
        }
    }

    /// Which failures are tolerated, checked.
    pub(crate) fn failures(&self) -> Result<Failures> {
        let failures = Failures { on_error: self.on_error.clone(), max_errors: self.max_errors };
        failures.check()?;
        Ok(failures)
    }

    /// These options, with those of `defaults` where nothing is said.
    pub(crate) fn or(self, defaults: Self) -> Self {
        // How many there are may be said in two places; the call's word counts, wherever it stands.
        let says_size = self.compute.size().is_some() || self.concurrency.is_some();
        let compute = if self.compute == ComputeStrategy::Auto { defaults.compute } else { self.compute };
        let default_size = defaults.concurrency.or(defaults.compute.size());
        let says_errors = self.on_error != OnError::Fail || self.max_errors.is_some();
        Self {
            batch_size: if self.batch_size == BatchSize::AsTheyCome { defaults.batch_size } else { self.batch_size },
            compute: if self.compute.size().is_some() { compute } else { compute.without_size() },
            concurrency: if says_size { self.concurrency } else { default_size },
            num_cpus: self.num_cpus.or(defaults.num_cpus),
            num_gpus: self.num_gpus.or(defaults.num_gpus),
            memory: self.memory.or(defaults.memory),
            resources: if self.resources.is_empty() { defaults.resources } else { self.resources },
            max_tasks_in_flight_per_actor: self
                .max_tasks_in_flight_per_actor
                .or(defaults.max_tasks_in_flight_per_actor.filter(|_| compute == defaults.compute)),
            max_concurrency: self.max_concurrency.or(defaults.max_concurrency),
            on_error: if says_errors { self.on_error } else { defaults.on_error },
            max_errors: if says_errors { self.max_errors } else { defaults.max_errors },
            deterministic: self.deterministic && defaults.deterministic,
            schema: self.schema.or(defaults.schema),
            name: self.name.or(defaults.name),
            preserves_row_count: self.preserves_row_count || defaults.preserves_row_count,
        }
    }

    /// The function with what is declared of it.
    pub(crate) fn apply(&self, function: FunctionRef) -> FunctionRef {
        let preserves = self.preserves_row_count || function.preserves_row_count();
        let deterministic = self.deterministic && function.is_deterministic();
        function.declare(self.name.clone(), self.schema.clone(), preserves, deterministic)
    }
}

/// Threads that one operator may be given by number: a process has some tens of thousands at most.
const MAX_WORKERS: usize = 1024;

impl MapOptions {
    /// Workers and resources for `function`, if what is said of them fits together.
    ///
    /// # Errors
    ///
    /// Where two of them contradict each other.
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
            _ => {
                let max_tasks_in_flight = in_flight.unwrap_or(ActorPool::MAX_TASKS_IN_FLIGHT);
                Ok(Workers::Actors(ActorPool { min, max, max_tasks_in_flight }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{actor, from_closure};

    fn function(is_stateful: bool) -> FunctionRef {
        match is_stateful {
            true => actor("f", || Ok(Ok)),
            false => from_closure(Ok).declare(Some("f".to_owned()), None, false, true),
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
