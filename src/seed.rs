//! Random seeds: given, drawn, or different for each execution.

use std::time::{SystemTime, UNIX_EPOCH};

use datafusion::common::{Result, plan_err};

use crate::block::mix;
use crate::call::{Field, OrDefault, Parameter, Values};

/// What gives the order of a random operator: the same input and seed give the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RandomSeed {
    seed: u64,
    each_execution: bool,
}

impl RandomSeed {
    /// The same order whenever the dataset is run.
    pub fn fixed(seed: u64) -> Self {
        Self { seed, each_execution: false }
    }

    /// Another order each time that a dataset is run: the first time that of `seed`, the second time that of epoch 1,
    /// and so on. The same program gives the same orders.
    pub fn each_execution(seed: u64) -> Self {
        Self { seed, each_execution: true }
    }

    /// The seed that a dataset with [`RandomSeed::each_execution`] has when it is run after `epoch` times before. Epoch
    /// 0 has the seed itself.
    pub fn epoch(self, epoch: u64) -> Self {
        let seed = if epoch == 0 { self.seed } else { mix(self.seed ^ mix(epoch)) };
        Self { seed, each_execution: false }
    }

    /// Whether every execution has its own.
    pub(crate) fn is_for_each_execution(self) -> bool {
        self.each_execution
    }

    /// The number itself.
    pub fn value(self) -> u64 {
        self.seed
    }
}

impl From<u64> for RandomSeed {
    fn from(seed: u64) -> Self {
        Self::fixed(seed)
    }
}

/// Without a seed one is drawn.
impl From<Option<u64>> for RandomSeed {
    fn from(seed: Option<u64>) -> Self {
        Self::fixed(seed.unwrap_or_else(fresh_seed))
    }
}

/// A seed is drawn.
impl Default for RandomSeed {
    fn default() -> Self {
        Self::from(None)
    }
}

/// A call says the seed, and whether each execution has an order of its own; or, with `epoch`, the how many-th
/// execution it is to be.
impl Field for RandomSeed {
    fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>) {
        let epoch = "Another order for each number, with the same seed: what the execution after so many others has.";
        let each = "Whether each execution, and so each epoch of an iterator or of served consumers, has an order of its \
                    own, which follows from the seed.";
        let others = [Option::<u64>::parameters("epoch", epoch).0, OrDefault::<bool>::parameters(EACH, each).0];
        (Option::<u64>::parameters(name, about).0, others.concat())
    }

    fn read(name: &'static str, values: &Values) -> Result<Self> {
        let each_execution = OrDefault::<bool>::read(EACH, values)?;
        match (values.read::<u64>(name)?, values.read("epoch")?) {
            (_, Some(_)) if each_execution => {
                plan_err!("{} takes an epoch or {EACH}: with that, executions count their epochs", values.owner())
            }
            (None, Some(_)) => plan_err!("{} needs a seed for an epoch", values.owner()),
            (seed, epoch) => Ok(Self { each_execution, ..Self::from(seed).epoch(epoch.unwrap_or(0)) }),
        }
    }

    fn write(&self, name: &'static str, values: &mut Values) -> Result<()> {
        self.seed.write(name, values)?;
        OrDefault::<bool>::write(&self.each_execution, EACH, values)
    }
}

/// Ray's name of that argument.
const EACH: &str = "reseed_after_execution";

/// A node whose rows come in a random order.
pub(crate) trait Seeded: Clone {
    /// What gives the order.
    fn seed_mut(&mut self) -> &mut RandomSeed;
}

/// A seed that is different each time. It is drawn when a plan is built, so that the plan itself is repeatable.
pub(crate) fn fresh_seed() -> u64 {
    mix(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64)
}
