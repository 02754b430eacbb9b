//! Why the tool stops, and where in the statements.

use std::fmt;

use datafusion::common::DataFusionError;

use super::signals::Stop;

/// Why the tool stops.
#[derive(Debug)]
pub(super) enum Failure {
    /// The call is wrong.
    Usage(String),
    /// A statement failed.
    Statement(DataFusionError),
    /// A failure, and where in the statements.
    At(Place, Box<Failure>),
    /// Somebody asked for an end.
    Stopped(Stop),
    /// Nobody reads the results any more, when so many statements had not begun.
    OutputClosed { left: usize },
}

impl Failure {
    /// Whether there is something to tell.
    pub(super) fn is_told(&self) -> bool {
        !matches!(self, Self::OutputClosed { left: 0 })
    }

    /// What the process ends with.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Statement(_) => 1,
            Self::At(_, failure) => failure.exit_code(),
            Self::Stopped(stop) => stop.exit_code(),
            Self::OutputClosed { left } => u8::from(*left > 0),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Statement(error) => f.write_str(without_rules(error).strip_backtrace().trim_end()),
            Self::At(place, failure) => write!(f, "{place}{failure}"),
            Self::Stopped(stop) => stop.fmt(f),
            Self::OutputClosed { left: 1 } => {
                f.write_str("the output was closed, and the statement behind it did not run")
            }
            Self::OutputClosed { left } => {
                write!(f, "the output was closed, and {left} statements behind it did not run")
            }
        }
    }
}

/// An error without the names of the rules that have found it, unless it is one of theirs.
fn without_rules(error: &DataFusionError) -> &DataFusionError {
    match error {
        DataFusionError::Context(place, cause)
            if (place.starts_with("Optimizer rule") || place == "type_coercion")
                && !matches!(cause.find_root(), DataFusionError::Internal(_)) =>
        {
            without_rules(cause)
        }
        error => error,
    }
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
        match error.find_root() {
            DataFusionError::IoError(e) if closed(e) => Self::OutputClosed { left: 0 },
            DataFusionError::ArrowError(e, _) if e.to_string().contains("Broken pipe") => {
                Self::OutputClosed { left: 0 }
            }
            _ => Self::Statement(error),
        }
    }
}

/// Where a statement stands.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) source: Option<String>,
    /// Number of the statement, from 1 on, and of its first line; none where the text could not be parsed.
    pub(super) statement: Option<(usize, Option<u64>)>,
    /// Whether it is the only statement.
    pub(super) is_only: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statement = self.statement.filter(|_| !self.is_only || self.source.is_some());
        let mut parts: Vec<String> = self.source.iter().cloned().collect();
        parts.extend(statement.map(|(number, line)| match line {
            Some(line) => format!("statement {number}, line {line}"),
            None => format!("statement {number}"),
        }));
        if !parts.is_empty() {
            write!(f, "{}: ", parts.join(", "))?;
        }
        Ok(())
    }
}
