//! A sub-plan that a query has several times.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// How the name of a sub-plan begins that is to be computed once, since its rows are drawn.
pub(crate) const ONCE: &str = "__once_";

/// Whether a sub-plan is to be computed once, since its rows are drawn.
pub(crate) fn is_drawn_once(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::SubqueryAlias(alias) if alias.alias.table().starts_with(ONCE))
}

/// The rows of its input, which are those of all other nodes of the query with this number. Put there by the rule
/// `share_subplans`; no call makes it. Conditions stay above it, and it has all columns of its input, which
/// `narrow_shared` changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SharedNode {
    input: Arc<LogicalPlan>,
    number: usize,
    stage: Stage,
}

/// How far the optimizer is with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// It has been found, and is to be asked for no more than the nodes need.
    Found,
    /// It is asked for that.
    Narrowed,
    /// It is better not shared: the node is as if it were not there.
    Alone,
}

impl SharedNode {
    /// The rows of `input`, as of all others with this number.
    pub(crate) fn new(input: LogicalPlan, number: usize) -> Self {
        Self { input: Arc::new(input), number, stage: Stage::Found }
    }

    /// The node over what all nodes with its number ask of `input` together.
    pub(crate) fn narrowed(input: LogicalPlan, number: usize) -> Self {
        Self { stage: Stage::Narrowed, ..Self::new(input, number) }
    }

    /// A node that nobody shares. Without it the plan would be found again.
    pub(crate) fn alone(input: LogicalPlan, number: usize) -> Self {
        Self { stage: Stage::Alone, ..Self::new(input, number) }
    }

    /// What all nodes with this number give.
    pub(crate) fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// Whether the input has been asked for no more than the nodes need.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.stage == Stage::Narrowed
    }

    /// Whether nobody shares it.
    pub(crate) fn is_alone(&self) -> bool {
        self.stage == Stage::Alone
    }

    /// Which of the sub-plans that the query has several times it is.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl UserDefinedLogicalNodeCore for SharedNode {
    fn name(&self) -> &str {
        "Shared"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        match self.is_alone() {
            true => HashSet::new(),
            false => self.schema().fields().iter().map(|field| field.name().clone()).collect(),
        }
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        self.is_alone().then(|| vec![output_columns.to_vec()])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared: plan={}", self.number)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[LogicalPlan; 1]>::try_from(inputs) {
            Ok([input]) => Ok(Self { input: Arc::new(input), ..self.clone() }),
            Err(inputs) => plan_err!("a shared plan has one input, not {}", inputs.len()),
        }
    }
}

impl PartialOrd for SharedNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}
