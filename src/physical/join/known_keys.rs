//! What one side of a join knows of its keys, for the scans of the other.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{NullEquality, Result};
use datafusion::logical_expr::{ColumnarValue, JoinType, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use datafusion::physical_expr::utils::conjunction;

use crate::physical::exchange::{SeenKeys, among};

/// Whether rows of the right side may be left out whose keys no row of the left side has.
pub(super) fn right_may_be_told(join_type: JoinType) -> bool {
    join_type.on_lr_is_preserved().1
}

/// The same of the left side.
pub(super) fn left_may_be_told(join_type: JoinType) -> bool {
    join_type.on_lr_is_preserved().0
}

/// Which rows may have keys that were seen, as a condition on the `keys` of their side.
pub(super) fn condition(
    seen: &Arc<SeenKeys>,
    keys: &[Arc<dyn PhysicalExpr>],
    nulls: NullEquality,
) -> Arc<dyn PhysicalExpr> {
    if seen.is_empty() {
        return lit(false);
    }
    let mut parts: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
    // A null is in no range, and equal to another there.
    if nulls == NullEquality::NullEqualsNothing {
        for (key, bounds) in keys.iter().zip(seen.bounds()) {
            if let Some((least, greatest)) = bounds {
                parts.push(Arc::new(BinaryExpr::new(Arc::clone(key), Operator::GtEq, lit(least.clone()))));
                parts.push(Arc::new(BinaryExpr::new(Arc::clone(key), Operator::LtEq, lit(greatest.clone()))));
            }
        }
    }
    if seen.tells() {
        parts.push(Arc::new(KeysAmong { keys: keys.to_vec(), seen: Arc::clone(seen) }));
    }
    conjunction(parts)
}

/// Whether keys may be among those that were seen.
#[derive(Debug)]
struct KeysAmong {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    seen: Arc<SeenKeys>,
}

impl PartialEq for KeysAmong {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys && Arc::ptr_eq(&self.seen, &other.seen)
    }
}

impl Eq for KeysAmong {}

impl Hash for KeysAmong {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.keys.hash(state);
        Arc::as_ptr(&self.seen).hash(state);
    }
}

impl Display for KeysAmong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.fmt_sql(f)
    }
}

impl PhysicalExpr for KeysAmong {
    fn data_type(&self, _schema: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, _schema: &Schema) -> Result<bool> {
        Ok(false)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Array(Arc::new(among(&self.seen, &self.keys, batch)?)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.keys.iter().collect()
    }

    fn with_new_children(self: Arc<Self>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self { keys, seen: Arc::clone(&self.seen) }))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        write!(f, "keys_among({})", keys.join(", "))
    }
}
