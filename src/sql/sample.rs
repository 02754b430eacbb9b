//! `TABLESAMPLE BERNOULLI (p) REPEATABLE (s)`, which DataFusion parses and then ignores.

use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::sql::sqlparser::ast::{Expr, TableSample, TableSampleMethod, TableSampleUnit, Value};

/// Fraction of the rows, and seed. Everything else that the grammar allows is refused by name.
pub(super) fn sample_of(sample: &TableSample) -> Result<(f64, Option<u64>)> {
    match &sample.name {
        None | Some(TableSampleMethod::Bernoulli) => {}
        Some(other) => return not_impl_err!("TABLESAMPLE {other}; use BERNOULLI (percent)"),
    }
    if let Some(bucket) = &sample.bucket {
        return not_impl_err!("TABLESAMPLE ({bucket}); use BERNOULLI (percent)");
    }
    if let Some(offset) = &sample.offset {
        return not_impl_err!("TABLESAMPLE OFFSET {offset}");
    }
    let Some(quantity) = &sample.quantity else {
        return plan_err!("TABLESAMPLE needs a percentage, like BERNOULLI (10)");
    };
    if let Some(TableSampleUnit::Rows) = quantity.unit {
        return not_impl_err!("TABLESAMPLE in ROWS; use BERNOULLI (percent), or LIMIT");
    }
    let percent = number(&quantity.value).and_then(|text| text.parse::<f64>().ok());
    let Some(percent) = percent.filter(|p| (0.0..=100.0).contains(p)) else {
        return plan_err!("TABLESAMPLE needs a percentage from 0 to 100, got {}", quantity.value);
    };
    let seed = match &sample.seed {
        None => None,
        Some(seed) => match seed.value.value.to_string().parse::<u64>() {
            Ok(seed) => Some(seed),
            Err(_) => return plan_err!("REPEATABLE needs a whole number that is not negative, got {}", seed.value),
        },
    };
    Ok((percent / 100.0, seed))
}

fn number(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(text.clone()),
            _ => None,
        },
        Expr::Nested(inner) => number(inner),
        _ => None,
    }
}
