//! Ray's `Read`: n read tasks behind `target_partitions` streams that pull them from one queue.
//!
//! The input is a scan with one partition per read task, pinned so that DataFusion neither re-splits nor steals.

mod other_tasks;

use crate::physical::operator::IntoPlan;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, stream};

use super::counts::FileCounts;
use super::files::{Division, FilesOfTask, ReadFiles, filters_change};
use super::memory::ReadMemory;
use super::ranges::ValueRanges;
use super::row_columns::RowColumns;
use super::scanning::Scanning;
use super::task::Reading;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::StageMetrics;
use crate::physical::memory::schema_bytes;
use crate::physical::operator::claims;
use crate::physical::operator::{Operator, Starts};
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::place::{Mark, Place};
use crate::physical::tasks::Executions;
use crate::physical::tasks::Retries;
use crate::physical::tasks::{Task, TaskStream, execute_tasks, owner_of, properties};
use crate::store::BlockStore;

/// Reads the partitions of its input as tasks.
#[derive(Debug)]
pub(crate) struct ReadExec {
    name: String,
    input: Arc<dyn ExecutionPlan>,
    /// The next task of each execution.
    next_task: Executions<AtomicUsize>,
    /// How many of its streams read; the others give nothing.
    streams: usize,
    properties: Arc<PlanProperties>,
    statistics: Option<Arc<Statistics>>,
    ranges: Arc<ValueRanges>,
    memory: Arc<ReadMemory>,
    stage: StageMetrics,
    /// Which partition of the scan each task reads, and the seed that says so, where it is not the one of its number.
    order: Option<(u64, Arc<[usize]>)>,
    /// The tasks that it reads, where these are not all: a window of them.
    window: Option<Range<usize>>,
    /// The number of its first task, where others before were read already.
    first_task: usize,
    /// If rows that its filters leave out may be missing, since nobody above counts rows before they are filtered: the
    /// bytes that a task may keep to find out which.
    may_filter: Option<usize>,
    /// The files that it reads.
    files: FileCounts,
    /// The columns that it gives, where it adds some to those of its scan.
    row_columns: Option<Arc<RowColumns>>,
    /// Where the rows of each task are from, where its scan is not of files and its source says it.
    origins: Arc<[Option<FilesOfTask>]>,
    /// What is read, where another process that plans the same call reads the same rows.
    call: Option<Arc<str>>,
    /// Whether somebody has said how many tasks there are to be.
    is_number_chosen: bool,
    scanning: OnceLock<Arc<Scanning>>,
}

impl ReadExec {
    /// Reads `input`, one task per partition, with `partitions` streams. `name` is what plans show, like `ReadParquet`.
    pub(crate) fn new(name: impl Into<String>, input: Arc<dyn ExecutionPlan>, partitions: usize) -> Self {
        let properties = properties(claims::of_rows(input.as_ref()), partitions, EmissionType::Incremental);
        Self {
            name: name.into(),
            input,
            next_task: Executions::default(),
            streams: partitions,
            properties,
            statistics: None,
            ranges: Arc::default(),
            memory: Arc::default(),
            stage: StageMetrics::default(),
            order: None,
            window: None,
            first_task: 0,
            may_filter: None,
            files: FileCounts::default(),
            row_columns: None,
            origins: Arc::default(),
            call: None,
            is_number_chosen: false,
            scanning: OnceLock::new(),
        }
    }

    /// The same read, to be changed, as if it had never run.
    fn anew(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let anew = Self::new(self.name.clone(), input, self.partitions());
        let properties = if self.row_columns.is_some() { &self.properties } else { &anew.properties };
        Self {
            properties: Arc::clone(properties),
            row_columns: self.row_columns.clone(),
            statistics: self.statistics.clone(),
            ranges: Arc::clone(&self.ranges),
            memory: Arc::clone(&self.memory),
            order: self.order.clone(),
            streams: self.streams,
            window: self.window.clone(),
            first_task: self.first_task,
            may_filter: self.may_filter,
            files: self.files.clone(),
            origins: Arc::clone(&self.origins),
            call: self.call.clone(),
            is_number_chosen: self.is_number_chosen,
            ..anew
        }
    }

    /// The partition of the scan that a task reads.
    fn partition_of(&self, task: usize) -> usize {
        self.order.as_ref().and_then(|(_, order)| order.get(task).copied()).unwrap_or(task)
    }

    /// The numbers of the tasks that it reads.
    pub(crate) fn tasks_left(&self) -> Range<usize> {
        let Range { start, end } = self.window();
        start.max(self.first_task)..end
    }

    /// The numbers of its tasks.
    fn window(&self) -> Range<usize> {
        self.window.clone().unwrap_or(0..self.input.output_partitioning().partition_count())
    }

    /// Bytes of the rows of each task, as far as its source knows before it reads them; empty where it does not.
    pub(crate) fn rows_bytes(&self) -> &[usize] {
        &self.memory.rows_bytes
    }

    /// The same read with what its source knows of the memory that it takes.
    pub(crate) fn with_memory(mut self, memory: ReadMemory) -> Self {
        self.memory = Arc::new(memory);
        self
    }

    /// The same read, of what `call` says in full, if any process that plans the same reads the same rows.
    pub(crate) fn with_call(self, call: Option<String>) -> Self {
        Self { call: call.map(Arc::from), ..self }
    }

    /// The same read, of as many tasks as somebody has asked for if `is_chosen`.
    pub(crate) fn with_chosen_number(self, is_chosen: bool) -> Self {
        Self { is_number_chosen: is_chosen, ..self }
    }

    /// What is read, where any process that plans the same reads the same rows.
    pub(crate) fn call(&self) -> Option<&str> {
        self.call.as_deref()
    }

    /// What it scans.
    pub(crate) fn scan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The same read with what its files say of the values of their columns.
    pub(crate) fn with_ranges(mut self, ranges: ValueRanges) -> Self {
        self.ranges = Arc::new(ranges);
        self
    }

    /// The same read, which plans show to be of so many files.
    pub(crate) fn with_files(self, files: FileCounts) -> Self {
        Self { files, ..self }
    }

    /// The same read in tasks of rows of one file that follow each other, with columns that say which row of it a row
    /// is.
    pub(crate) fn with_row_columns(self, columns: RowColumns) -> Self {
        let read = self.divided(Division::Runs).unwrap_or(self);
        let rows = EquivalenceProperties::new(Arc::clone(&columns.schema));
        let properties = properties(rows, read.partitions(), EmissionType::Incremental);
        Self { properties, row_columns: Some(Arc::new(columns)), ..read }
    }

    /// The same read, whose tasks have rows from here.
    pub(crate) fn with_origins(mut self, origins: impl Iterator<Item = Option<FilesOfTask>>) -> Self {
        self.origins = origins.collect();
        self
    }

    /// What its files say of the values of their columns.
    pub(crate) fn ranges(&self) -> &ValueRanges {
        &self.ranges
    }

    /// Number of streams.
    pub(crate) fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }

    /// Number of streams that read, and so of tasks that run at once.
    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    /// The same read by at most `streams` of its streams: where memory is short, fewer row groups are open at once.
    pub(crate) fn with_streams(&self, streams: usize) -> Self {
        Self { streams: streams.clamp(1, self.streams.max(1)), ..self.anew(Arc::clone(&self.input)) }
    }

    /// The most bytes that a task holds while it runs, beside the batches that it gives.
    pub(crate) fn task_bytes(&self) -> usize {
        self.memory.task_bytes.iter().copied().max().unwrap_or(0)
    }

    /// The same read with statistics that its source knows and its scan does not.
    pub(crate) fn with_statistics(mut self, statistics: Statistics) -> Self {
        self.statistics = Some(Arc::new(statistics));
        self
    }

    /// The same read, which may give only rows for which the filters of its scan hold: they are evaluated again above,
    /// before anything that knows rows by their number. A task keeps `kept_bytes` for it.
    pub(crate) fn may_filter(&self, kept_bytes: usize) -> Self {
        Self { may_filter: Some(kept_bytes), ..self.anew(Arc::clone(&self.input)) }
    }

    /// Whether its scan leaves out rows by filters that change while the query runs.
    pub(crate) fn filters_change(&self) -> bool {
        filters_change(&self.input)
    }

    fn scanning(&self) -> &Arc<Scanning> {
        self.scanning.get_or_init(|| Arc::new(Scanning::of(&self.input, self.may_filter)))
    }

    fn files_of_tasks(&self) -> ReadFiles {
        let order = self.order.as_ref().map(|(_, order)| Arc::clone(order));
        ReadFiles::of(&self.input, order, Arc::clone(&self.origins))
    }

    /// Number of read tasks.
    pub(crate) fn num_tasks(&self) -> usize {
        self.window().len()
    }

    /// What is known of the rows of a window of the tasks, by what is known of all rows.
    fn statistics_of_window(&self, all: &Statistics, schema: &Schema) -> Statistics {
        let (tasks, all_tasks) = (self.num_tasks(), self.input.output_partitioning().partition_count().max(1));
        let part = |known: Precision<usize>| match known {
            Precision::Exact(n) | Precision::Inexact(n) => {
                Precision::Inexact((n as u128 * tasks as u128 / all_tasks as u128) as usize)
            }
            Precision::Absent => Precision::Absent,
        };
        let mut statistics = Statistics::new_unknown(schema);
        statistics.num_rows = part(all.num_rows);
        statistics.total_byte_size = part(all.total_byte_size);
        statistics
    }
}

/// What is known of rows to which columns are added: their number.
fn statistics_of_rows(known: &Statistics, schema: &Schema) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    statistics.num_rows = known.num_rows;
    statistics
}

impl Operator for ReadExec {
    fn name(&self) -> &'static str {
        "ReadExec"
    }

    fn describe(&self) -> String {
        let streams =
            if self.streams < self.partitions() { format!(", streams={}", self.streams) } else { String::new() };
        let order = self.order.as_ref().map_or_else(String::new, |(seed, _)| format!(", block_order(seed={seed})"));
        let first = match (self.window().start, self.first_task) {
            (0, 0) => String::new(),
            (first, begun) => format!(", first_task={}", first.max(begun)),
        };
        let late = if self.scanning().late().is_some() { ", late materialization" } else { "" };
        let files = &self.files;
        format!("{}, tasks={}{files}{first}{streams}{order}{late}", self.name, self.num_tasks())
    }

    fn describe_in_tree(&self) -> String {
        format!("{}\ntasks={}", self.name, self.num_tasks())
    }

    fn remarks(&self) -> Vec<String> {
        let bad_lines = self.input.metrics().and_then(|metrics| metrics.sum_by_name("bad_lines"));
        let bad_lines = bad_lines.map_or(0, |lines| lines.as_usize());
        let bad = (bad_lines > 0).then(|| format!("{}: {bad_lines} lines do not fit the columns", self.name));
        self.files.remark(&self.name).into_iter().chain(bad).collect()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.anew(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match args.partition() {
            // Which tasks a partition will pull is not known.
            Some(_) => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
            None => {
                let all = match &self.row_columns {
                    Some(_) => &Arc::new(statistics_of_rows(&inputs[0], &self.schema())),
                    None => self.statistics.as_ref().unwrap_or(&inputs[0]),
                };
                Ok(match self.window {
                    Some(_) => Arc::new(self.statistics_of_window(all, &self.schema())),
                    None => Arc::clone(all),
                })
            }
        }
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn filters_for_inputs(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        _phase: FilterPushdownPhase,
        _config: &ConfigOptions,
    ) -> Result<Option<FilterDescription>> {
        // Who counts rows has to see them all.
        match self.row_columns {
            Some(_) => Ok(None),
            None => FilterDescription::from_children(filters.to_vec(), &self.inputs()).map(Some),
        }
    }

    fn is_read(&self) -> bool {
        true
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }

    fn min_bytes(&self, _batch_bytes: usize) -> Option<usize> {
        Some(self.streams.min(self.num_tasks()) * self.task_bytes())
    }

    fn row_bytes(&self) -> Option<usize> {
        Some(self.memory.row_bytes.max(schema_bytes(&self.schema())))
    }
}

impl TaskPlan for ReadExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        if partition >= self.streams {
            // The others take its tasks: all pull from one queue.
            return Ok(stream::empty().boxed());
        }
        let next_task = self.next_task.join(partition, &context);
        let Range { start: first_task, end } = self.tasks_left();
        let (name, memory) = (self.name.clone(), Arc::clone(&self.memory));
        let (files, order) = (self.files_of_tasks(), self.order.as_ref().map(|(_, order)| Arc::clone(order)));
        let store = BlockStore::of_task(&context)?;
        let owner = owner_of(self, &context);
        let (scanning, row_columns) = (Arc::clone(self.scanning()), self.row_columns.clone());
        let filters_change = self.filters_change();
        let (retries, log) = (Retries::of_io(&BlockyardOptions::from_task(&context)), self.stage.failures());
        let tasks = stream::iter(std::iter::from_fn(move || {
            let index = first_task + next_task.fetch_add(1, Relaxed);
            (index < end).then(|| {
                let partition = order.as_ref().and_then(|order| order.get(index).copied()).unwrap_or(index);
                let trial = scanning.begin();
                let kept = scanning.kept_bytes(trial.as_ref());
                let task_bytes = memory.task_bytes.get(partition).copied().unwrap_or(0) + kept;
                let working_set = store.working_set(&owner, task_bytes)?;
                let reading = Reading {
                    name: name.clone(),
                    batches: scanning.execute(trial.as_ref(), partition, &context)?,
                    clock: scanning.clock(trial.as_ref()),
                    scanning: Arc::clone(&scanning),
                    trial,
                    filters_change,
                    row_columns: row_columns.clone(),
                    files: files.clone(),
                    index,
                    partition,
                    context: Arc::clone(&context),
                    rows: 0,
                    attempt: 0,
                    is_checked: false,
                    retries: retries.clone(),
                    log: Arc::clone(&log),
                    _working_set: working_set,
                };
                Ok(Task::new(TaskId::root(index), reading.into_stream()))
            })
        }));
        Ok(tasks.boxed())
    }

    fn stage_name(&self) -> String {
        self.name.clone()
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

    fn begins_with_inputs(&self) -> bool {
        false
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let place = Place { numbers: vec![mark.id.task_of_source() as u64], ..Place::default() };
        Some(Place { skip: mark.row, ..place })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let first_task = place.numbers.first().map_or(0, |task| *task as usize);
        Ok(Self { first_task, ..self.anew(Arc::clone(&self.input)) }.into_plan())
    }

    fn planned_blocks(&self) -> Option<usize> {
        Some(self.num_tasks())
    }

    fn files(&self) -> Option<ReadFiles> {
        Some(self.files_of_tasks())
    }
}
