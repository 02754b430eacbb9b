//! Values of arguments, as they are written.

use std::fmt;

/// A value as it is written: in SQL, a literal. What it means depends on the argument that it is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub enum Value {
    /// A number, with its digits.
    Number(String),
    /// A string.
    Text(String),
    /// `true` or `false`.
    Flag(bool),
    /// Several values.
    List(Vec<Self>),
}

impl Value {
    /// The string of a value that is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Flag(_) | Self::List(_) => None,
        }
    }

    /// The digits of a value that is a number.
    pub fn number(&self) -> Option<&str> {
        match self {
            Self::Number(digits) => Some(digits),
            Self::Text(_) | Self::Flag(_) | Self::List(_) => None,
        }
    }

    /// A number or a string, without quotes.
    pub fn plain(&self) -> Option<&str> {
        self.text().or(self.number())
    }

    /// The values of one that is a list.
    pub fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(values) => Some(values),
            Self::Number(_) | Self::Text(_) | Self::Flag(_) => None,
        }
    }
}

/// As SQL writes it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(digits) => f.write_str(digits),
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
        }
    }
}
