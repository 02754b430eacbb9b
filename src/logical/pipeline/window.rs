//! What stands, in the plan of a window, for the rows of the window.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Union, UserDefinedLogicalNodeCore};

use crate::functions::WindowSize;

/// The columns that say of which epoch and window a row is.
pub(crate) const LABELS: [&str; 2] = ["_epoch", "_window"];

/// The rows of one window of its input after the other; or of one input after the other, each a window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowNode {
    inputs: Vec<LogicalPlan>,
    size: Option<WindowSize>,
    keeps_epochs: bool,
    labels: bool,
    schema: DFSchemaRef,
}

impl WindowNode {
    /// Windows of `input`, of a size, or all of it as one. With `labels`, columns `_epoch` and `_window` say which.
    ///
    /// # Errors
    ///
    /// Where windows would have nothing in them, or `labels` are columns of the input.
    pub fn try_new(input: LogicalPlan, size: Option<WindowSize>, labels: bool) -> Result<Self> {
        size.map_or(Ok(()), WindowSize::check)?;
        Self::of(vec![input], size, labels)
    }

    /// A window for each of `inputs`, which have the same columns.
    ///
    /// # Errors
    ///
    /// Where there are no inputs, or their columns differ; and as [`WindowNode::try_new`].
    pub fn of_inputs(inputs: Vec<LogicalPlan>, labels: bool) -> Result<Self> {
        Self::of(inputs, None, labels)
    }

    fn of(inputs: Vec<LogicalPlan>, size: Option<WindowSize>, labels: bool) -> Result<Self> {
        let schema = common_schema(&inputs)?;
        let schema = if labels { labelled(&schema)? } else { schema };
        Ok(Self { inputs, size, keeps_epochs: false, labels, schema })
    }

    /// The same, where no window has rows of two epochs of its input.
    pub(crate) fn keeping_epochs(self) -> Self {
        Self { keeps_epochs: true, ..self }
    }

    /// What is cut into windows: one plan, or several, each of which is a window.
    pub fn sources(&self) -> &[LogicalPlan] {
        &self.inputs
    }

    /// The rows of source number `number`, in the columns of all of them.
    pub(crate) fn source(&self, number: usize) -> Result<LogicalPlan> {
        match self.inputs.as_slice() {
            [input] => Ok(input.clone()),
            inputs => {
                let input = &inputs[number];
                let columns = input.schema().iter().map(|(owner, field)| Expr::Column(Column::from((owner, field))));
                let (columns, input, schema) = (columns.collect(), Arc::new(input.clone()), common_schema(inputs)?);
                Ok(LogicalPlan::Projection(Projection::try_new_with_schema(columns, input, schema)?))
            }
        }
    }

    /// The rows of all sources.
    pub(crate) fn all_rows(&self) -> Result<LogicalPlan> {
        match self.inputs.as_slice() {
            [input] => Ok(input.clone()),
            inputs => {
                let schema = common_schema(inputs)?;
                let inputs = (0..inputs.len()).map(|number| self.source(number).map(Arc::new));
                Ok(LogicalPlan::Union(Union { inputs: inputs.collect::<Result<_>>()?, schema }))
            }
        }
    }

    /// How large they are; `None`: all of an input is one.
    pub fn size(&self) -> Option<WindowSize> {
        self.size
    }

    /// Whether a window ends where an epoch of the input ends.
    pub fn keeps_epochs(&self) -> bool {
        self.keeps_epochs
    }

    /// Whether columns say of which epoch and window a row is.
    pub fn has_labels(&self) -> bool {
        self.labels
    }
}

/// The columns of the first input; those that may be null in any.
fn common_schema(inputs: &[LogicalPlan]) -> Result<DFSchemaRef> {
    let Some((first, others)) = inputs.split_first() else {
        return plan_err!("a pipeline needs at least 1 dataset, got 0");
    };
    let columns = |plan: &LogicalPlan| -> Vec<(String, DataType)> {
        plan.schema().fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
    };
    let of_first = columns(first);
    if let Some(number) = others.iter().position(|other| columns(other) != of_first) {
        let list = |columns: Vec<(String, DataType)>| -> String {
            columns.iter().map(|(name, data_type)| format!("{name} {data_type}")).collect::<Vec<_>>().join(", ")
        };
        return plan_err!(
            "the datasets of a pipeline have the same columns: the first has [{}], number {} has [{}]",
            list(of_first),
            number + 2,
            list(columns(&others[number]))
        );
    }
    if others.is_empty() {
        return Ok(Arc::clone(first.schema()));
    }
    let may_be_null = |column: usize| inputs.iter().any(|input| input.schema().field(column).is_nullable());
    let fields = first.schema().iter().enumerate().map(|(column, (owner, field))| {
        (owner.cloned(), Arc::new(field.as_ref().clone().with_nullable(may_be_null(column))))
    });
    Ok(Arc::new(DFSchema::new_with_metadata(fields.collect(), first.schema().metadata().clone())?))
}

fn labelled(schema: &DFSchemaRef) -> Result<DFSchemaRef> {
    if let Some(taken) = LABELS.iter().find(|label| schema.has_column_with_unqualified_name(label)) {
        return plan_err!("include_epoch adds a column '{taken}', and there is one already");
    }
    let own = LABELS.map(|label| (None, Arc::new(Field::new(label, DataType::Int64, false))));
    let fields = schema.iter().map(|(owner, field)| (owner.cloned(), Arc::clone(field))).chain(own);
    Ok(Arc::new(DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())?))
}

impl UserDefinedLogicalNodeCore for WindowNode {
    fn name(&self) -> &str {
        "Window"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    // Rows that are counted are not left out before; the labels are not there before.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let fields = self.schema.fields().iter().map(|field| field.name().clone());
        match self.size {
            Some(WindowSize::Rows(_)) => fields.collect(),
            // Columns of other inputs are those of other tables.
            _ if self.inputs.len() > 1 => fields.collect(),
            _ => fields.skip(self.inputs[0].schema().fields().len()).collect(),
        }
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "Window: {size}")?,
            None if self.inputs.len() > 1 => write!(f, "Window: each of {} inputs", self.inputs.len())?,
            None => write!(f, "Window: all")?,
        }
        write!(f, "{}", if self.keeps_epochs { ", of one epoch" } else { "" })?;
        write!(f, "{}", if self.labels { ", include_epoch" } else { "" })
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let window = Self::of(inputs, self.size, self.labels)?;
        Ok(Self { keeps_epochs: self.keeps_epochs, ..window })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.inputs[0].schema().fields().len();
        let of_input: Vec<usize> = output_columns.iter().copied().filter(|column| *column < columns).collect();
        Some(vec![of_input; self.inputs.len()])
    }
}

// Nodes are not ordered.
impl PartialOrd for WindowNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}
