//! What is said of map operators, as arguments of calls.

use std::collections::BTreeMap;
use std::str::FromStr;

use datafusion::common::{Result, plan_err};

use super::{BatchSize, ComputeStrategy, Concurrency, MaxErrors, OnError};
use crate::call::{Argument, Field, Parameter, Value, Values, parsed, shown};
use crate::config::parse_resources;
use crate::error::unknown_name;

impl Argument for BatchSize {
    const WHAT: &'static str = "a whole number above 0, or 'block'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(match value {
            Value::Text(text) if text == "block" => Some(Self::WholeBlock),
            value => usize::from_value(value)?.filter(|rows| *rows > 0).map(Self::Rows),
        })
    }

    fn to_value(&self) -> Result<Value> {
        match self {
            Self::AsTheyCome => plan_err!("batches as they come are what a call without batch_size has"),
            Self::Rows(rows) => rows.to_value(),
            Self::WholeBlock => Ok(shown(&"block")),
        }
    }
}

impl Argument for Concurrency {
    const WHAT: &'static str = "a number like 8, or a range like (2, 8) or '2..8'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(match value.list() {
            None => value.plain().and_then(|text| text.parse().ok()),
            Some([min, max]) => usize::from_value(min)?.zip(usize::from_value(max)?).map(Self::from),
            Some(_) => None,
        })
    }

    fn to_value(&self) -> Result<Value> {
        match self {
            Self::Fixed(n) => n.to_value(),
            Self::Range(..) => Ok(shown(self)),
        }
    }
}

impl Argument for ComputeStrategy {
    const WHAT: &'static str = String::WHAT;

    fn from_value(value: &Value) -> Result<Option<Self>> {
        parsed(value)
    }

    fn to_value(&self) -> Result<Value> {
        let name = match self {
            Self::Auto => return plan_err!("a call without compute chooses by the function"),
            Self::Tasks(_) => "tasks",
            Self::Actors(_) => "actors",
        };
        Ok(self.size().map_or_else(|| shown(&name), |size| shown(&format!("{name}({size})"))))
    }
}

/// Resources by name, written `license=1, slot=0.5`.
impl Argument for BTreeMap<String, f64> {
    const WHAT: &'static str = String::WHAT;

    fn from_value(value: &Value) -> Result<Option<Self>> {
        value.text().map(parse_resources).transpose()
    }

    fn to_value(&self) -> Result<Value> {
        let named: Vec<_> = self.iter().map(|(name, n)| format!("{name}={n}")).collect();
        Ok(shown(&named.join(",")))
    }
}

impl Argument for MaxErrors {
    const WHAT: &'static str = "a number or a string";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        value.plain().map(FromStr::from_str).transpose()
    }

    fn to_value(&self) -> Result<Value> {
        Ok(shown(self))
    }
}

/// Two arguments: what becomes of the rows, and the name of those that are kept.
const DIVERT_TO: &str = "divert_to";

impl Field for OnError {
    fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>) {
        let name_of_rows = "The name by which `diverted(name)` finds them again, with on_error => 'divert'.";
        (Option::<String>::parameters(name, about).0, Option::<String>::parameters(DIVERT_TO, name_of_rows).0)
    }

    fn read(name: &'static str, values: &Values) -> Result<Self> {
        let (on_error, divert_to) = (values.read::<String>(name)?, values.read::<String>(DIVERT_TO)?);
        match (on_error.as_deref(), divert_to) {
            (None | Some("fail"), None) => Ok(Self::Fail),
            (Some("skip"), None) => Ok(Self::Skip),
            (Some("null"), None) => Ok(Self::Null),
            (Some("divert"), Some(name)) if !name.is_empty() => Ok(Self::Divert(name)),
            (Some("divert"), _) => plan_err!("on_error => 'divert' needs a name: divert_to => 'name'"),
            (Some("fail" | "skip" | "null") | None, Some(_)) => plan_err!("divert_to needs on_error => 'divert'"),
            (Some(other), _) => {
                Err(unknown_name("on_error", other, values.owner(), &["fail", "skip", "null", "divert"]))
            }
        }
    }

    fn write(&self, name: &'static str, values: &mut Values) -> Result<()> {
        let on_error = match self {
            Self::Fail => return Ok(()),
            Self::Skip => "skip",
            Self::Null => "null",
            Self::Divert(rows) => {
                rows.write(DIVERT_TO, values)?;
                "divert"
            }
        };
        values.put(name, shown(&on_error));
        Ok(())
    }
}

/// Gives `values` what `defaults` say of failures, where a call says nothing else.
pub(super) fn default_failures(values: &mut Values, defaults: &Values) {
    let on_error = values.get("on_error").and_then(Value::text).map(str::to_owned);
    for (name, value) in defaults.iter().filter(|(name, _)| ["on_error", "max_errors", DIVERT_TO].contains(name)) {
        // Another way to tolerate errors has no use for the details of the default.
        let keeps = match on_error.as_deref() {
            Some("fail") => false,
            Some(other) if name == DIVERT_TO => other == "divert",
            _ => true,
        };
        if keeps && values.get(name).is_none() {
            values.put(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(said: &[(&'static str, &str)]) -> Result<(OnError, Option<MaxErrors>)> {
        let mut values = Values::new("map_batches");
        said.iter().for_each(|(name, value)| assert_eq!(values.put(name, shown(value)), None));
        Ok((OnError::read("on_error", &values)?, values.read("max_errors")?))
    }

    #[test]
    fn what_is_said_of_failures_is_checked() {
        let (on_error, max) = read(&[("on_error", "divert"), ("divert_to", "bad"), ("max_errors", "0.5%")]).unwrap();
        assert_eq!((on_error, max), (OnError::Divert("bad".to_owned()), Some(MaxErrors::Percent(0.5))));
        assert_eq!(read(&[]).unwrap(), (OnError::Fail, None));
        for (said, text) in [
            (vec![("on_error", "skipp")], "Did you mean 'skip'?"),
            (vec![("on_error", "divert")], "needs a name"),
            (vec![("on_error", "skip"), ("divert_to", "bad")], "divert_to needs on_error => 'divert'"),
            (vec![("on_error", "skip"), ("max_errors", "many")], "'many' is not a number of errors"),
            (vec![("on_error", "skip"), ("max_errors", "101%")], "'101%' is not a number of errors"),
        ] {
            let error = read(&said).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for on_error in [OnError::Fail, OnError::Skip, OnError::Null, OnError::Divert("it's".to_owned())] {
            let mut values = Values::new("map_batches");
            on_error.write("on_error", &mut values).unwrap();
            assert_eq!(OnError::read("on_error", &values).unwrap(), on_error);
        }
        for compute in ["tasks", "tasks(8)", "actors", "actors(2..8)", "actors(2..)"] {
            let compute: ComputeStrategy = compute.parse().unwrap();
            assert_eq!(ComputeStrategy::from_value(&compute.to_value().unwrap()).unwrap(), Some(compute));
        }
        for size in [BatchSize::Rows(7), BatchSize::WholeBlock] {
            assert_eq!(BatchSize::from_value(&size.to_value().unwrap()).unwrap(), Some(size));
        }
    }
}
