//! Arguments of table functions: values that are written out in the statement, checked against the signature.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, UnaryOperator, Value};

use super::signatures::{Kind, Signature, Tables};
use crate::config::ByteSize;
use crate::error::unknown_name;
use crate::functions::{BatchSize, Concurrency};

/// A value as it is written.
#[derive(Debug, Clone, PartialEq)]
enum Written {
    Number(String),
    Text(String),
    Flag(bool),
    List(Vec<Self>),
}

impl Written {
    /// A number or a text.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Flag(_) | Self::List(_) => None,
        }
    }
}

/// The arguments of one call, checked.
#[derive(Debug)]
pub(super) struct Arguments {
    signature: &'static Signature,
    /// Expressions in the places of tables.
    pub(super) tables: Vec<Expr>,
    values: Vec<Option<Written>>,
}

impl Arguments {
    /// Sorts the arguments of a call to their names. Unknown names, wrong types, missing and doubled arguments are errors
    /// that say what is accepted.
    pub(super) fn parse(signature: &'static Signature, args: Vec<FunctionArg>) -> Result<Self> {
        let mut tables = Vec::new();
        let mut values: Vec<Option<Written>> = vec![None; signature.arguments.len()];
        let mut position = 0;
        for arg in args {
            let (name, value) = match arg {
                FunctionArg::Named { name, arg, .. } => (Some(name.value), arg),
                FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, .. } => (Some(name.value), arg),
                FunctionArg::ExprNamed { name, .. } => return plan_err!("{name} is not the name of an argument"),
                FunctionArg::Unnamed(arg) => (None, arg),
            };
            let FunctionArgExpr::Expr(value) = value else {
                return plan_err!("{} does not take {value}", signature.name);
            };
            let index = match name {
                Some(name) => signature
                    .arguments
                    .iter()
                    .position(|(known, _)| known.eq_ignore_ascii_case(&name))
                    .ok_or_else(|| unknown_name("argument", &name, signature.name, &signature.names()))?,
                None if tables.len() < signature.tables.most() => {
                    tables.push(value);
                    continue;
                }
                None => {
                    position += 1;
                    position - 1
                }
            };
            let Some((name, kind)) = signature.arguments.get(index) else {
                let names = [vec!["table"; signature.tables.least()], signature.names()].concat();
                return plan_err!("{} takes at most {} arguments: {}", signature.name, names.len(), names.join(", "));
            };
            let written = written(&value).filter(|w| fits(w, *kind));
            let Some(written) = written else {
                return plan_err!("argument '{name}' of {} must be {}, got {value}", signature.name, kind.describe());
            };
            if values[index].replace(written).is_some() {
                return plan_err!("argument '{name}' of {} is given twice", signature.name);
            }
        }
        let least = signature.tables.least();
        if tables.len() < least {
            let or_more = if signature.tables == Tables::Several { " or more" } else { "" };
            return plan_err!("{} needs {least}{or_more} table argument(s), got {}", signature.name, tables.len());
        }
        if let Some(missing) = values.iter().take(signature.required).position(Option::is_none) {
            return plan_err!("{} needs the argument '{}'", signature.name, signature.arguments[missing].0);
        }
        Ok(Self { signature, tables, values })
    }

    fn get(&self, name: &str) -> Option<&Written> {
        let index = self.signature.arguments.iter().position(|(known, _)| *known == name)?;
        self.values[index].as_ref()
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Written::Number(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn size(&self, name: &str) -> Option<usize> {
        self.count(name).map(|n| n as usize)
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.get(name).and_then(number)
    }

    pub(super) fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        match self.get(name)? {
            Written::List(list) => list.iter().map(number).collect(),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Written::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number or a text as it is written.
    pub(super) fn written_text(&self, name: &str) -> Option<&str> {
        self.get(name)?.text()
    }

    /// Numbers and texts as they are written.
    pub(super) fn written_texts(&self, name: &str) -> Option<Vec<String>> {
        match self.get(name)? {
            Written::List(list) => list.iter().map(|item| item.text().map(str::to_owned)).collect(),
            _ => None,
        }
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Written::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        match self.get(name)? {
            Written::Text(text) => Some(vec![text.clone()]),
            Written::List(list) => list
                .iter()
                .map(|item| match item {
                    Written::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Option<ByteSize>> {
        match self.get(name) {
            Some(Written::Number(text) | Written::Text(text)) => Ok(Some(text.parse()?)),
            _ => Ok(None),
        }
    }

    pub(super) fn concurrency(&self, name: &str) -> Option<Concurrency> {
        self.get(name).and_then(concurrency)
    }

    pub(super) fn batch_size(&self, name: &str) -> BatchSize {
        match self.get(name) {
            Some(Written::Number(rows)) => rows.parse().map_or(BatchSize::AsTheyCome, BatchSize::Rows),
            Some(Written::Text(_)) => BatchSize::WholeBlock,
            _ => BatchSize::AsTheyCome,
        }
    }
}

fn written(expression: &Expr) -> Option<Written> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(Written::Number(text.clone())),
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(Written::Text(text.clone())),
            Value::Boolean(flag) => Some(Written::Flag(*flag)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match written(expr)? {
            Written::Number(text) => Some(Written::Number(format!("-{text}"))),
            _ => None,
        },
        Expr::Tuple(items) => items.iter().map(written).collect::<Option<Vec<_>>>().map(Written::List),
        Expr::Array(array) => array.elem.iter().map(written).collect::<Option<Vec<_>>>().map(Written::List),
        Expr::Nested(inner) => written(inner),
        _ => None,
    }
}

fn number(value: &Written) -> Option<f64> {
    match value {
        Written::Number(text) => text.parse().ok(),
        _ => None,
    }
}

fn concurrency(value: &Written) -> Option<Concurrency> {
    let number = |value: &Written| match value {
        Written::Number(text) => text.parse::<usize>().ok(),
        _ => None,
    };
    match value {
        Written::Number(text) | Written::Text(text) => text.parse().ok(),
        Written::List(pair) => match pair.as_slice() {
            [min, max] => Some(Concurrency::from((number(min)?, number(max)?))),
            _ => None,
        },
        Written::Flag(_) => None,
    }
}

fn fits(value: &Written, kind: Kind) -> bool {
    match (kind, value) {
        (Kind::Count, Written::Number(text)) => text.parse::<u64>().is_ok(),
        (Kind::BatchSize, Written::Number(text)) => text.parse::<u64>().is_ok_and(|n| n > 0),
        (Kind::BatchSize, Written::Text(text)) => text == "block",
        (Kind::Number, Written::Number(_)) | (Kind::Text, Written::Text(_)) | (Kind::Flag, Written::Flag(_)) => true,
        (Kind::Numbers, Written::List(list)) => list.iter().all(|item| number(item).is_some()),
        (Kind::Values, Written::List(list)) => list.iter().all(|item| item.text().is_some()),
        (Kind::Texts, Written::Text(_)) => true,
        (Kind::Texts, Written::List(list)) => list.iter().all(|item| matches!(item, Written::Text(_))),
        (Kind::NumberOrText, Written::Number(_) | Written::Text(_)) => true,
        (Kind::Concurrency, value) => concurrency(value).is_some(),
        (Kind::Size, Written::Number(text) | Written::Text(text)) => text.parse::<ByteSize>().is_ok(),
        _ => false,
    }
}
