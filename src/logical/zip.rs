//! Ray's `Zip`. Rust: `zip(&[&b, &c])`. SQL: `zip(a, b, c)`.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::prelude::Column;

use crate::call::{Planning, TableFunction, Tables};
use crate::logical::{extension, node_of};

/// `zip(a, b, ..)`.
#[derive(Debug)]
pub(crate) struct Zip;

impl TableFunction for Zip {
    type Arguments = ();

    fn name(&self) -> &'static str {
        "zip"
    }

    fn about(&self) -> &'static str {
        "Row i of each table beside row i of the others, which must have as many."
    }

    fn tables(&self) -> Tables {
        Tables::Several
    }

    fn plan(&self, (): (), planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(ZipNode::try_new(planning.tables)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ())>> {
        Ok(node_of::<ZipNode>(plan).map(|node| (node.inputs.clone(), ())))
    }
}

/// Row i of each input beside each other.
#[derive(Debug, Clone)]
pub struct ZipNode {
    inputs: Vec<LogicalPlan>,
    schema: DFSchemaRef,
}

impl ZipNode {
    /// Zips inputs. Columns that an input before has too get a suffix: `a` becomes `a_1`, then `a_2`.
    ///
    /// # Errors
    ///
    /// Where there are no inputs.
    pub fn try_new(inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut taken: Vec<String> = Vec::new();
        let mut distinct = Vec::with_capacity(inputs.len());
        for input in inputs {
            let mut columns = Vec::new();
            for (qualifier, field) in input.schema().iter() {
                let mut name = field.name().clone();
                let mut suffix = 1;
                while taken.contains(&name) {
                    name = format!("{}_{suffix}", field.name());
                    suffix += 1;
                }
                columns.push(Expr::Column(Column::from((qualifier, field))).alias(&name));
                taken.push(name);
            }
            // The new names are part of the input, so that they stay when columns of the others are pruned.
            distinct.push(match distinct.is_empty() {
                true => input,
                false => LogicalPlanBuilder::from(input).project(columns)?.build()?,
            });
        }
        Self::of_distinct(distinct)
    }

    fn of_distinct(inputs: Vec<LogicalPlan>) -> Result<Self> {
        if inputs.is_empty() {
            return plan_err!("zip needs at least one input");
        }
        let fields: Vec<_> = inputs.iter().flat_map(|plan| plan.schema().fields().iter().cloned()).collect();
        let schema = DFSchema::from_unqualified_fields(fields.into(), Default::default())?;
        Ok(Self { inputs, schema: Arc::new(schema) })
    }
}

impl UserDefinedLogicalNodeCore for ZipNode {
    fn name(&self) -> &str {
        "Zip"
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

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zip")
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::of_distinct(inputs)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let mut start = 0;
        let mut of_inputs = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let end = start + input.schema().fields().len();
            of_inputs.push(output_columns.iter().filter(|c| (start..end).contains(*c)).map(|c| c - start).collect());
            start = end;
        }
        Some(of_inputs)
    }

    // Row i of the output needs row i of every input and nothing else.
    fn supports_limit_pushdown(&self) -> bool {
        true
    }
}

// The schema follows from the inputs.
impl PartialEq for ZipNode {
    fn eq(&self, other: &Self) -> bool {
        self.inputs == other.inputs
    }
}

impl Eq for ZipNode {}

impl Hash for ZipNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inputs.hash(state);
    }
}

impl PartialOrd for ZipNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
