//! Ray's `DatasetPipeline`. Rust: `window(size)`, `repeat(times)`. SQL: `windows(t, blocks_per_window => 10)`,
//! `repeat(t, 3)`.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use super::WindowNode;
use crate::functions::WindowSize;
use crate::logical::{extension, node_of};

/// What the epochs of a pipeline are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Epochs {
    /// Those of the pipeline that is its source.
    OfSource,
    /// So many passes over the source each, and so many of them, or without end.
    Of {
        /// Passes over the source in an epoch, at least 1.
        passes: u64,
        /// Epochs, at least 1; `None`: without end.
        times: Option<u64>,
    },
}

/// Runs a plan for one window of its source after the other, again and again: the part of the plan above its
/// [`WindowNode`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct PipelineNode {
    input: LogicalPlan,
    epochs: Epochs,
    /// What is cut into windows, also where a rule finds that the plan of a window needs no row of it.
    window: Arc<WindowNode>,
}

impl PipelineNode {
    /// Runs `input` once for each window. The windows are those of the [`WindowNode`] in it.
    ///
    /// # Errors
    ///
    /// Where there is no such node in `input`, or several that differ.
    pub fn try_new(input: LogicalPlan, epochs: Epochs) -> Result<Self> {
        if let Epochs::Of { passes: 0, .. } | Epochs::Of { times: Some(0), .. } = epochs {
            return plan_err!("times must be at least 1, got 0");
        }
        let windows = windows_of(&input)?;
        let window = match windows.as_slice() {
            [] => return plan_err!("the plan of a window does not read the window"),
            [first, others @ ..] if others.iter().all(|other| other == first) => Arc::new(first.clone()),
            _ => return plan_err!("the plan of a window reads windows of several pipelines; it can read those of one"),
        };
        Ok(Self { input, epochs, window })
    }

    /// All of `source`, again and again; or that of each pass, if it is a pipeline. `None`: without end.
    ///
    /// # Errors
    ///
    /// Where `times` is 0, or `source` has no end.
    pub fn repeat(source: LogicalPlan, times: Option<u64>) -> Result<Self> {
        if times == Some(0) {
            return plan_err!("times must be at least 1, got 0");
        }
        let Some(pipeline) = node_of::<Self>(&source) else {
            let window = WindowNode::try_new(source, None, false)?;
            return Self::try_new(extension(window), Epochs::Of { passes: 1, times });
        };
        if pipeline.is_endless()? {
            return plan_err!("an endless pipeline cannot be repeated: its first epoch would never end");
        }
        let passes = match pipeline.epochs {
            Epochs::Of { passes, times: Some(times) } => passes.saturating_mul(times),
            _ => 1,
        };
        Ok(Self { epochs: Epochs::Of { passes, times }, ..pipeline.clone() })
    }

    /// Windows of `source`, once.
    ///
    /// # Errors
    ///
    /// Where windows would have nothing in them.
    pub fn windows(source: LogicalPlan, size: WindowSize) -> Result<Self> {
        let window = WindowNode::try_new(source, Some(size), false)?;
        Self::try_new(extension(window), Epochs::Of { passes: 1, times: Some(1) })
    }

    /// A window for each of several plans with the same columns, once.
    ///
    /// # Errors
    ///
    /// Where there are none, or their columns differ.
    pub fn windows_of(sources: Vec<LogicalPlan>) -> Result<Self> {
        let window = WindowNode::of_inputs(sources, false)?;
        Self::try_new(extension(window), Epochs::Of { passes: 1, times: Some(1) })
    }

    /// Other windows over what comes out of a pipeline.
    ///
    /// # Errors
    ///
    /// Where windows would have nothing in them, or `source` is no pipeline.
    pub fn rewindow(source: LogicalPlan, size: WindowSize, preserve_epoch: bool) -> Result<Self> {
        if node_of::<Self>(&source).is_none() {
            return plan_err!("rewindow needs a pipeline; window() makes one");
        }
        let window = WindowNode::try_new(source, Some(size), false)?;
        match preserve_epoch {
            true => Self::try_new(extension(window.keeping_epochs()), Epochs::OfSource),
            false => Self::try_new(extension(window), Epochs::Of { passes: 1, times: Some(1) }),
        }
    }

    /// The plan of one window.
    pub fn each_window(&self) -> &LogicalPlan {
        &self.input
    }

    /// The same windows with another plan for each.
    ///
    /// # Errors
    ///
    /// Where the plan does not read the window.
    pub fn with_each_window(&self, plan: LogicalPlan) -> Result<Self> {
        Self::try_new(plan, self.epochs)
    }

    /// What its epochs are.
    pub fn epochs(&self) -> Epochs {
        self.epochs
    }

    /// What is cut into windows, and how.
    pub fn window(&self) -> &WindowNode {
        &self.window
    }

    /// How many times the plan of a window reads the window.
    pub(crate) fn num_readers(&self) -> Result<usize> {
        Ok(windows_of(&self.input)?.len())
    }

    /// How many steps there are, the source included.
    pub(crate) fn num_stages(&self) -> usize {
        fn depth(plan: &LogicalPlan) -> usize {
            if node_of::<WindowNode>(plan).is_some() {
                return 0;
            }
            let own = usize::from(!matches!(plan, LogicalPlan::SubqueryAlias(_)));
            own + plan.inputs().into_iter().map(depth).max().unwrap_or(0)
        }
        1 + depth(&self.input)
    }

    /// Whether it never ends.
    ///
    /// # Errors
    ///
    /// Where something below needs all rows of a plan that never ends.
    pub fn is_endless(&self) -> Result<bool> {
        match self.epochs {
            Epochs::Of { times: None, .. } => Ok(true),
            _ => {
                let endless = self.window.sources().iter().map(super::is_endless).collect::<Result<Vec<_>>>()?;
                Ok(endless.contains(&true))
            }
        }
    }
}

/// The windows that a plan reads, in its subqueries too, but for those of pipelines in it.
fn windows_of(plan: &LogicalPlan) -> Result<Vec<WindowNode>> {
    let mut windows = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let Some(window) = node_of::<WindowNode>(node) {
            windows.push(window.clone());
            return Ok(TreeNodeRecursion::Jump);
        }
        Ok(match node_of::<PipelineNode>(node) {
            Some(_) => TreeNodeRecursion::Jump,
            None => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(windows)
}

impl UserDefinedLogicalNodeCore for PipelineNode {
    fn name(&self) -> &str {
        "Pipeline"
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

    // Rows of a window that are left out before its end are left out of the whole.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline: {}", self.epochs)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let input = inputs.swap_remove(0);
        let window = windows_of(&input)?.into_iter().next().map(Arc::new);
        Ok(Self { window: window.unwrap_or_else(|| Arc::clone(&self.window)), input, epochs: self.epochs })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfSource => write!(f, "epochs of its source"),
            Self::Of { passes, times } => {
                match times {
                    Some(times) => write!(f, "epochs={times}")?,
                    None => write!(f, "epochs=inf")?,
                }
                if *passes > 1 { write!(f, ", passes={passes}") } else { Ok(()) }
            }
        }
    }
}
