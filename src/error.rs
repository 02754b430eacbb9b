//! Errors for the person who caused them. Everything is a `DataFusionError`; this file only adds context and
//! suggestions.

use std::any::Any;
use std::fmt::Display;

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

/// Adds what the engine was doing to an error; the original message comes first.
pub(crate) trait ErrorContext<T> {
    /// Appends the text that `what` makes.
    fn while_doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> ErrorContext<T> for Result<T> {
    fn while_doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| {
            let text = format!("{}\n  while {}", one_message(&e), what());
            // Callers tell wrong calls and a lack of memory or disk from other failures.
            match e.find_root() {
                DataFusionError::ResourcesExhausted(_) => DataFusionError::ResourcesExhausted(text),
                DataFusionError::Plan(_) => DataFusionError::Plan(text),
                _ => DataFusionError::Execution(text),
            }
        })
    }
}

/// The message of an error without the prefixes that each wrapping adds.
pub(crate) fn one_message(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::Execution(text) | DataFusionError::ResourcesExhausted(text) | DataFusionError::Plan(text) => {
            text.clone()
        }
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
    fn suggests_only_what_is_near() {
        assert_eq!(nearest("bath_size", ["batch_size", "concurrency"]), Some("batch_size"));
        assert_eq!(nearest("zzz", ["batch_size", "concurrency"]), None);
    }
}
