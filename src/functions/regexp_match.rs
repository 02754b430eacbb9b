//! `regexp_match` with null for a group that took no part, in whose place DataFusion has the next one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, ListBuilder, StringBuilder};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};
use regex::Regex;

pub(super) const NAME: &str = "regexp_match";
/// Patterns of one batch that are kept, where each row has its own.
const KEPT_PATTERNS: usize = 64;

/// Of DataFusion's that of all groups.
pub(super) fn with_all_groups(without_nulls: Arc<ScalarUDF>) -> ScalarUDF {
    RegexpMatch { without_nulls }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RegexpMatch {
    /// DataFusion's.
    without_nulls: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for RegexpMatch {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        self.without_nulls.signature()
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.without_nulls.return_type(given)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = args.return_type().clone();
        let is_constant = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let texts = args.args.iter().map(|value| Ok(cast(&value.to_array(rows)?, &DataType::Utf8)?));
        let found = cast(&matches(&texts.collect::<Result<Vec<_>>>()?)?, &kind)?;
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?)),
            false => Ok(ColumnarValue::Array(found)),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.without_nulls.documentation()
    }
}

/// The groups of the first match of each pattern in its text, or what matches where it has no groups.
fn matches(texts: &[ArrayRef]) -> Result<ArrayRef> {
    let texts: Vec<_> = texts.iter().map(|texts| texts.as_string::<i32>()).collect();
    let (texts, patterns, flags) = match texts.as_slice() {
        [texts, patterns] => (*texts, *patterns, None),
        [texts, patterns, flags] => (*texts, *patterns, Some(*flags)),
        _ => return plan_err!("{NAME} takes a text, a pattern and flags, got {} arguments", texts.len()),
    };
    let mut known: HashMap<(&str, &str), Regex> = HashMap::new();
    let mut found = ListBuilder::new(StringBuilder::new());
    for row in 0..texts.len() {
        if texts.is_null(row) || patterns.is_null(row) || flags.is_some_and(|flags| flags.is_null(row)) {
            found.append_null();
            continue;
        }
        let flags = flags.map_or("", |flags| flags.value(row));
        let key = (patterns.value(row), flags);
        if known.len() == KEPT_PATTERNS && !known.contains_key(&key) {
            known.clear();
        }
        let regex = match known.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(compiled(key.0, flags)?),
        };
        let Some(captures) = regex.captures(texts.value(row)) else {
            found.append_null();
            continue;
        };
        // The first one is all that matches.
        for group in captures.iter().skip(usize::from(captures.len() > 1)) {
            found.values().append_option(group.map(|group| group.as_str()));
        }
        found.append(true);
    }
    Ok(Arc::new(found.finish()))
}

fn compiled(pattern: &str, flags: &str) -> Result<Regex> {
    if flags.contains('g') {
        return plan_err!("{NAME}() does not support the \"global\" option");
    }
    let pattern = if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") };
    Regex::new(&pattern).map_err(|e| exec_datafusion_err!("Regular expression did not compile: {e}"))
}
