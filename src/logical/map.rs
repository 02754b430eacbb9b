//! Ray's map family. Rust: `map_batches`, `map`, `flat_map`, `filter`, `random_sample`. SQL: `map_batches(t, 'f')`,
//! `t TABLESAMPLE BERNOULLI (p)`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DFSchema, DFSchemaRef, FunctionalDependencies, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::error::unknown_name;
use crate::functions::{BatchSize, Compute, Failures, FunctionRef, OnError};

/// Which operator of the family.
#[derive(Debug, Clone, PartialEq)]
pub enum MapOperator {
    /// A function over batches of a size.
    Batches(FunctionRef, BatchSize),
    /// A function of groups: the rows with equal values in columns of these names, which are neighbours; of all of
    /// them, or of pieces of at most so many.
    Groups(FunctionRef, Vec<String>, Option<usize>),
    /// A function that turns each row into one row.
    Rows(FunctionRef),
    /// A function that turns each row into any number of rows.
    FlatMap(FunctionRef),
    /// A function that keeps some of the rows.
    Filter(FunctionRef),
    /// A random sample of the rows.
    Sample {
        /// Probability of each row, 0 to 1.
        fraction: f64,
        /// Decides which rows, together with their place.
        seed: u64,
        /// Whether it is the other rows that stay.
        others: bool,
    },
}

impl MapOperator {
    /// Ray's name of the operator.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Batches(..) => "MapBatches",
            Self::Groups(..) => "MapGroups",
            Self::Rows(_) => "Map",
            Self::FlatMap(_) => "FlatMap",
            Self::Filter(_) => "Filter",
            Self::Sample { .. } => "RandomSample",
        }
    }

    /// The function that is called, if it is one.
    pub fn function(&self) -> Option<&FunctionRef> {
        match self {
            Self::Batches(f, _) | Self::Groups(f, ..) | Self::Rows(f) | Self::FlatMap(f) | Self::Filter(f) => Some(f),
            Self::Sample { .. } => None,
        }
    }

    /// Whether rows come out as they went in, if they come out.
    fn keeps_rows(&self) -> bool {
        matches!(self, Self::Filter(_) | Self::Sample { .. })
    }
}

/// Applies an operator to the rows of its input.
#[derive(Debug, Clone)]
pub struct MapNode {
    input: LogicalPlan,
    operator: MapOperator,
    compute: Compute,
    failures: Failures,
    schema: DFSchemaRef,
}

impl MapNode {
    /// Whether what comes out of a row does not depend on the rows of other tasks.
    pub(crate) fn is_row_by_row(&self) -> bool {
        !matches!(self.operator, MapOperator::Groups(..))
    }

    /// Checks the operator and finds the columns that come out of it; a function whose columns are not declared is
    /// called on an empty batch.
    ///
    /// # Errors
    ///
    /// Where columns are not there, or the function fails for an empty batch.
    pub fn try_new(input: LogicalPlan, operator: MapOperator, compute: Compute, failures: Failures) -> Result<Self> {
        if let MapOperator::Sample { fraction, .. } = operator
            && !(0.0..=1.0).contains(&fraction)
        {
            return plan_err!("the fraction of a sample must be between 0 and 1, got {fraction}");
        }
        if matches!(operator, MapOperator::Batches(_, BatchSize::Rows(0)) | MapOperator::Groups(_, _, Some(0))) {
            return plan_err!("batch_size must be at least 1, got 0");
        }
        if let MapOperator::Groups(_, keys, _) = &operator {
            let known: Vec<&str> = input.schema().fields().iter().map(|field| field.name().as_str()).collect();
            if let Some(key) = keys.iter().find(|key| !known.contains(&key.as_str())) {
                return Err(unknown_name("column", key, "map_groups", &known));
            }
            if failures.on_error != OnError::Fail {
                return plan_err!("on_error is about rows; map_groups calls its function with whole groups");
            }
        }
        let schema = match operator.function() {
            Some(function) => {
                let given = Arc::new(input.schema().as_arrow().clone());
                let returned = function.output_schema(&given)?;
                match failures.on_error {
                    _ if operator.keeps_rows() => Arc::clone(input.schema()),
                    OnError::Null => {
                        let nullable = returned.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
                        let schema =
                            Schema::new_with_metadata(nullable.collect::<Vec<_>>(), returned.metadata().clone());
                        Arc::new(DFSchema::try_from(schema)?)
                    }
                    _ => columns_of(returned, input.schema())?,
                }
            }
            None => Arc::clone(input.schema()),
        };
        Ok(Self { input, operator, compute, failures, schema })
    }

    /// The operator.
    pub fn operator(&self) -> &MapOperator {
        &self.operator
    }

    /// How it is to run.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Which failures it tolerates.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Its input.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }
}

/// The columns that a function gives. Where it gives those of its input, of which some have the same name, they stay
/// apart by the tables that they are from.
fn columns_of(returned: SchemaRef, input: &DFSchemaRef) -> Result<DFSchemaRef> {
    let given = input.as_arrow();
    let same = returned.fields() == given.fields();
    let names: HashSet<&String> = given.fields().iter().map(|field| field.name()).collect();
    Ok(Arc::new(match same && names.len() < given.fields().len() {
        true => input.as_ref().clone().with_functional_dependencies(FunctionalDependencies::empty())?,
        false => DFSchema::try_from(returned)?,
    }))
}

impl UserDefinedLogicalNodeCore for MapNode {
    fn name(&self) -> &str {
        self.operator.name()
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

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        match self.operator {
            MapOperator::Filter(_) => HashSet::new(),
            _ => self.schema.fields().iter().map(|f| f.name().clone()).collect(),
        }
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.operator {
            MapOperator::Batches(function, size) => {
                write!(f, "MapBatches: {}", function.name())?;
                match size {
                    BatchSize::AsTheyCome => {}
                    BatchSize::Rows(n) => write!(f, ", batch_size={n}")?,
                    BatchSize::WholeBlock => write!(f, ", batch_size=block")?,
                }
            }
            MapOperator::Groups(function, keys, max_rows) => {
                write!(f, "MapGroups: {}, keys=[{}]", function.name(), keys.join(", "))?;
                if let Some(rows) = max_rows {
                    write!(f, ", batch_size={rows}")?;
                }
            }
            MapOperator::Sample { fraction, seed, others } => {
                let others = if *others { ", others=true" } else { "" };
                write!(f, "RandomSample: fraction={fraction}, seed={seed}{others}")?;
            }
            operator => {
                write!(f, "{}: {}", operator.name(), operator.function().map_or("", |function| function.name()))?;
            }
        }
        let changes = self.operator.function().is_some_and(|function| !function.is_deterministic());
        write!(f, "{}{}{}", self.compute, self.failures, if changes { ", deterministic=false" } else { "" })
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let input = inputs.swap_remove(0);
        if input.schema().as_arrow() == self.input.schema().as_arrow() && !self.operator.keeps_rows() {
            return Ok(Self { input, ..self.clone() });
        }
        Self::try_new(input, self.operator.clone(), self.compute.clone(), self.failures.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        match self.operator {
            MapOperator::Sample { .. } => Some(vec![output_columns.to_vec()]),
            _ => None,
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        let keeps = matches!(self.failures.on_error, OnError::Fail | OnError::Null);
        // A limit below would cut groups.
        let groups = matches!(self.operator, MapOperator::Groups(..));
        keeps && !groups && self.operator.function().is_some_and(FunctionRef::preserves_row_count)
    }
}

// The schema follows from the other fields, and functions compare by identity.
impl PartialEq for MapNode {
    fn eq(&self, other: &Self) -> bool {
        self.operator == other.operator
            && self.compute == other.compute
            && self.failures == other.failures
            && self.input == other.input
    }
}

impl Eq for MapNode {}

impl Hash for MapNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.operator.name().hash(state);
        self.operator.function().hash(state);
        self.compute.hash(state);
        self.failures.hash(state);
        self.input.hash(state);
    }
}

impl PartialOrd for MapNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
