//! What happens when a function fails.

use std::fmt;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, plan_err};

/// What becomes of a row for which a function fails. The function is called again with halves of the batch until the
/// rows are found that it fails for; the others come out as if those had not been there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, Default)]
pub enum OnError {
    /// The query fails.
    #[default]
    Fail,
    /// The row is left out.
    Skip,
    /// The row comes out with nulls, but for the columns that it came in with.
    Null,
    /// The row is left out, and kept under this name with the error: `context.diverted(name)`, in SQL
    /// `diverted('name')`.
    Divert(String),
}

/// How many rows may fail.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub enum MaxErrors {
    /// This many.
    Rows(u64),
    /// This percentage of the rows that the function has seen. It is looked at from the first
    /// [thousand rows](MaxErrors::MIN_ROWS) on, and when a task ends.
    Percent(f64),
}

impl Eq for MaxErrors {}

impl std::hash::Hash for MaxErrors {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        match self {
            Self::Rows(rows) => rows.hash(state),
            Self::Percent(percent) => percent.to_bits().hash(state),
        }
    }
}

impl MaxErrors {
    /// Rows before which a percentage says nothing.
    pub const MIN_ROWS: u64 = 1000;

    /// Whether so many failed rows of those that were seen are too many.
    pub(crate) fn is_exceeded(self, failed: u64, seen: u64, task_ends: bool) -> bool {
        match self {
            Self::Rows(most) => failed > most,
            Self::Percent(percent) => {
                (task_ends || seen >= Self::MIN_ROWS) && failed as f64 > seen as f64 * percent / 100.0
            }
        }
    }
}

impl FromStr for MaxErrors {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Self::Percent),
            None => text.trim().parse().ok().map(Self::Rows),
        };
        match parsed {
            Some(most) => Ok(most),
            None => plan_err!("'{text}' is not a number of errors; write for example 100 or 0.5%"),
        }
    }
}

impl fmt::Display for MaxErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows) => write!(f, "{rows}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Which failures a map operator tolerates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, Default)]
pub struct Failures {
    /// What becomes of rows for which the function fails.
    pub on_error: OnError,
    /// How many there may be. `None`: any number.
    pub max_errors: Option<MaxErrors>,
}

impl Failures {
    /// Fails when it contradicts itself.
    pub(crate) fn check(&self) -> Result<()> {
        match (&self.on_error, self.max_errors) {
            (OnError::Fail, Some(_)) => plan_err!("max_errors needs on_error => 'skip', 'null' or 'divert'"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.on_error {
            OnError::Fail => {}
            OnError::Skip => write!(f, ", on_error=skip")?,
            OnError::Null => write!(f, ", on_error=null")?,
            OnError::Divert(name) => write!(f, ", on_error=divert, divert_to={name}")?,
        }
        self.max_errors.map_or(Ok(()), |max| write!(f, ", max_errors={max}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_rows_or_percent() {
        let rows = MaxErrors::Rows(2);
        assert!(!rows.is_exceeded(2, 10, false) && rows.is_exceeded(3, 10, false));
        let percent = MaxErrors::Percent(10.0);
        assert!(!percent.is_exceeded(5, 10, false), "ten rows say nothing yet");
        assert!(percent.is_exceeded(5, 10, true) && percent.is_exceeded(101, 1000, false));
        assert!(!percent.is_exceeded(100, 1000, true));
    }
}
