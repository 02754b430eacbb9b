//! [`PartExec`].

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::functions::RowPart;
use crate::physical::StageMetrics;
use crate::physical::gather;
use crate::physical::operator::{InputOrder, IntoPlan, Operator, TaskIdentity, TaskPlan, claims};
use crate::physical::place::{Mark, MarkLog, MarkedStream, Place, marked_rows, tasks_of_rows};
use crate::physical::tasks::{TaskStream, execute_tasks, owner_of, properties, stream_of};

/// Rows of a task, which are cut out of the one stream of rows.
const TASK_ROWS: u64 = 1 << 18;

/// The rows of a part of its input. Where their numbers follow from the number of all rows, a second input says that
/// number, before a row is taken of the first.
#[derive(Debug)]
pub(crate) struct PartExec {
    /// The rows, and perhaps how many there are.
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    part: RowPart,
    input_orders: Vec<InputOrder>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    begin: Begin,
    log: MarkLog,
    /// The number of all rows, once that is known.
    total: Arc<OnceLock<Option<u64>>>,
}

/// Where it begins.
#[derive(Debug, Clone, Default)]
struct Begin {
    /// Rows that were given before.
    given: u64,
    /// The first row of the input that comes, and where the input begins.
    row: u64,
    input: Place,
}

impl PartExec {
    /// The rows of `part` of the first input.
    pub(crate) fn new(inputs: Vec<Arc<dyn ExecutionPlan>>, part: RowPart) -> Self {
        let properties = properties(claims::of_rows(inputs[0].as_ref()), 1, EmissionType::Incremental);
        let input_orders = inputs.iter().map(|input| InputOrder::of(input.as_ref())).collect();
        let (stage, begin, log) = (StageMetrics::default(), Begin::default(), MarkLog::default());
        Self { inputs, part, input_orders, properties, stage, begin, log, total: Arc::default() }
    }

    /// The number in the input of the row that is given as number `given`.
    fn row_of(&self, given: u64) -> Option<u64> {
        let total = *self.total.get()?;
        let range = |k: u64| self.part.range(k, total).ok().flatten();
        let first = range(0)?;
        let each = first.end - first.start;
        match &self.part {
            RowPart::Turns { .. } if each > 0 => range(given / each).map(|range| range.start + given % each),
            _ => Some(first.start + given),
        }
    }
}

impl Operator for PartExec {
    fn name(&self) -> &'static str {
        "PartExec"
    }

    fn describe(&self) -> String {
        self.part.to_string()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let anew = Self::new(inputs, self.part.clone());
        Ok(Self { input_orders: self.input_orders.clone(), begin: self.begin.clone(), ..anew }.into_plan())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        self.input_orders.iter().collect()
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}

impl TaskPlan for PartExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let owner = owner_of(self, &context);
        let (rows, count) = (Arc::clone(&self.inputs[0]), self.inputs.get(1).map(Arc::clone));
        let (log, begin, part) = (self.log.clone(), self.begin.clone(), self.part.clone());
        let total = Arc::clone(&self.total);
        let begun = async move {
            let counted = match &count {
                Some(count) => Some(number_of(gather(count, Arc::clone(&context), &owner)?).await?),
                None => None,
            };
            let total = *total.get_or_init(|| counted);
            if total != counted {
                return exec_err!("a table had {total:?} rows when they were counted, and {counted:?} now");
            }
            let rows = marked_rows(&rows, &context, &owner, &begin.input, None)?;
            let rows = log.noting(begin.row, &begin.input, rows);
            Ok(Taking { rows, pending: None, part, total, row: begin.row, range: None, next: None })
        };
        let batches = stream::once(begun).map_ok(|taking| {
            stream::try_unfold(
                taking,
                |mut taking| async move { Ok(taking.next().await?.map(|batch| (batch, taking))) },
            )
        });
        let batches = stream_of(self.schema(), batches.try_flatten().boxed());
        Ok(tasks_of_rows(batches, TASK_ROWS, self.begin.given))
    }

    fn stage_name(&self) -> String {
        "Part".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::Own { is_whole: true }
    }

    fn begins_anywhere(&self) -> bool {
        true
    }

    // The number of rows is the same in whatever order they come.
    fn inputs_with_rows(&self) -> usize {
        1
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let given = mark.id.task_of_source() as u64 * TASK_ROWS + mark.row;
        let row = self.row_of(given)?;
        let inputs = vec![self.log.place_of(&self.inputs[0], row)?];
        Some(Place { numbers: vec![given, row], inputs, first_row: given % TASK_ROWS, skip: 0 })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let begin = match (place.numbers.as_slice(), place.inputs.as_slice()) {
            (&[given, row], [input]) => Begin { given, row, input: input.clone() },
            _ => Begin::default(),
        };
        let anew = Self::new(self.inputs.clone(), self.part.clone());
        let (log, total, input_orders) = (self.log.clone(), Arc::clone(&self.total), self.input_orders.clone());
        Ok(Self { begin, log, total, input_orders, ..anew }.into_plan())
    }
}

/// What a count has counted.
async fn number_of(mut count: SendableRecordBatchStream) -> Result<u64> {
    while let Some(batch) = count.try_next().await? {
        if let Some(count) = batch.columns().first().and_then(|column| column.as_primitive_opt::<Int64Type>())
            && let Some(rows) = count.iter().flatten().next()
        {
            return Ok(rows.unsigned_abs());
        }
    }
    exec_err!("nobody has counted the rows of a table")
}

/// Takes the rows of a part out of all.
struct Taking {
    rows: MarkedStream,
    pending: Option<RecordBatch>,
    part: RowPart,
    total: Option<u64>,
    /// The number of the next row.
    row: u64,
    /// The range of rows that is taken, and the number of the one behind it.
    range: Option<Range<u64>>,
    next: Option<u64>,
}

impl Taking {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(range) = self.current()? else { return Ok(None) };
            let Some(batch) = self.pending.take() else {
                match self.rows.try_next().await? {
                    Some(marked) => self.pending = Some(marked.batch),
                    None => return self.ended(&range).map(|()| None),
                }
                continue;
            };
            let rows = batch.num_rows() as u64;
            let from = range.start.saturating_sub(self.row).min(rows);
            let to = (range.end - self.row).min(rows);
            self.row += to.max(from);
            if to.max(from) < rows {
                let at = to.max(from) as usize;
                self.pending = Some(batch.slice(at, batch.num_rows() - at));
            }
            if from < to {
                return Ok(Some(batch.slice(from as usize, (to - from) as usize)));
            }
        }
    }

    /// The range in which the next row is, or before which.
    fn current(&mut self) -> Result<Option<Range<u64>>> {
        while self.range.as_ref().is_none_or(|range| range.end <= self.row) {
            let k = match (self.next, &self.part) {
                (Some(k), _) => k,
                (None, RowPart::Turns { turns, .. }) => self.row / turns.rows as u64,
                (None, _) => 0,
            };
            self.next = Some(k + 1);
            match self.part.range(k, self.total)? {
                Some(range) => self.range = Some(range),
                None => return Ok(None),
            }
        }
        Ok(self.range.clone())
    }

    /// There are no more rows: as many have come as were counted, where that is known.
    fn ended(&self, range: &Range<u64>) -> Result<()> {
        match self.total {
            Some(total) if self.row < total.min(range.end) => {
                exec_err!("a table had {total} rows when they were counted, and has {} now", self.row)
            }
            _ => Ok(()),
        }
    }
}
