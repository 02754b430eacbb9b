//! Texts as numbers, from where they are read to where somebody looks at them.
//!
//! ```text
//! DecodeExec             0 -> 'Berlin', 1 -> 'Rome'      17 1, 4 0
//!   groups by city                                       17 1, 4 0
//!     joins                                              .. 1, .. 0, .. 1, ..
//!       CodeExec         'Berlin' -> 0, 'Rome' -> 1      7 0, 8 1, 9 1
//!         cities                                         7 Berlin, 8 Rome, 9 Rome
//! ```
//!
//! What lies between takes equal numbers for equal texts, and only hashes, compares and copies numbers. It has to take
//! in all rows of `CodeExec` before it gives one. The texts are counted as long as they are there.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::sync::{Arc, Weak};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{filter, is_not_null, take};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, Statistics, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_expr_common::binary_map::{ArrowBytesMap, OutputType};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{ChildFilterDescription, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements, Partitioning, PlanProperties,
};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::rows_of_input;
use crate::physical::tasks::stream_of;

/// The texts of each execution of a plan.
#[derive(Debug, Default)]
pub(crate) struct CodedTexts(Mutex<Vec<(Weak<TaskContext>, Weak<Texts>)>>);

/// The texts of an execution.
#[derive(Debug, Default)]
struct Texts {
    /// By column and number, once all are known.
    known: Mutex<Option<Known>>,
    /// Whether somebody numbers them: two at once would give one number to two texts.
    is_coding: AtomicBool,
}

#[derive(Debug)]
struct Known {
    columns: Vec<ArrayRef>,
    _reserved: MemoryReservation,
}

impl CodedTexts {
    /// Those of the execution under this context. They are there as long as somebody has them.
    fn of(&self, context: &Arc<TaskContext>) -> Arc<Texts> {
        let mut all = self.0.lock();
        all.retain(|(context, texts)| context.strong_count() > 0 && texts.strong_count() > 0);
        let known = all.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(context));
        known.and_then(|(_, texts)| texts.upgrade()).unwrap_or_else(|| {
            let texts = Arc::default();
            all.push((Arc::downgrade(context), Arc::downgrade(&texts)));
            texts
        })
    }
}

/// A schema in which some columns have another type.
fn retyped(schema: &Schema, columns: &[usize], data_type: &DataType) -> SchemaRef {
    let field = |(place, field): (usize, &Arc<Field>)| match columns.contains(&place) {
        true => Arc::new(field.as_ref().clone().with_data_type(data_type.clone())),
        false => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().enumerate().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn properties(input: &dyn ExecutionPlan, schema: &SchemaRef, streams: usize) -> Arc<PlanProperties> {
    let rows = EquivalenceProperties::new(Arc::clone(schema));
    let partitioning = Partitioning::UnknownPartitioning(streams);
    Arc::new(PlanProperties::new(rows, partitioning, input.pipeline_behavior(), input.boundedness()))
}

/// Gives numbers in place of the texts of some columns.
#[derive(Debug)]
pub(crate) struct CodeExec {
    input: Arc<dyn ExecutionPlan>,
    columns: Vec<usize>,
    texts: Arc<CodedTexts>,
    properties: Arc<PlanProperties>,
}

impl CodeExec {
    /// Of columns of `input`, whose rows become one stream, to `texts`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, columns: Vec<usize>, texts: Arc<CodedTexts>) -> Self {
        let schema = retyped(&input.schema(), &columns, &DataType::UInt32);
        Self { properties: properties(input.as_ref(), &schema, 1), input, columns, texts }
    }
}

fn names(schema: &Schema, columns: &[usize]) -> String {
    columns.iter().map(|column| schema.field(*column).name().as_str()).collect::<Vec<_>>().join(", ")
}

impl Operator for CodeExec {
    fn name(&self) -> &'static str {
        "CodeExec"
    }

    fn describe(&self) -> String {
        names(&self.schema(), &self.columns)
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.columns.clone(), Arc::clone(&self.texts)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if self.input.output_partitioning().partition_count() != 1 {
            return internal_err!("texts of several streams are not numbered");
        }
        let texts = self.texts.of(&context);
        let coder = Coder::new(self.columns.len(), texts, &context)?;
        let (columns, schema) = (self.columns.clone(), self.schema());
        let coding = (self.input.execute(partition, context)?, coder);
        let batches = stream::try_unfold(coding, move |(mut input, mut coder)| {
            let (columns, schema) = (columns.clone(), Arc::clone(&schema));
            async move {
                let Some(batch) = input.try_next().await? else {
                    coder.finish();
                    return Ok(None);
                };
                Ok(Some((coder.code(&batch, &columns, schema)?, (input, coder))))
            }
        });
        Ok(stream_of(self.schema(), batches.boxed()))
    }

    fn filters_for_inputs(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        _phase: FilterPushdownPhase,
        _config: &ConfigOptions,
    ) -> Result<Option<FilterDescription>> {
        let others: HashSet<usize> =
            (0..self.schema().fields().len()).filter(|place| !self.columns.contains(place)).collect();
        let below = ChildFilterDescription::from_child_with_allowed_indices(filters, others, &self.input)?;
        Ok(Some(FilterDescription::new().with_child(below)))
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// Numbers the texts of columns as they come.
struct Coder {
    maps: Vec<ArrowBytesMap<i32, u32>>,
    reserved: MemoryReservation,
    texts: Arc<Texts>,
}

impl Drop for Coder {
    fn drop(&mut self) {
        self.texts.is_coding.store(false, Release);
    }
}

impl Coder {
    /// What has run before has numbered texts that others may still have.
    fn new(columns: usize, texts: Arc<Texts>, context: &TaskContext) -> Result<Self> {
        if texts.is_coding.swap(true, AcqRel) {
            return internal_err!("texts are numbered by two streams at once");
        }
        let reserved = MemoryConsumer::new("CodeExec").register(context.memory_pool());
        let maps = (0..columns).map(|_| ArrowBytesMap::new(OutputType::Utf8)).collect();
        let mut coder = Self { maps, reserved, texts };
        if let Some(known) = coder.texts.known.lock().as_ref() {
            for (map, texts) in coder.maps.iter_mut().zip(&known.columns) {
                numbers(map, texts)?;
            }
        }
        Ok(coder)
    }

    fn code(&mut self, batch: &RecordBatch, columns: &[usize], schema: SchemaRef) -> Result<RecordBatch> {
        let mut coded = batch.columns().to_vec();
        for (map, column) in self.maps.iter_mut().zip(columns) {
            coded[*column] = Arc::new(numbers(map, batch.column(*column))?);
        }
        self.reserved.try_resize(self.maps.iter().map(ArrowBytesMap::size).sum())?;
        Ok(RecordBatch::try_new(schema, coded)?)
    }

    fn finish(mut self) {
        let columns: Vec<_> = std::mem::take(&mut self.maps).into_iter().map(ArrowBytesMap::into_state).collect();
        let bytes = columns.iter().map(|texts| texts.get_array_memory_size()).sum();
        // Without the tables they take less.
        let reserved = self.reserved.split(self.reserved.size().min(bytes));
        *self.texts.known.lock() = Some(Known { columns, _reserved: reserved });
    }
}

/// The numbers of texts; nulls stay so.
fn numbers(map: &mut ArrowBytesMap<i32, u32>, texts: &ArrayRef) -> Result<UInt32Array> {
    let there = match texts.null_count() {
        0 => Arc::clone(texts),
        _ => filter(texts, &is_not_null(texts)?)?,
    };
    let (first, mut numbers) = (map.len(), Vec::with_capacity(there.len()));
    let mut next = u32::try_from(first).map_err(|_| exec_datafusion_err!("there are more than {} texts", u32::MAX))?;
    // In the order of the texts: the map tells the number of each once it is there.
    let made = |_: Option<&[u8]>| {
        next += 1;
        next - 1
    };
    map.insert_if_new(&there, made, |number| numbers.push(number));
    match texts.nulls() {
        None => Ok(UInt32Array::from(numbers)),
        Some(nulls) => {
            let mut numbers = numbers.into_iter();
            let of_rows = nulls.iter().map(|is_there| if is_there { numbers.next() } else { None });
            Ok(of_rows.collect())
        }
    }
}

/// Gives texts in place of their numbers.
#[derive(Debug)]
pub(crate) struct DecodeExec {
    input: Arc<dyn ExecutionPlan>,
    /// The columns, and which of the texts theirs are.
    columns: Vec<(usize, usize)>,
    texts: Arc<CodedTexts>,
    properties: Arc<PlanProperties>,
}

impl DecodeExec {
    /// Of columns of `input`, each with its place among those of `texts`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, columns: Vec<(usize, usize)>, texts: Arc<CodedTexts>) -> Self {
        let places: Vec<_> = columns.iter().map(|(column, _)| *column).collect();
        let schema = retyped(&input.schema(), &places, &DataType::Utf8);
        let streams = input.output_partitioning().partition_count();
        Self { properties: properties(input.as_ref(), &schema, streams), input, columns, texts }
    }
}

impl Operator for DecodeExec {
    fn name(&self) -> &'static str {
        "DecodeExec"
    }

    fn describe(&self) -> String {
        names(&self.schema(), &self.columns.iter().map(|(column, _)| *column).collect::<Vec<_>>())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.columns.clone(), Arc::clone(&self.texts)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        // Before what numbers them looks for it.
        let texts = self.texts.of(&context);
        let (columns, schema) = (self.columns.clone(), self.schema());
        let batches = self.input.execute(partition, context)?;
        let decoded = batches.map(move |batch| decoded(&batch?, &columns, &texts, &schema));
        Ok(stream_of(self.schema(), decoded.boxed()))
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

fn decoded(batch: &RecordBatch, columns: &[(usize, usize)], texts: &Texts, schema: &SchemaRef) -> Result<RecordBatch> {
    let known = texts.known.lock().as_ref().map(|known| known.columns.clone());
    let texts = known.ok_or_else(|| internal_datafusion_err!("there are numbers of texts that are not known yet"))?;
    let mut decoded = batch.columns().to_vec();
    for (column, place) in columns {
        let numbers = batch.column(*column).as_primitive::<UInt32Type>();
        decoded[*column] = take(&texts[*place], numbers, None)?;
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), decoded)?)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, StringArray};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::common::collect;

    use super::*;

    fn batch(texts: &[Option<&str>]) -> RecordBatch {
        let (texts, rows) = (StringArray::from_iter(texts), Int64Array::from_iter_values(0..texts.len() as i64));
        let columns = [("text", Arc::new(texts) as ArrayRef, true), ("row", Arc::new(rows) as _, false)];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn plans(batches: &[RecordBatch]) -> (CodeExec, DecodeExec) {
        let input = MemorySourceConfig::try_new_exec(&[batches.to_vec()], batches[0].schema(), None).unwrap();
        let texts = Arc::<CodedTexts>::default();
        let coded = CodeExec::new(input, vec![0], Arc::clone(&texts));
        let again = CodeExec::new(Arc::clone(&coded.input), vec![0], Arc::clone(&texts)).into_plan();
        (coded, DecodeExec::new(again, vec![(0, 0)], texts))
    }

    async fn rows(plan: &impl Operator, context: &Arc<TaskContext>) -> Vec<RecordBatch> {
        collect(plan.execute(0, Arc::clone(context)).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn equal_texts_have_equal_numbers_and_nulls_stay() {
        let batches = [batch(&[Some("b"), None, Some("a"), Some("b")]), batch(&[Some(""), Some("a"), None])];
        let (code, decode) = plans(&batches);
        let context = Arc::new(TaskContext::default());
        // Who decodes is there before.
        let texts = decode.texts.of(&context);
        let coded = rows(&code, &context).await;
        let numbers = |batch: &RecordBatch| batch.column(0).as_primitive::<UInt32Type>().iter().collect::<Vec<_>>();
        assert_eq!(numbers(&coded[0]), [Some(0), None, Some(1), Some(0)]);
        assert_eq!(numbers(&coded[1]), [Some(2), Some(1), None]);
        for (coded, given) in coded.iter().zip(&batches) {
            assert_eq!(&decoded(coded, &[(0, 0)], &texts, &given.schema()).unwrap(), given);
        }
        // Rows that come again, in another order, have the same numbers.
        let (code, _) = plans(&[batch(&[Some("c"), Some("a"), Some("b")])]);
        let code = CodeExec::new(Arc::clone(&code.input), vec![0], Arc::clone(&decode.texts));
        assert_eq!(numbers(&rows(&code, &context).await[0]), [Some(3), Some(1), Some(0)]);
        assert_eq!(&decoded(&coded[0], &[(0, 0)], &texts, &batches[0].schema()).unwrap(), &batches[0]);
    }

    #[tokio::test]
    async fn numbers_before_their_texts_are_an_error() {
        let (_, decode) = plans(&[batch(&[Some("a")])]);
        let streamed = collect(decode.execute(0, Arc::new(TaskContext::default())).unwrap()).await;
        let error = streamed.unwrap_err().to_string();
        assert!(error.contains("numbers of texts that are not known yet"), "{error}");
    }

    #[tokio::test]
    async fn two_streams_at_once_do_not_number_the_same_texts() {
        let (code, decode) = plans(&[batch(&[Some("a")])]);
        let context = Arc::new(TaskContext::default());
        let _texts = decode.texts.of(&context);
        let first = code.execute(0, Arc::clone(&context)).unwrap();
        let error = code.execute(0, Arc::clone(&context)).err().unwrap().to_string();
        assert!(error.contains("texts are numbered by two streams at once"), "{error}");
        // Who is cancelled leaves it to the next one.
        drop(first);
        assert_eq!(rows(&code, &context).await.len(), 1);
    }

    #[tokio::test]
    async fn texts_are_counted_as_long_as_they_are_there() {
        let (code, decode) = plans(&[batch(&[Some("a"), Some(&"x".repeat(100_000))])]);
        let context = Arc::new(TaskContext::default());
        let texts = decode.texts.of(&context);
        rows(&code, &context).await;
        assert!(context.memory_pool().reserved() > 100_000);
        drop(texts);
        assert_eq!(context.memory_pool().reserved(), 0);
    }
}
