//! Ray's `Zip`. Rust: `zip(other)`. SQL: `zip(a, b)`.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::prelude::Column;

/// Row i of the left beside row i of the right.
#[derive(Debug, Clone)]
pub struct ZipNode {
    left: LogicalPlan,
    right: LogicalPlan,
    schema: DFSchemaRef,
}

impl ZipNode {
    /// Zips two inputs. Columns of the right that the left has too get a suffix: `a` becomes `a_1`.
    pub fn try_new(left: LogicalPlan, right: LogicalPlan) -> Result<Self> {
        let mut taken: Vec<String> = left.schema().fields().iter().map(|f| f.name().clone()).collect();
        let mut renamed = Vec::new();
        for (qualifier, field) in right.schema().iter() {
            let mut name = field.name().clone();
            let mut suffix = 1;
            while taken.contains(&name) {
                name = format!("{}_{suffix}", field.name());
                suffix += 1;
            }
            taken.push(name.clone());
            renamed.push(Expr::Column(Column::from((qualifier, field))).alias(name));
        }
        // The new names are part of the right input, so that they stay when columns of the left are pruned.
        let right = LogicalPlanBuilder::from(right).project(renamed)?.build()?;
        Self::of_distinct(left, right)
    }

    fn of_distinct(left: LogicalPlan, right: LogicalPlan) -> Result<Self> {
        let fields = |plan: &LogicalPlan| plan.schema().fields().iter().cloned().collect::<Vec<_>>();
        let fields = [fields(&left), fields(&right)].concat();
        let schema = DFSchema::from_unqualified_fields(fields.into(), Default::default())?;
        Ok(Self { left, right, schema: Arc::new(schema) })
    }
}

impl UserDefinedLogicalNodeCore for ZipNode {
    fn name(&self) -> &str {
        "Zip"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.left, &self.right]
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

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let right = inputs.swap_remove(1);
        Self::of_distinct(inputs.swap_remove(0), right)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let width = self.left.schema().fields().len();
        let (left, right): (Vec<usize>, Vec<usize>) = output_columns.iter().partition(|c| **c < width);
        Some(vec![left, right.into_iter().map(|c| c - width).collect()])
    }

    // Row i of the output needs row i of both sides and nothing else.
    fn supports_limit_pushdown(&self) -> bool {
        true
    }
}

// The schema follows from the inputs.
impl PartialEq for ZipNode {
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left && self.right == other.right
    }
}

impl Eq for ZipNode {}

impl Hash for ZipNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.left.hash(state);
        self.right.hash(state);
    }
}

impl PartialOrd for ZipNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
