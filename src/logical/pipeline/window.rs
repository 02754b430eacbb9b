//! What stands, in the plan of a window, for the rows of the window.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::functions::WindowSize;

/// The columns that say of which epoch and window a row is.
pub(crate) const LABELS: [&str; 2] = ["_epoch", "_window"];

/// The rows of one window of its input after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowNode {
    input: LogicalPlan,
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
        let schema = if labels { labelled(input.schema())? } else { Arc::clone(input.schema()) };
        Ok(Self { input, size, keeps_epochs: false, labels, schema })
    }

    /// The same, where no window has rows of two epochs of its input.
    pub(crate) fn keeping_epochs(self) -> Self {
        Self { keeps_epochs: true, ..self }
    }

    /// What is cut into windows.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// How large they are; `None`: all of the input is one.
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
        vec![&self.input]
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
            _ => fields.skip(self.input.schema().fields().len()).collect(),
        }
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "Window: {size}")?,
            None => write!(f, "Window: all")?,
        }
        write!(f, "{}", if self.keeps_epochs { ", of one epoch" } else { "" })?;
        write!(f, "{}", if self.labels { ", include_epoch" } else { "" })
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let window = Self::try_new(inputs.swap_remove(0), self.size, self.labels)?;
        Ok(Self { keeps_epochs: self.keeps_epochs, ..window })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|column| *column < columns).collect()])
    }
}

// Nodes are not ordered.
impl PartialOrd for WindowNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}
