//! The rows of a plan from a resume token on. Rust: `IterOptions { resume, .. }`. SQL: `resume(t, '{"version":1,..}')`.

use std::collections::HashSet;
use std::fmt;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, Result, not_impl_err, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use super::{extension, fixed_plan_of_epoch, node_of};
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::token::{ResumeToken, plan_fingerprint};

arguments! {
    /// Where a table goes on.
    #[derive(Debug)]
    pub(crate) struct ResumeArguments {
        /// The token of an iterator over the table, as text.
        pub(crate) token: String,
    }
}

/// `resume(t, ..)`.
#[derive(Debug)]
pub(crate) struct Resume;

impl TableFunction for Resume {
    type Arguments = ResumeArguments;

    fn name(&self) -> &'static str {
        "resume"
    }

    fn about(&self) -> &'static str {
        "The rows of a query that were to follow when an iterator over it gave a resume token, in its order."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: ResumeArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(ResumeNode::try_new(planning.table()?, arguments.token.trim().parse()?)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ResumeArguments)>> {
        match node_of::<ResumeNode>(plan) {
            Some(_) => not_impl_err!(
                "SQL of a query that goes on at a resume token, which is one of the query as it was written"
            ),
            None => Ok(None),
        }
    }
}

/// The rows of its input from a position on that an iterator over it has had.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResumeNode {
    input: LogicalPlan,
    token: ResumeToken,
}

impl ResumeNode {
    /// The rows of `input` from `token` on.
    ///
    /// # Errors
    ///
    /// Where the token is one of another plan.
    pub fn try_new(input: LogicalPlan, token: ResumeToken) -> Result<Self> {
        if token.plan.0 != plan_fingerprint(&input) {
            return plan_err!("{OTHER_PLAN}");
        }
        Ok(Self { input: fixed_plan_of_epoch(input, token.epoch())?, token })
    }

    /// Where it begins.
    pub fn token(&self) -> &ResumeToken {
        &self.token
    }
}

/// What is wrong with a token that is not of a plan.
pub(crate) const OTHER_PLAN: &str = "the resume token is of another plan: other steps, options or seeds. Seeds that \
                                     are not said are drawn anew in each program";

/// The CPUs by which reads are cut into tasks where a plan goes on at a token: those of the token.
pub(crate) fn cpus_of_token(plan: &LogicalPlan) -> Option<usize> {
    let mut cpus = None;
    let found = plan.apply_with_subqueries(|plan| {
        cpus = node_of::<ResumeNode>(plan).map(|node| node.token.cpus);
        Ok(if cpus.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found.ok().and(cpus)
}

impl UserDefinedLogicalNodeCore for ResumeNode {
    fn name(&self) -> &str {
        "Resume"
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

    // With fewer rows, rows have other places.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resume: epoch={}, rows={}", self.token.epoch(), self.token.rows())
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), ..self.clone() })
    }
}

// Nodes are not ordered.
impl PartialOrd for ResumeNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}
