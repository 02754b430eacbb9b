//! Row groups of whose rows, as statistics in the footer say, none fulfils a condition: they are not read, and no task
//! is planned for them.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};

use super::columns::arrow_schema;
use crate::physical::RowGroupStatistics;

/// Conditions as questions to statistics.
pub(super) struct Conditions(Arc<PruningPredicate>);

impl Conditions {
    /// Those that statistics may answer.
    pub(super) fn of(session: &dyn Session, filters: &[Expr], columns: &SchemaRef) -> Result<Option<Self>> {
        let has_columns =
            |filter: &&Expr| filter.column_refs().iter().all(|c| columns.field_with_name(&c.name).is_ok());
        let filters = filters.iter().filter(has_columns).cloned();
        let Some(filter) = conjunction(filters).filter(|_| session.config_options().execution.parquet.pruning) else {
            return Ok(None);
        };
        let schema = DFSchema::try_from(columns.as_ref().clone())?;
        let most = session.config_options().execution.parquet.max_in_list_size;
        let predicate =
            PruningPredicateBuilder::new().with_file_schema(Arc::clone(columns)).with_max_in_list_size(most);
        Ok(predicate.build(session.create_physical_expr(filter, &schema)?).map(Self))
    }

    /// Of each row group, whether rows of it may fulfil them.
    pub(super) fn may_be_true(&self, footer: &ParquetMetaData) -> Result<Vec<bool>> {
        let schema = arrow_schema(footer)?;
        self.0.prune(&RowGroupStatistics::new(footer, footer.row_groups(), &schema))
    }
}
