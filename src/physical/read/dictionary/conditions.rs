//! The conditions of a filter that dictionaries can be asked.

use std::any::Any;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;

use super::codes::Passing;

/// Values that are asked at once: what is made of them on the way stays in the cache.
const AT_ONCE: usize = 8192;

/// A filter, as conditions of one column each and what else there is.
pub(super) struct Conditions {
    /// What has to hold of all rows.
    parts: Vec<Part>,
    pub(super) columns: Vec<ColumnCondition>,
}

/// A condition of the filter.
struct Part {
    condition: Arc<dyn PhysicalExpr>,
    /// The columns that say all of it, by their numbers among those that have conditions; none where it has more.
    said_by: Option<Vec<usize>>,
}

/// What has to hold of a column.
pub(super) struct ColumnCondition {
    /// Its number in the table.
    pub(super) column: usize,
    /// Over rows of this column only.
    condition: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
    /// Whether it was asked of all rows that are left.
    pub(super) is_complete: bool,
}

impl Conditions {
    /// Those of a filter over rows of `schema`, as it is now: it may change while the query runs.
    pub(super) fn of(filter: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Self> {
        let mut columns: Vec<(usize, Vec<Arc<dyn PhysicalExpr>>)> = Vec::new();
        let mut parts = Vec::new();
        for part in split_conjunction(filter) {
            let now = as_it_is(part)?;
            let mut said_by = Some(Vec::new());
            for condition in split_conjunction(&now) {
                let Some(column) = only_column(condition) else {
                    said_by = None;
                    continue;
                };
                let number = columns.iter().position(|(known, _)| *known == column).unwrap_or_else(|| {
                    columns.push((column, Vec::new()));
                    columns.len() - 1
                });
                columns[number].1.push(Arc::clone(condition));
                said_by.as_mut().into_iter().for_each(|said_by| said_by.push(number));
            }
            parts.push(Part { condition: Arc::clone(part), said_by });
        }
        let columns = columns.into_iter().map(|(column, conditions)| {
            let field = schema.field(column);
            let condition = conjunction(conditions).transform(|node| {
                let known: &dyn Any = node.as_ref();
                Ok(match known.is::<Column>() {
                    true => Transformed::yes(Arc::new(Column::new(field.name(), 0)) as Arc<dyn PhysicalExpr>),
                    false => Transformed::no(node),
                })
            });
            let values = Field::new(field.name(), field.data_type().clone(), true);
            let schema = Arc::new(Schema::new(vec![values]));
            Ok(ColumnCondition { column, condition: condition.data()?, schema, is_complete: true })
        });
        Ok(Self { columns: columns.collect::<Result<_>>()?, parts })
    }

    /// The conditions that were not asked of all rows.
    pub(super) fn left(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let is_said = |part: &&Part| {
            part.said_by.as_ref().is_some_and(|by| by.iter().all(|column| self.columns[*column].is_complete))
        };
        self.parts.iter().filter(|part| !is_said(part)).map(|part| Arc::clone(&part.condition)).collect()
    }
}

/// A condition without what may change in it.
fn as_it_is(condition: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let now = |node: Arc<dyn PhysicalExpr>| {
        let known: &dyn Any = node.as_ref();
        Ok(match known.downcast_ref::<DynamicFilterPhysicalExpr>() {
            Some(filter) => Transformed::yes(filter.current()?),
            None => Transformed::no(node),
        })
    };
    Arc::clone(condition).transform(now).data()
}

/// Conditions of columns of the table, over those that a scan gives. `None` where there are no conditions, or one is
/// about a column that it does not give.
pub(super) fn over_outputs(
    conditions: Vec<Arc<dyn PhysicalExpr>>,
    projection: &ProjectionExprs,
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    if conditions.is_empty() {
        return Ok(None);
    }
    let output_of = |column: &Column| {
        let is_it =
            |given: &ProjectionExpr| given.expr.downcast_ref::<Column>().map(Column::index) == Some(column.index());
        projection.iter().position(is_it)
    };
    let mut are_all_given = true;
    let condition = as_it_is(&conjunction(conditions))?.transform(|node| {
        let known: &dyn Any = node.as_ref();
        let Some(column) = known.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        Ok(match output_of(column) {
            Some(output) => Transformed::yes(Arc::new(Column::new(column.name(), output)) as _),
            None => {
                are_all_given = false;
                Transformed::no(node)
            }
        })
    });
    let condition = condition.data()?;
    Ok(are_all_given.then_some(condition))
}

/// The number of the column that a condition is about, if it is about one and says the same whenever it is asked.
fn only_column(condition: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    let columns = collect_columns(condition);
    let column = columns.iter().next().filter(|_| columns.len() == 1 && !is_volatile(condition))?;
    Some(column.index())
}

impl ColumnCondition {
    /// Which of the values of a dictionary pass, and whether nulls do if there may be any. `None` where it fails for
    /// one of them: no row may have it that would be asked.
    pub(super) fn passing(&self, values: &ArrayRef, is_nullable: bool) -> Option<Passing> {
        let mut null = Vec::new();
        if is_nullable {
            self.append(new_null_array(values.data_type(), 1), &mut null)?;
        }
        let mut codes = Vec::with_capacity(values.len());
        for first in (0..values.len()).step_by(AT_ONCE) {
            self.append(values.slice(first, AT_ONCE.min(values.len() - first)), &mut codes)?;
        }
        Some(Passing { codes, null: null == [true] })
    }

    /// Of each value, whether the condition holds.
    fn append(&self, values: ArrayRef, to: &mut Vec<bool>) -> Option<()> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![values]).ok()?;
        let holds = self.condition.evaluate(&batch).ok()?.into_array(batch.num_rows()).ok()?;
        let holds = holds.as_boolean_opt()?;
        match holds.null_count() {
            0 => to.extend(holds.values()),
            _ => to.extend(holds.iter().map(|holds| holds == Some(true))),
        }
        Some(())
    }
}
