//! Row groups of whose rows, as statistics in the footer say, none fulfils a condition: they are not read, and no task
//! is planned for them.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};

use super::columns::arrow_schema;

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
        self.0.prune(&Said { footer, schema: &schema })
    }
}

/// What a footer says of its row groups.
struct Said<'a> {
    footer: &'a ParquetMetaData,
    schema: &'a Schema,
}

impl Said<'_> {
    fn of(&self, column: &Column) -> Option<StatisticsConverter<'_>> {
        let schema = self.footer.file_metadata().schema_descr();
        let said = StatisticsConverter::try_new(&column.name, self.schema, schema).ok()?;
        said.parquet_column_index().is_some().then_some(said)
    }
}

impl PruningStatistics for Said<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column)?.row_group_mins(self.footer.row_groups()).ok()
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column)?.row_group_maxes(self.footer.row_groups()).ok()
    }

    fn num_containers(&self) -> usize {
        self.footer.num_row_groups()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let counts = self.of(column)?.with_missing_null_counts_as_zero(false);
        Some(Arc::new(counts.row_group_null_counts(self.footer.row_groups()).ok()?))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let rows = self.footer.row_groups().iter().map(|group| group.num_rows().max(0) as u64);
        Some(Arc::new(UInt64Array::from_iter_values(rows)))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
