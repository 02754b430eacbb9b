//! Ray's `mix`. Rust: `mix(&[&b, &c])`. SQL: `mix(a, b, c, weights => [2, 1, 1], stopping_condition =>
//! 'longest')`.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, DataFusionError, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::prelude::Column;

use crate::arguments;
use crate::call::{Argument, Planning, TableFunction, Tables, Value, parsed, shown};
use crate::error::unknown_name;
use crate::logical::{extension, node_of};
use crate::tensors::check_same_tensors;

/// When a mix ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash, Default)]
pub enum MixStoppingCondition {
    /// As soon as one of the inputs has no more rows.
    Shortest,
    /// When all inputs have ended; those that end before are left out from there on.
    #[default]
    Longest,
}

impl fmt::Display for MixStoppingCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shortest => "shortest",
            Self::Longest => "longest",
        })
    }
}

impl FromStr for MixStoppingCondition {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "shortest" => Ok(Self::Shortest),
            "longest" => Ok(Self::Longest),
            other => Err(unknown_name("stopping condition", other, "mix", &["shortest", "longest"])),
        }
    }
}

impl Argument for MixStoppingCondition {
    const WHAT: &'static str = String::WHAT;

    fn from_value(value: &Value) -> Result<Option<Self>> {
        parsed(value)
    }

    fn to_value(&self) -> Result<Value> {
        Ok(shown(self))
    }
}

arguments! {
    /// How much of which input there is.
    #[derive(Debug, Clone, Default)]
    pub struct MixOptions {
        /// What the numbers of rows are proportional to, one for each input, above 0; all the same if not said.
        pub weights: Vec<f64> = default,
        /// When it ends: with the `shortest` input, or the `longest`, which is the default.
        pub stopping_condition: MixStoppingCondition = default,
    }
}

/// `mix(a, b, ..)`.
#[derive(Debug)]
pub(crate) struct Mix;

impl TableFunction for Mix {
    type Arguments = MixOptions;

    fn name(&self) -> &'static str {
        "mix"
    }

    fn about(&self) -> &'static str {
        "Rows of several tables with the same columns by turns, in proportion to weights."
    }

    fn tables(&self) -> Tables {
        Tables::Several
    }

    fn plan(&self, arguments: MixOptions, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(MixNode::try_new(planning.tables, arguments)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, MixOptions)>> {
        Ok(node_of::<MixNode>(plan).map(|node| (node.inputs.clone(), node.options.clone())))
    }
}

/// Rows of several inputs by turns.
#[derive(Debug, Clone)]
pub struct MixNode {
    inputs: Vec<LogicalPlan>,
    options: MixOptions,
    schema: DFSchemaRef,
}

impl MixNode {
    /// Mixes inputs, whose columns must have the same names in the same order. Types become the one that both fit, as
    /// in UNION ALL.
    ///
    /// # Errors
    ///
    /// Where names of columns or shapes of tensors differ, types have nothing in common, or weights are no positive
    /// numbers.
    pub fn try_new(inputs: Vec<LogicalPlan>, mut options: MixOptions) -> Result<Self> {
        if inputs.is_empty() {
            return plan_err!("mix needs at least one input");
        }
        if options.weights.is_empty() {
            options.weights = vec![1.0; inputs.len()];
        }
        if options.weights.len() != inputs.len() {
            return plan_err!("mix needs a weight for each input, got {} for {}", options.weights.len(), inputs.len());
        }
        if let Some(wrong) = options.weights.iter().find(|weight| !weight.is_finite() || **weight <= 0.0) {
            return plan_err!("the weights of mix must be above 0, got {wrong}");
        }
        Self::of_same_columns(same_columns(inputs)?, options)
    }

    fn of_same_columns(inputs: Vec<LogicalPlan>, options: MixOptions) -> Result<Self> {
        let fields = |plan: &LogicalPlan| plan.schema().fields().iter().cloned().collect::<Vec<_>>();
        let mut mixed = fields(&inputs[0]);
        for input in &inputs[1..] {
            for (field, other) in mixed.iter_mut().zip(fields(input)) {
                if other.is_nullable() && !field.is_nullable() {
                    *field = Arc::new(field.as_ref().clone().with_nullable(true));
                }
            }
        }
        let schema = DFSchema::from_unqualified_fields(mixed.into(), Default::default())?;
        Ok(Self { inputs, options, schema: Arc::new(schema) })
    }

    /// How much of which input there is.
    pub fn options(&self) -> &MixOptions {
        &self.options
    }
}

/// The inputs with the columns that all of them have: pruning leaves some inputs, like groups, columns that nobody
/// needs.
fn narrowed(inputs: Vec<LogicalPlan>) -> Result<Vec<LogicalPlan>> {
    let names = |plan: &LogicalPlan| plan.schema().fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    let all: Vec<_> = inputs.iter().map(names).collect();
    let common: Vec<&String> = all[0].iter().filter(|name| all.iter().all(|names| names.contains(name))).collect();
    let narrow = |(plan, names): (LogicalPlan, &Vec<String>)| {
        if names.len() == common.len() {
            return Ok(plan);
        }
        let kept = plan.schema().iter().filter(|(_, field)| common.contains(&field.name()));
        let kept: Vec<_> = kept.map(|column| Expr::Column(Column::from(column))).collect();
        LogicalPlanBuilder::from(plan).project(kept)?.build()
    };
    inputs.into_iter().zip(&all).map(narrow).collect()
}

/// The inputs with the types that a union of them has.
fn same_columns(inputs: Vec<LogicalPlan>) -> Result<Vec<LogicalPlan>> {
    let names = |plan: &LogicalPlan| plan.schema().fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    let first = names(&inputs[0]);
    if let Some(other) = inputs.iter().map(names).find(|other| *other != first) {
        return plan_err!("mix needs inputs with the same columns, got {} and {}", first.join(", "), other.join(", "));
    }
    for column in 0..first.len() {
        check_same_tensors(inputs.iter().map(|input| input.schema().field(column)))?;
    }
    let types = |plan: &LogicalPlan| plan.schema().fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
    let mut common = types(&inputs[0]);
    for other in inputs.iter().skip(1).map(types) {
        for (name, (known, other)) in first.iter().zip(common.iter_mut().zip(other)) {
            *known = match datafusion::logical_expr::type_coercion::binary::type_union_coercion(known, &other) {
                Some(both) => both,
                None => {
                    return plan_err!("mix needs inputs with the same columns, but '{name}' is {known} and {other}");
                }
            };
        }
    }
    let cast = |plan: LogicalPlan| {
        if types(&plan) == common {
            return Ok(plan);
        }
        let column = |((qualifier, field), to): ((_, &Arc<datafusion::arrow::datatypes::Field>), &_)| {
            let column = Expr::Column(Column::from((qualifier, field)));
            datafusion::logical_expr::cast(column, datafusion::arrow::datatypes::DataType::clone(to))
                .alias(field.name())
        };
        let columns: Vec<_> = plan.schema().iter().zip(&common).map(column).collect();
        LogicalPlanBuilder::from(plan).project(columns)?.build()
    };
    inputs.into_iter().map(cast).collect()
}

impl UserDefinedLogicalNodeCore for MixNode {
    fn name(&self) -> &str {
        "Mix"
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
        write!(f, "Mix: {}", self.options)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::of_same_columns(narrowed(inputs)?, self.options.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec(); self.inputs.len()])
    }
}

impl fmt::Display for MixOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights: Vec<_> = self.weights.iter().map(ToString::to_string).collect();
        write!(f, "weights=[{}], stopping_condition={}", weights.join(", "), self.stopping_condition)
    }
}

impl MixOptions {
    fn bits(&self) -> (Vec<u64>, MixStoppingCondition) {
        (self.weights.iter().map(|weight| weight.to_bits()).collect(), self.stopping_condition)
    }
}

// The schema follows from the inputs.
impl PartialEq for MixNode {
    fn eq(&self, other: &Self) -> bool {
        self.inputs == other.inputs && self.options.bits() == other.options.bits()
    }
}

impl Eq for MixNode {}

impl Hash for MixNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inputs.hash(state);
        self.options.bits().hash(state);
    }
}

impl PartialOrd for MixNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
