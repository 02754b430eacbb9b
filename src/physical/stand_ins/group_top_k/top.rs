//! What is asked of the rows of each group.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use crate::physical::said::said;
use crate::physical::stand_ins::cumulative_windows::Ranking;

/// The first rows of each group.
#[derive(Debug, Clone)]
pub(crate) struct TopOfGroups {
    /// What rows of a group have in common.
    pub(crate) partition_by: Vec<Arc<dyn PhysicalExpr>>,
    pub(crate) order_by: Vec<PhysicalSortExpr>,
    pub(crate) ranking: Ranking,
    /// The last number that is asked for.
    pub(crate) k: usize,
}

impl TopOfGroups {
    /// Whether groups and the order of rows can be told apart as the window does: it takes 0.0 and -0.0 for two keys,
    /// and a table of groups for one.
    pub(crate) fn can_be_kept(&self, schema: &Schema) -> bool {
        let is_plain = |kind: DataType| match &kind {
            DataType::Dictionary(_, kind) => !kind.is_floating() && !kind.is_nested(),
            kind => !kind.is_floating() && !kind.is_nested() && !kind.is_null(),
        };
        !self.partition_by.is_empty()
            && self.partition_by.iter().all(|key| key.data_type(schema).is_ok_and(is_plain))
            && self.sort_fields(schema).is_ok_and(|fields| RowConverter::supports_fields(&fields))
    }

    /// All that decides which rows are given, apart from when they come.
    pub(crate) fn said(&self) -> Option<String> {
        let keys = self.partition_by.iter().chain(self.order_by.iter().map(|key| &key.expr));
        let options: Vec<_> = self.order_by.iter().map(|key| key.options).collect();
        Some(format!("{} {options:?} {:?} {}", said(keys)?, self.ranking, self.k))
    }

    /// How the keys of the order are encoded.
    pub(super) fn sort_fields(&self, schema: &Schema) -> Result<Vec<SortField>> {
        let field = |key: &PhysicalSortExpr| Ok(SortField::new_with_options(key.expr.data_type(schema)?, key.options));
        self.order_by.iter().map(field).collect()
    }
}
