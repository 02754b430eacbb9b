//! Makes the groups of coarser grouping sets from those of finer ones.
//!
//! DataFusion takes each row once for each grouping set. The states of the groups of one set are all that the functions
//! of another need that has some of its keys:
//!
//! ```text
//! GROUP BY ROLLUP (a, b)
//!
//! rows -> groups by (a, b) ----> given with __grouping_id 0
//!                |
//!                +-> groups by (a) ----> given with __grouping_id 1
//!                         |
//!                         +-> group of all ----> given with __grouping_id 3
//! ```
//!
//! Each set is made from the smallest one that has its keys, in the same partition: what comes out are states, of which
//! the final aggregate merges those of all partitions. All is pulled by whoever reads: groups of the finest set are
//! given as they come, and are taken in by the tables of the next sets before more of them are asked for.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use datafusion::arrow::array::{ArrayRef, RecordBatch, new_null_array};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Aggregate;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;

use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::tasks::stream_of;

/// The states of the groups of several grouping sets.
#[derive(Debug)]
pub(crate) struct RollUpExec {
    /// The states of the groups by all keys.
    input: Arc<dyn ExecutionPlan>,
    /// The other sets.
    sets: Arc<[GroupingSet]>,
    functions: Vec<Arc<AggregateFunctionExpr>>,
    /// Of the rows that the functions take.
    row_schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// A set that is made of another.
#[derive(Debug)]
struct GroupingSet {
    /// Which of all keys it has.
    keys: Vec<usize>,
    /// The number of the set that it is made of: 0 is that of all keys, 1 the first of the others.
    of: usize,
}

impl RollUpExec {
    /// The same states as those of `partial`, a partial aggregate by grouping sets; `None` if none of its sets has all
    /// keys, or one of them is there twice.
    pub(crate) fn instead_of(partial: &AggregateExec) -> Result<Option<Self>> {
        let groups = partial.group_expr();
        let all = groups.expr().len();
        let mut sets: Vec<Vec<usize>> = groups.groups().iter().map(|nulls| kept(nulls)).collect();
        sets.sort_by_key(|keys| std::cmp::Reverse(keys.len()));
        let is_twice = sets.iter().enumerate().any(|(place, keys)| sets[..place].contains(keys));
        if is_twice || sets.len() < 2 || sets[0].len() < all || all > u64::BITS as usize {
            return Ok(None);
        }
        let made_of = |place: usize| {
            let has_keys = |finer: &usize| sets[place].iter().all(|key| sets[*finer].contains(key));
            GroupingSet { keys: sets[place].clone(), of: (0..place).rev().find(has_keys).unwrap_or(0) }
        };
        let sets: Arc<[_]> = (1..sets.len()).map(made_of).collect();
        let finest = AggregateExec::try_new(
            AggregateMode::Partial,
            PhysicalGroupBy::new_single(groups.expr().to_vec()),
            partial.aggr_expr().to_vec(),
            partial.filter_expr().to_vec(),
            Arc::clone(partial.input()),
            partial.input_schema(),
        )?;
        let (functions, row_schema) = (partial.aggr_expr().to_vec(), partial.input_schema());
        Ok(Some(Self::new(Arc::new(finest), sets, functions, row_schema, &partial.schema())))
    }

    fn new(
        input: Arc<dyn ExecutionPlan>,
        sets: Arc<[GroupingSet]>,
        functions: Vec<Arc<AggregateFunctionExpr>>,
        row_schema: SchemaRef,
        schema: &Schema,
    ) -> Self {
        let schema = with_keys_of(schema, &input.schema());
        let partitioning = Partitioning::UnknownPartitioning(input.output_partitioning().partition_count());
        let known = EquivalenceProperties::new(schema);
        let properties = PlanProperties::new(known, partitioning, input.pipeline_behavior(), input.boundedness());
        let metrics = ExecutionPlanMetricsSet::new();
        Self { input, sets, functions, row_schema, properties: Arc::new(properties), metrics }
    }

    /// The same sets of other groups by all keys, whose keys may be of other types.
    pub(crate) fn over(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let (sets, functions) = (Arc::clone(&self.sets), self.functions.clone());
        Self::new(input, sets, functions, Arc::clone(&self.row_schema), &self.schema())
    }

    /// What gives the groups by all keys: these come first, as they do in what this gives.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How many keys there are.
    pub(crate) fn num_keys(&self) -> usize {
        grouping_id(&self.schema())
    }

    /// All that decides what it makes of the groups below it, whose functions are those that it has.
    pub(crate) fn said(&self) -> String {
        format!("RollUpExec {:?}", self.sets)
    }

    /// The keys of each set, as a plan shows them.
    fn said_of_sets(&self) -> String {
        let schema = self.input.schema();
        let said = |keys: &[usize]| {
            let names: Vec<&str> = keys.iter().map(|key| schema.field(*key).name().as_str()).collect();
            format!("({})", names.join(", "))
        };
        let all: Vec<usize> = (0..self.num_keys()).collect();
        let sets: Vec<String> =
            std::iter::once(&all).chain(self.sets.iter().map(|set| &set.keys)).map(|set| said(set)).collect();
        sets.join(", ")
    }

    /// The table of a set, that takes what it is fed.
    fn open(&self, set: &GroupingSet, context: &Arc<TaskContext>) -> Result<Table> {
        let schema = self.input.schema();
        let states = &schema.fields()[self.num_keys()..];
        let keys: Vec<FieldRef> = match set.keys.is_empty() {
            // Without a key, DataFusion takes other accumulators, whose states are not always the same.
            true => vec![Arc::new(Field::new(ALL, DataType::UInt8, false))],
            false => set.keys.iter().map(|key| Arc::clone(&schema.fields()[*key])).collect(),
        };
        let schema = Arc::new(Schema::new([&keys, states].concat()));
        let feed = Arc::new(Feed { schema: Arc::clone(&schema), waiting: Mutex::default() });
        let source = Arc::new(FeedStream(Arc::clone(&feed)));
        let source = StreamingTableExec::try_new(schema, vec![source], None, None, false, None)?;
        let key = |(place, field): (usize, &FieldRef)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), place));
            (column, field.name().clone())
        };
        let groups = PhysicalGroupBy::new_single(keys.iter().enumerate().map(key).collect());
        let groups = self.grouped(AggregateMode::PartialReduce, groups, Arc::new(source))?;
        Ok(Table { feed, groups: groups.execute(0, Arc::clone(context))?, of_no_rows: None })
    }

    /// The group of all, of no rows: the states that its functions begin with.
    fn of_no_rows(&self, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let key = |value: Option<u8>| (lit(ScalarValue::UInt8(value)), ALL.to_owned());
        let groups = PhysicalGroupBy::new(vec![key(Some(0))], vec![key(None)], vec![vec![true]], true);
        let rows = Arc::new(EmptyExec::new(Arc::clone(&self.row_schema)));
        let groups = self.grouped(AggregateMode::Partial, groups, rows)?;
        // The number of the set stands for the key.
        let columns: Vec<usize> = (1..groups.schema().fields().len()).collect();
        let schema = Arc::new(groups.schema().project(&columns)?);
        let groups = groups.execute(0, Arc::clone(context))?;
        let groups = groups.map(move |group| Ok(group?.project(&columns)?));
        Ok(stream_of(schema, groups.boxed()))
    }

    fn grouped(
        &self,
        mode: AggregateMode,
        groups: PhysicalGroupBy,
        input: Arc<dyn ExecutionPlan>,
    ) -> Result<AggregateExec> {
        let (functions, filters) = (self.functions.clone(), vec![None; self.functions.len()]);
        AggregateExec::try_new(mode, groups, functions, filters, input, Arc::clone(&self.row_schema))
    }
}

/// What the group of all is grouped by.
const ALL: &str = "all";

/// Which of the columns tells the sets apart: the one behind the keys, and before the states.
fn grouping_id(schema: &Schema) -> usize {
    schema.index_of(Aggregate::INTERNAL_GROUPING_ID).unwrap_or_default()
}

/// The schema of grouping sets, with the types that keys have in `input`.
fn with_keys_of(schema: &Schema, input: &Schema) -> SchemaRef {
    let keys = grouping_id(schema);
    let typed = |(place, field): (usize, &Arc<Field>)| match place < keys {
        true => Arc::new(field.as_ref().clone().with_data_type(input.field(place).data_type().clone())),
        false => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().enumerate().map(typed).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The keys that a grouping set has.
fn kept(nulls: &[bool]) -> Vec<usize> {
    (0..nulls.len()).filter(|key| !nulls[*key]).collect()
}

impl Operator for RollUpExec {
    fn name(&self) -> &'static str {
        "RollUpExec"
    }

    fn describe(&self) -> String {
        format!("sets=[{}]", self.said_of_sets())
    }

    fn describe_in_tree(&self) -> String {
        self.describe()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.over(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let mut tables = self.sets.iter().map(|set| self.open(set, &context)).collect::<Result<VecDeque<_>>>()?;
        if let Some((table, _)) = tables.iter_mut().zip(&*self.sets).find(|(_, set)| set.keys.is_empty()) {
            table.of_no_rows = Some(self.of_no_rows(&context)?);
        }
        let rolled_up = RolledUp {
            current: 0,
            source: Some(input),
            tables,
            sets: Arc::clone(&self.sets),
            schema: self.schema(),
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        Ok(stream_of(self.schema(), rolled_up.boxed()))
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    /// Each set has at most as many groups as the finest one.
    fn statistics(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        let num_sets = Precision::Exact(self.sets.len() + 1);
        statistics.num_rows = inputs[0].num_rows.multiply(&num_sets).to_inexact();
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// What a table is to take in.
#[derive(Debug)]
struct Feed {
    schema: SchemaRef,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<RecordBatch>,
    is_all: bool,
}

impl Feed {
    fn is_empty(&self) -> bool {
        self.waiting.lock().batches.is_empty()
    }
}

/// The source of a table. Nobody is woken: [`RolledUp`] polls a table when it has fed it.
#[derive(Debug)]
struct FeedStream(Arc<Feed>);

impl PartitionStream for FeedStream {
    fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let feed = Arc::clone(&self.0);
        let batches = stream::poll_fn(move |_cx| {
            let mut waiting = feed.waiting.lock();
            match waiting.batches.pop_front() {
                Some(batch) => Poll::Ready(Some(Ok(batch))),
                None if waiting.is_all => Poll::Ready(None),
                None => Poll::Pending,
            }
        });
        stream_of(Arc::clone(&self.0.schema), batches.boxed())
    }
}

/// The groups of a set, once it has been fed.
struct Table {
    feed: Arc<Feed>,
    groups: SendableRecordBatchStream,
    /// The group that there is even if it was fed nothing.
    of_no_rows: Option<SendableRecordBatchStream>,
}

impl Table {
    /// Polls until what it was fed is taken in.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.feed.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match self.groups.poll_next_unpin(cx) {
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
            Poll::Ready(_groups) => Poll::Ready(internal_err!("groups came before all rows were known")),
            Poll::Pending if self.feed.is_empty() => Poll::Ready(Ok(())),
            // It was interrupted, and wakes whoever polls when it can go on.
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The groups of all sets, those of one after those of another.
struct RolledUp {
    /// The number of the set that gives groups.
    current: usize,
    /// Its groups; `None` when all are given.
    source: Option<SendableRecordBatchStream>,
    /// Of the sets behind it.
    tables: VecDeque<Table>,
    sets: Arc<[GroupingSet]>,
    schema: SchemaRef,
    metrics: BaselineMetrics,
}

impl RolledUp {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<RecordBatch>>> {
        loop {
            for table in &mut self.tables {
                ready!(table.take_in(cx))?;
            }
            let Some(source) = &mut self.source else { return Poll::Ready(Ok(None)) };
            match ready!(source.poll_next_unpin(cx)).transpose()? {
                Some(groups) => return Poll::Ready(self.hand_on(&groups).map(Some)),
                None => self.begin_next(),
            }
        }
    }

    /// Gives groups of the current set, and feeds them to the sets that are made of it.
    fn hand_on(&mut self, groups: &RecordBatch) -> Result<RecordBatch> {
        let all: Vec<usize> = (0..grouping_id(&self.schema)).collect();
        let keys = match self.current {
            0 => &all,
            current => &self.sets[current - 1].keys,
        };
        // The group of all has one key that is none of them.
        let states = &groups.columns()[keys.len().max(1)..];
        for (table, set) in self.tables.iter_mut().zip(&self.sets[self.current..]) {
            if set.of == self.current {
                let places = set.keys.iter().filter_map(|key| keys.iter().position(|has| has == key));
                let mut columns: Vec<ArrayRef> = places.map(|place| Arc::clone(groups.column(place))).collect();
                if columns.is_empty() {
                    columns.push(ScalarValue::UInt8(Some(0)).to_array_of_size(groups.num_rows())?);
                }
                columns.extend(states.iter().cloned());
                let fed = RecordBatch::try_new(Arc::clone(&table.feed.schema), columns)?;
                table.feed.waiting.lock().batches.push_back(fed);
                table.of_no_rows = None;
            }
        }
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (key, field) in self.schema.fields()[..all.len()].iter().enumerate() {
            columns.push(match keys.iter().position(|has| *has == key) {
                Some(place) => Arc::clone(groups.column(place)),
                None => new_null_array(field.data_type(), groups.num_rows()),
            });
        }
        // The bit of a key is set if the set does not have it; that of the last one is the lowest.
        let id = all.iter().fold(0_u64, |id, key| id << 1 | u64::from(!keys.contains(key)));
        let id = ScalarValue::UInt64(Some(id)).cast_to(self.schema.field(all.len()).data_type())?;
        columns.push(id.to_array_of_size(groups.num_rows())?);
        columns.extend(states.iter().cloned());
        let given = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        Ok(given.record_output(&self.metrics))
    }

    /// Goes on with the next set, which has been fed all there is for it.
    fn begin_next(&mut self) {
        for (table, set) in self.tables.iter().zip(&self.sets[self.current..]) {
            if set.of == self.current {
                table.feed.waiting.lock().is_all = true;
            }
        }
        self.current += 1;
        self.source = self.tables.pop_front().map(|table| table.of_no_rows.unwrap_or(table.groups));
    }
}

impl Stream for RolledUp {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = ready!(self.poll(cx));
        if polled.is_err() {
            (self.source, self.tables) = (None, VecDeque::new());
        }
        Poll::Ready(polled.transpose())
    }
}
