//! Pipelines in SQL. `windows`, `repeat` and `rewindow` make them of tables; `foreach_window` says what is done with
//! each window; `each_window` and `this_window` are the two nodes, as which plans are written.

use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::logical_expr::LogicalPlan;

use super::{Epochs, PipelineNode, WindowNode};
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::config::ByteSize;
use crate::functions::WindowSize;
use crate::logical::{MapNode, extension, node_of, plan_of_epoch};

/// The pipeline that a table is, with what is done row by row above it as a part of what is done with each window.
pub(crate) fn pipeline_of(plan: &LogicalPlan, function: &str) -> Result<PipelineNode> {
    if let Some(pipeline) = node_of::<PipelineNode>(plan) {
        return Ok(pipeline.clone());
    }
    let row_by_row = match plan {
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => true,
        plan => node_of::<MapNode>(plan).is_some_and(MapNode::is_row_by_row),
    };
    match plan.inputs().as_slice() {
        [input] if row_by_row => {
            let pipeline = pipeline_of(input, function)?;
            let window = pipeline.each_window().clone();
            pipeline.with_each_window(plan.with_new_exprs(plan.expressions(), vec![window])?)
        }
        _ => plan_err!("{function} needs a pipeline, like windows(t, blocks_per_window => 10) or repeat(t, 3)"),
    }
}

arguments! {
    /// How large windows are: one of three sizes.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct SizeArguments {
        /// Blocks of a window: tasks of its source. Ten, if no size is said.
        pub(crate) blocks_per_window: Option<usize>,
        /// Bytes of a window at most; it has at least one block.
        pub(crate) bytes_per_window: Option<ByteSize>,
        /// Rows of a window.
        pub(crate) rows_per_window: Option<usize>,
    }
}

impl SizeArguments {
    /// The size, if one is said.
    fn size(&self) -> Result<Option<WindowSize>> {
        match (self.blocks_per_window, self.bytes_per_window, self.rows_per_window) {
            (None, None, None) => Ok(None),
            (Some(blocks), None, None) => Ok(Some(WindowSize::Blocks(blocks))),
            (None, Some(bytes), None) => Ok(Some(WindowSize::Bytes(bytes.0))),
            (None, None, Some(rows)) => Ok(Some(WindowSize::Rows(rows))),
            _ => plan_err!("windows have one size: blocks_per_window, bytes_per_window or rows_per_window"),
        }
    }
}

impl From<Option<WindowSize>> for SizeArguments {
    fn from(size: Option<WindowSize>) -> Self {
        match size {
            None => Self::default(),
            Some(WindowSize::Blocks(blocks)) => Self { blocks_per_window: Some(blocks), ..Self::default() },
            Some(WindowSize::Bytes(bytes)) => Self { bytes_per_window: Some(ByteSize(bytes)), ..Self::default() },
            Some(WindowSize::Rows(rows)) => Self { rows_per_window: Some(rows), ..Self::default() },
        }
    }
}

arguments! {
    /// What a call of `windows` says.
    #[derive(Debug, Default)]
    pub(crate) struct WindowsArguments {
        /// How large windows are.
        pub(crate) size: SizeArguments,
        /// Whether columns `_epoch` and `_window` say of which epoch and window a row is.
        pub(crate) include_epoch: bool = default,
    }
}

/// `windows(t, ..)`.
#[derive(Debug)]
pub(crate) struct Windows;

impl TableFunction for Windows {
    type Arguments = WindowsArguments;

    fn name(&self) -> &'static str {
        "windows"
    }

    fn about(&self) -> &'static str {
        "A pipeline: one window of the rows after the other, of which two are in flight at once."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: WindowsArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let size = arguments.size.size()?.unwrap_or_default();
        let window = WindowNode::try_new(planning.table()?, Some(size), arguments.include_epoch)?;
        let once = Epochs::Of { passes: 1, times: Some(1) };
        Ok(extension(PipelineNode::try_new(extension(window), once)?))
    }
}

arguments! {
    /// What a call of `repeat` says.
    #[derive(Debug, Default)]
    pub(crate) struct RepeatArguments {
        /// How often; without end if not said.
        pub(crate) times: Option<u64>,
        /// Whether columns `_epoch` and `_window` say of which epoch and window a row is.
        pub(crate) include_epoch: bool = default,
    }
}

/// `repeat(t, ..)`.
#[derive(Debug)]
pub(crate) struct Repeat;

impl TableFunction for Repeat {
    type Arguments = RepeatArguments;

    fn name(&self) -> &'static str {
        "repeat"
    }

    fn about(&self) -> &'static str {
        "The rows of a table or pipeline again and again, read anew in each epoch."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: RepeatArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let RepeatArguments { times, include_epoch } = arguments;
        let table = planning.table()?;
        let pipeline = pipeline_of(&table, "repeat");
        match (pipeline, include_epoch) {
            (Ok(_), true) => plan_err!("include_epoch belongs to the windows(..) that repeat is called with"),
            (Ok(pipeline), false) => Ok(extension(PipelineNode::repeat(extension(pipeline), times)?)),
            (Err(_), include_epoch) => {
                let window = WindowNode::try_new(table, None, include_epoch)?;
                Ok(extension(PipelineNode::try_new(extension(window), Epochs::Of { passes: 1, times })?))
            }
        }
    }
}

arguments! {
    /// What a call of `rewindow` says.
    #[derive(Debug, Default)]
    pub(crate) struct RewindowArguments {
        /// How large windows are.
        pub(crate) size: SizeArguments,
        /// Whether no window has rows of two epochs; if not said, none has.
        pub(crate) preserve_epoch: Option<bool>,
    }
}

/// `rewindow(t, ..)`.
#[derive(Debug)]
pub(crate) struct Rewindow;

impl TableFunction for Rewindow {
    type Arguments = RewindowArguments;

    fn name(&self) -> &'static str {
        "rewindow"
    }

    fn about(&self) -> &'static str {
        "Other windows over what comes out of a pipeline."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: RewindowArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let pipeline = pipeline_of(&planning.table()?, "rewindow")?;
        let size = arguments.size.size()?.unwrap_or_default();
        let preserve = arguments.preserve_epoch.unwrap_or(true);
        Ok(extension(PipelineNode::rewindow(extension(pipeline), size, preserve)?))
    }
}

/// `foreach_window(t, 'SELECT .. FROM this_window')`, which was rewritten: the query comes first, as a table.
#[derive(Debug)]
pub(crate) struct ForeachWindow;

impl TableFunction for ForeachWindow {
    type Arguments = ();

    fn name(&self) -> &'static str {
        "foreach_window"
    }

    fn about(&self) -> &'static str {
        "What a query over `this_window` makes of each window of a pipeline: foreach_window(t, 'SELECT .. FROM \
         this_window')."
    }

    fn tables(&self) -> Tables {
        Tables::Several
    }

    fn plan(&self, (): (), planning: Planning<'_>) -> Result<LogicalPlan> {
        let [query, pipeline] = planning.tables.as_slice() else {
            return plan_err!("foreach_window takes a pipeline and the text of a query over this_window");
        };
        Ok(extension(pipeline_of(pipeline, "foreach_window")?.with_each_window(query.clone())?))
    }
}

arguments! {
    /// What a call of `each_window` says.
    #[derive(Debug, Default)]
    pub(crate) struct EachWindowArguments {
        /// How often; without end if not said.
        pub(crate) times: Option<u64>,
        /// Passes over the source in each epoch; 1 if not said.
        pub(crate) passes: Option<u64>,
        /// Whether epochs are those of the pipeline that the windows are made of.
        pub(crate) preserve_epoch: bool = default,
    }
}

/// `each_window(q, ..)`.
#[derive(Debug)]
pub(crate) struct EachWindow;

impl TableFunction for EachWindow {
    type Arguments = EachWindowArguments;

    fn name(&self) -> &'static str {
        "each_window"
    }

    fn about(&self) -> &'static str {
        "Runs a query over `this_window(t, ..)` for one window of t after the other."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: EachWindowArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let EachWindowArguments { times, passes, preserve_epoch } = arguments;
        let epochs = match preserve_epoch {
            true if times.or(passes).is_some() => {
                return plan_err!("each_window takes times, or preserve_epoch: the epochs of its source are so many");
            }
            true => Epochs::OfSource,
            false => Epochs::Of { passes: passes.unwrap_or(1), times },
        };
        Ok(extension(PipelineNode::try_new(planning.table()?, epochs)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, EachWindowArguments)>> {
        let Some(node) = node_of::<PipelineNode>(plan) else { return Ok(None) };
        if plan_of_epoch(node.each_window().clone(), 1)? != *node.each_window() {
            return not_impl_err!(
                "SQL for an order that is another one in each window or epoch, unless it is the last step of a window"
            );
        }
        let unsaid = EachWindowArguments::default();
        let arguments = match node.epochs() {
            Epochs::OfSource => EachWindowArguments { preserve_epoch: true, ..unsaid },
            Epochs::Of { passes, times } => {
                EachWindowArguments { times, passes: Some(passes).filter(|passes| *passes > 1), ..unsaid }
            }
        };
        Ok(Some((vec![node.each_window().clone()], arguments)))
    }
}

arguments! {
    /// What a call of `this_window` says.
    #[derive(Debug, Default)]
    pub(crate) struct ThisWindowArguments {
        /// How large windows are; all rows are one if not said.
        pub(crate) size: SizeArguments,
        /// Whether columns `_epoch` and `_window` say of which epoch and window a row is.
        pub(crate) include_epoch: bool = default,
        /// Whether no window has rows of two epochs.
        pub(crate) preserve_epoch: bool = default,
    }
}

/// `this_window(t, ..)`.
#[derive(Debug)]
pub(crate) struct ThisWindow;

impl TableFunction for ThisWindow {
    type Arguments = ThisWindowArguments;

    fn name(&self) -> &'static str {
        "this_window"
    }

    fn about(&self) -> &'static str {
        "The rows of a window of a table, or of a window as a pipeline makes it, within `each_window` and \
         `foreach_window`."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: ThisWindowArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let ThisWindowArguments { size, include_epoch, preserve_epoch } = arguments;
        let (table, size) = (planning.table()?, size.size()?);
        if size.is_none()
            && !include_epoch
            && let Ok(pipeline) = pipeline_of(&table, "this_window")
        {
            return Ok(pipeline.each_window().clone());
        }
        let window = WindowNode::try_new(table, size, include_epoch)?;
        Ok(extension(if preserve_epoch { window.keeping_epochs() } else { window }))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ThisWindowArguments)>> {
        let node = node_of::<WindowNode>(plan).filter(|node| node.sources().len() == 1);
        Ok(node.map(|node| {
            let arguments = ThisWindowArguments {
                size: node.size().into(),
                include_epoch: node.has_labels(),
                preserve_epoch: node.keeps_epochs(),
            };
            (node.sources().to_vec(), arguments)
        }))
    }
}

arguments! {
    /// What a call of `windows_of` says.
    #[derive(Debug, Default)]
    pub(crate) struct WindowsOfArguments {
        /// Whether columns `_epoch` and `_window` say of which epoch and window a row is.
        pub(crate) include_epoch: bool = default,
    }
}

/// `windows_of(t, u, ..)`.
#[derive(Debug)]
pub(crate) struct WindowsOf;

impl TableFunction for WindowsOf {
    type Arguments = WindowsOfArguments;

    fn name(&self) -> &'static str {
        "windows_of"
    }

    fn about(&self) -> &'static str {
        "A pipeline whose windows are tables with the same columns, one after the other."
    }

    fn tables(&self) -> Tables {
        Tables::Several
    }

    fn plan(&self, arguments: WindowsOfArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let window = WindowNode::of_inputs(planning.tables, arguments.include_epoch)?;
        let once = Epochs::Of { passes: 1, times: Some(1) };
        Ok(extension(PipelineNode::try_new(extension(window), once)?))
    }
}

/// `this_window_of(t, u, ..)`.
#[derive(Debug)]
pub(crate) struct ThisWindowOf;

impl TableFunction for ThisWindowOf {
    type Arguments = WindowsOfArguments;

    fn name(&self) -> &'static str {
        "this_window_of"
    }

    fn about(&self) -> &'static str {
        "The rows of one of several tables, each of which is a window, within `each_window`."
    }

    fn tables(&self) -> Tables {
        Tables::Several
    }

    fn plan(&self, arguments: WindowsOfArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        Ok(extension(WindowNode::of_inputs(planning.tables, arguments.include_epoch)?))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, WindowsOfArguments)>> {
        let node = node_of::<WindowNode>(plan).filter(|node| node.sources().len() > 1);
        Ok(node.map(|node| (node.sources().to_vec(), WindowsOfArguments { include_epoch: node.has_labels() })))
    }
}
