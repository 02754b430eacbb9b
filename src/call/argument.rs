//! Types of arguments.

use std::fmt::Display;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, ScalarValue};

use super::Value;

/// A type that an argument can have. Types with a meaning of their own, like sizes with units, implement it beside
/// their definition.
pub trait Argument: Sized {
    /// What it is, as errors and the reference say it: `a whole number that is not negative`.
    const WHAT: &'static str;

    /// What a value means. `None` where it is nothing of this type, which gives an error that says [`Argument::WHAT`];
    /// an error where there is more to say.
    ///
    /// # Errors
    ///
    /// Where there is more to say than that it is nothing of this type.
    fn from_value(value: &Value) -> Result<Option<Self>>;

    /// The value that means this.
    ///
    /// # Errors
    ///
    /// Where it has no form as a value.
    fn to_value(&self) -> Result<Value>;
}

/// What is written as digits.
fn digits<T: FromStr>(value: &Value) -> Option<T> {
    value.number().and_then(|digits| digits.parse().ok())
}

/// A value of a type that is written as a string and says itself what is wrong with one.
pub(crate) fn parsed<T: FromStr<Err = DataFusionError>>(value: &Value) -> Result<Option<T>> {
    value.text().map(str::parse).transpose()
}

/// The string of such a type.
pub(crate) fn shown(this: &impl Display) -> Value {
    Value::Text(this.to_string())
}

impl Argument for u64 {
    const WHAT: &'static str = "a whole number that is not negative";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(digits(value))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Number(self.to_string()))
    }
}

impl Argument for usize {
    const WHAT: &'static str = u64::WHAT;

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(digits(value))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Number(self.to_string()))
    }
}

impl Argument for f64 {
    const WHAT: &'static str = "a number";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(digits(value))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Number(self.to_string()))
    }
}

impl Argument for bool {
    const WHAT: &'static str = "true or false";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(match value {
            Value::Flag(flag) => Some(*flag),
            Value::Number(_) | Value::Text(_) | Value::List(_) => None,
        })
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Flag(*self))
    }
}

impl Argument for String {
    const WHAT: &'static str = "a string";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.text().map(str::to_owned))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Text(self.clone()))
    }
}

impl Argument for char {
    const WHAT: &'static str = "one ASCII character";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        let mut characters = value.text().unwrap_or_default().chars();
        Ok(characters.next().filter(|c| c.is_ascii() && characters.next().is_none()))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(shown(self))
    }
}

impl Argument for Vec<String> {
    const WHAT: &'static str = "a string or a list of strings";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        let several = value.list().unwrap_or(std::slice::from_ref(value));
        Ok(several.iter().map(|value| value.text().map(str::to_owned)).collect())
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::List(self.iter().map(|text| Value::Text(text.clone())).collect()))
    }
}

impl Argument for Vec<usize> {
    const WHAT: &'static str = "a list of whole numbers that are not negative";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.list().and_then(|values| values.iter().map(digits).collect()))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::List(self.iter().map(|number| Value::Number(number.to_string())).collect()))
    }
}

impl Argument for Vec<f64> {
    const WHAT: &'static str = "a list of numbers";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.list().and_then(|values| values.iter().map(digits).collect()))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::List(self.iter().map(|number| Value::Number(number.to_string())).collect()))
    }
}

/// Values of a column, as strings that are cast to its type.
impl Argument for Vec<ScalarValue> {
    const WHAT: &'static str = "a list of numbers or strings";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        let scalar = |value: &Value| value.plain().map(ScalarValue::from);
        Ok(value.list().and_then(|values| values.iter().map(scalar).collect()))
    }

    fn to_value(&self) -> Result<Value> {
        let text = |scalar: &ScalarValue| match scalar.try_as_str().flatten() {
            Some(text) => Value::Text(text.to_owned()),
            None => shown(scalar),
        };
        Ok(Value::List(self.iter().map(text).collect()))
    }
}
