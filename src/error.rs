//! Errors for the person who caused them. Everything is a `DataFusionError`; this file only adds context and
//! suggestions.

use std::any::Any;
use std::fmt::Display;
use std::io::{self, ErrorKind};

use datafusion::common::{DataFusionError, Result, plan_datafusion_err};

/// The candidate most like `name`, if any is near enough to be a typing error.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    candidates
        .into_iter()
        .map(|c| (strsim::jaro_winkler(&lower, &c.to_lowercase()), c))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c)
}

/// A plan error for an unknown name of some `kind`: it suggests the nearest candidate and lists what is accepted.
pub(crate) fn unknown_name(kind: &str, name: &str, owner: &str, candidates: &[&str]) -> DataFusionError {
    let hint = nearest(name, candidates.iter().copied()).map_or(String::new(), |n| format!(" Did you mean '{n}'?"));
    let of = if owner.is_empty() { String::new() } else { format!(" of {owner}") };
    if candidates.is_empty() {
        return plan_datafusion_err!("unknown {kind} '{name}'{of}; there is none yet");
    }
    plan_datafusion_err!("unknown {kind} '{name}'{of}.{hint} Accepted: {}", candidates.join(", "))
}

/// What a failed disk says of a temporary file. It is told as an error of IO, since neither other rows nor more memory
/// would help.
#[derive(Debug)]
pub(crate) struct SpillError(String);

impl Display for SpillError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpillError {}

impl SpillError {
    /// The error of IO with this text.
    pub(crate) fn io(kind: ErrorKind, text: String) -> io::Error {
        io::Error::new(kind, Self(text))
    }
}

/// The error of IO that a temporary file had, if that is where an error comes from.
pub(crate) fn spill_error(error: &DataFusionError) -> Option<&io::Error> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if let Some(io) = io.filter(|io| io.get_ref().is_some_and(|inner| inner.is::<SpillError>())) {
            return Some(io);
        }
        next = error.source();
    }
    None
}

/// What DataFusion adds to the errors that it takes for bugs of its own, and to what quotes them.
const BUG_REPORT: &str = "This issue was likely caused by a bug in DataFusion's code.";
/// Where that ends and the message for the user begins, when a call fits no signature of its function.
const NO_MATCH: &str = "No function matches the given name and argument types";

/// The same error without the advice to report a bug, where it is the user's mistake.
pub(crate) fn without_bug_report(error: DataFusionError) -> DataFusionError {
    let shorter = |text: &str| {
        let at = text.find(BUG_REPORT)?;
        Some(match text.find(NO_MATCH) {
            Some(message) => text[message..].to_owned(),
            None => text[..at].trim_end().trim_start_matches("Internal error: ").to_owned(),
        })
    };
    let text = match error.find_root() {
        DataFusionError::Plan(text) => shorter(text),
        DataFusionError::Execution(text) => shorter(text),
        _ => None,
    };
    match text {
        Some(text) => plan_datafusion_err!("{text}"),
        None => error,
    }
}

/// Adds what the engine was doing to an error; the original message comes first.
pub(crate) trait ErrorContext<T> {
    /// Appends the text that `what` makes.
    fn while_doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> ErrorContext<T> for Result<T> {
    fn while_doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| {
            let text = format!("{}\n  while {}", one_message(&e), what());
            // Callers tell wrong calls, a lack of memory and a failed disk from other failures.
            if let Some(io) = spill_error(&e) {
                return DataFusionError::IoError(SpillError::io(io.kind(), text));
            }
            match e.find_root() {
                DataFusionError::ResourcesExhausted(_) => DataFusionError::ResourcesExhausted(text),
                DataFusionError::Plan(_) => DataFusionError::Plan(text),
                DataFusionError::Internal(_) => DataFusionError::Internal(text),
                _ => DataFusionError::Execution(text),
            }
        })
    }
}

/// The message of an error without the prefixes that each wrapping adds.
pub(crate) fn one_message(error: &DataFusionError) -> String {
    if let Some(io) = spill_error(error) {
        return io.to_string();
    }
    match error.find_root() {
        DataFusionError::Execution(text)
        | DataFusionError::ResourcesExhausted(text)
        | DataFusionError::Plan(text)
        | DataFusionError::Internal(text) => text.clone(),
        DataFusionError::External(error) => error.to_string(),
        root => root.strip_backtrace(),
    }
}

/// The text of a caught panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bugs_are_to_be_reported() {
        let text = format!("Internal error: bad.\n{BUG_REPORT} Please. {NO_MATCH} 'sum(Utf8)'.");
        let mistake = without_bug_report(DataFusionError::Plan(text.clone())).to_string();
        assert_eq!(mistake, format!("Error during planning: {NO_MATCH} 'sum(Utf8)'."));
        let bug = without_bug_report(DataFusionError::Internal("bad".to_owned())).to_string();
        assert!(bug.contains(BUG_REPORT), "{bug}");
    }

    #[test]
    fn suggests_only_what_is_near() {
        assert_eq!(nearest("bath_size", ["batch_size", "concurrency"]), Some("batch_size"));
        assert_eq!(nearest("zzz", ["batch_size", "concurrency"]), None);
    }
}
