//! [`Resumes`]: how a plan comes to a position.

use std::fmt;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use super::repeats::unsteady;
use super::seek::{reads_again, seeks};
use crate::config::BlockyardOptions;

/// How an iterator comes to the position of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumes {
    /// It begins there: at most a read task of each source is read again, and what a local shuffle holds.
    Seeks,
    /// It reads its input again from the start, since the operator needs all of it, and passes over what was handed
    /// out.
    Replays {
        /// The name of the operator.
        operator: String,
    },
    /// Not at all: rows may come otherwise when the dataset runs again.
    DoesNot {
        /// The name of the operator, or the option, that is the reason.
        operator: String,
        /// What helps.
        remedy: String,
    },
}

impl Resumes {
    /// How a plan does that runs with these options.
    pub(crate) fn of(options: &BlockyardOptions, plan: &Arc<dyn ExecutionPlan>) -> Self {
        let does_not =
            |operator: &str, remedy: &str| Self::DoesNot { operator: operator.into(), remedy: remedy.into() };
        if !options.preserve_order {
            return does_not("blockyard.preserve_order = false", "set it to true");
        }
        if options.max_errored_blocks.allows_any() {
            return does_not("blockyard.max_errored_blocks", "set it to 0: which tasks fail may change");
        }
        if let Some(unsteady) = unsteady(plan) {
            return does_not(&unsteady.operator, unsteady.remedy);
        }
        match seeks(plan) {
            Ok(()) => reads_again(plan).map_or(Self::Seeks, |operator| Self::Replays { operator }),
            Err(operator) => Self::Replays { operator },
        }
    }
}

impl fmt::Display for Resumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seeks => f.write_str("seeks"),
            Self::Replays { operator } => write!(f, "replays: {operator} needs all of its input"),
            Self::DoesNot { operator, remedy } => write!(f, "does not, because of {operator}: {remedy}"),
        }
    }
}
