//! The conditions of a filter that dictionaries can be asked.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;

use super::chunk::CodedRows;
use super::codes::Passing;

/// Values that are asked at once: what is made of them on the way stays in the cache.
const AT_ONCE: usize = 8192;

/// A filter, as conditions of one column each and what else there is.
pub(super) struct Conditions {
    /// What has to hold of all rows.
    parts: Vec<Part>,
    pub(super) columns: Vec<ColumnCondition>,
    pub(super) wide: Vec<WideCondition>,
}

/// A condition of the filter.
struct Part {
    condition: Arc<dyn PhysicalExpr>,
    /// What says all of it; none where something else has to.
    said_by: Option<Vec<Said>>,
}

/// What says a condition, by its number.
#[derive(Debug, Clone, Copy)]
enum Said {
    Column(usize),
    Wide(usize),
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

/// What has to hold of several columns together.
pub(super) struct WideCondition {
    /// Their numbers in the table.
    pub(super) columns: Vec<usize>,
    /// Over rows of these columns.
    condition: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
    /// Whether it was asked of all rows that are left.
    pub(super) is_complete: bool,
}

impl Conditions {
    /// Those of a filter over rows of `schema`, as it is now: it may change while the query runs.
    pub(super) fn of(filter: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Self> {
        let mut columns: Vec<(usize, Vec<Arc<dyn PhysicalExpr>>)> = Vec::new();
        let (mut wide, mut parts) = (Vec::new(), Vec::new());
        for part in split_conjunction(filter) {
            let now = as_it_is(part)?;
            let mut said_by = Some(Vec::new());
            for condition in split_conjunction(&now) {
                let said = match columns_of(condition).as_slice() {
                    [] => None,
                    [column] => {
                        let number = columns.iter().position(|(known, _)| known == column).unwrap_or_else(|| {
                            columns.push((*column, Vec::new()));
                            columns.len() - 1
                        });
                        columns[number].1.push(Arc::clone(condition));
                        Some(Said::Column(number))
                    }
                    several => {
                        let (condition, schema) = over_columns(Arc::clone(condition), several, schema)?;
                        wide.push(WideCondition { columns: several.to_vec(), condition, schema, is_complete: true });
                        Some(Said::Wide(wide.len() - 1))
                    }
                };
                said_by = said_by.zip(said).map(|(before, said)| [before, vec![said]].concat());
            }
            parts.push(Part { condition: Arc::clone(part), said_by });
        }
        let columns = columns.into_iter().map(|(column, conditions)| {
            let (condition, schema) = over_columns(conjunction(conditions), &[column], schema)?;
            Ok(ColumnCondition { column, condition, schema, is_complete: true })
        });
        Ok(Self { columns: columns.collect::<Result<_>>()?, wide, parts })
    }

    /// None was asked of some rows.
    pub(super) fn are_left(&mut self) {
        self.columns.iter_mut().for_each(|condition| condition.is_complete = false);
        self.wide.iter_mut().for_each(|condition| condition.is_complete = false);
    }

    /// The conditions that were not asked of all rows.
    pub(super) fn left(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let is_said = |part: &&Part| {
            part.said_by.as_ref().is_some_and(|by| {
                by.iter().all(|said| match said {
                    Said::Column(number) => self.columns[*number].is_complete,
                    Said::Wide(number) => self.wide[*number].is_complete,
                })
            })
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

/// The numbers of the columns that a condition is about; none if it may say something else when it is asked again.
fn columns_of(condition: &Arc<dyn PhysicalExpr>) -> Vec<usize> {
    match is_volatile(condition) {
        true => Vec::new(),
        false => collect_columns(condition).iter().map(Column::index).collect::<BTreeSet<_>>().into_iter().collect(),
    }
}

/// A condition over rows of some columns of the table, and what these rows are.
fn over_columns(
    condition: Arc<dyn PhysicalExpr>,
    columns: &[usize],
    table: &Schema,
) -> Result<(Arc<dyn PhysicalExpr>, SchemaRef)> {
    let condition = condition.transform(|node| {
        let known: &dyn Any = node.as_ref();
        let Some(column) = known.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let Some(number) = columns.iter().position(|known| *known == column.index()) else {
            return internal_err!("{column} is not among the columns of its condition");
        };
        Ok(Transformed::yes(Arc::new(Column::new(column.name(), number)) as Arc<dyn PhysicalExpr>))
    });
    let fields = columns.iter().map(|column| table.field(*column).clone().with_nullable(true));
    Ok((condition.data()?, Arc::new(Schema::new(fields.collect::<Vec<_>>()))))
}

impl WideCondition {
    /// Of each row, by these columns, whether the condition holds. `None` where it fails for one.
    pub(super) fn holds(&self, columns: &[&CodedRows]) -> Option<BooleanBuffer> {
        let rows = columns.first()?.len();
        let mut holds = Vec::with_capacity(rows);
        for first in (0..rows).step_by(AT_ONCE) {
            let some = first..rows.min(first + AT_ONCE);
            let values = columns.iter().map(|column| column.get(some.clone()).ok()).collect::<Option<Vec<_>>>()?;
            append(&self.condition, &self.schema, values, &mut holds)?;
        }
        Some(BooleanBuffer::from(holds))
    }
}

impl ColumnCondition {
    /// Which of the values of a dictionary pass, and whether nulls do if there may be any. `None` where it fails for
    /// one of them: no row may have it that would be asked.
    pub(super) fn passing(&self, values: &ArrayRef, is_nullable: bool) -> Option<Passing> {
        let mut null = Vec::new();
        if is_nullable {
            append(&self.condition, &self.schema, vec![new_null_array(values.data_type(), 1)], &mut null)?;
        }
        let mut codes = Vec::with_capacity(values.len());
        for first in (0..values.len()).step_by(AT_ONCE) {
            let some = values.slice(first, AT_ONCE.min(values.len() - first));
            append(&self.condition, &self.schema, vec![some], &mut codes)?;
        }
        Some(Passing { codes, null: null == [true] })
    }
}

/// Of each row, whether a condition holds.
fn append(
    condition: &Arc<dyn PhysicalExpr>,
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    to: &mut Vec<bool>,
) -> Option<()> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns).ok()?;
    let holds = condition.evaluate(&batch).ok()?.into_array(batch.num_rows()).ok()?;
    let holds = holds.as_boolean_opt()?;
    match holds.null_count() {
        0 => to.extend(holds.values()),
        _ => to.extend(holds.iter().map(|holds| holds == Some(true))),
    }
    Some(())
}
