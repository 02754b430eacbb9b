//! Ray's `ApproximateTopK`, by the frequent items sketch of Apache DataSketches.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StructArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;
use datasketches::codec::{SketchBytes, SketchSlice};
use datasketches::error::{Error as SketchError, ErrorKind};
use datasketches::frequencies::{ErrorType, FrequentItemValue, FrequentItemsSketch};

use super::value_counter::{item, list};

/// Different values that a sketch tells apart, a power of two. While there are at most three quarters as many, counts
/// are exact.
const MAP_SIZE: usize = 1 << 15;

/// Estimates the most frequent values.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ApproxTopK {
    signature: Signature,
}

impl ApproxTopK {
    pub(super) fn new() -> Self {
        Self { signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for ApproxTopK {
    fn name(&self) -> &str {
        "approx_top_k"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        if !types[1].is_integer() {
            return plan_err!("approx_top_k needs a number of values as its second argument, got {}", types[1]);
        }
        Ok(list(&types[0]))
    }

    fn state_fields(&self, _args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new("sketch", DataType::Binary, true))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let literal = args.exprs.get(1).and_then(|k| k.downcast_ref::<Literal>());
        let most = match literal.map(|literal| literal.value().cast_to(&DataType::Int64)).transpose()? {
            Some(ScalarValue::Int64(Some(k))) if k > 0 => k as usize,
            _ => return plan_err!("approx_top_k needs a number above 0 as its second argument"),
        };
        let value_type = args.expr_fields[0].data_type().clone();
        let rows = RowConverter::new(vec![SortField::new(value_type.clone())])?;
        let sketch = FrequentItemsSketch::new(MAP_SIZE).map_err(of_sketch)?;
        Ok(Box::new(TopK { value_type, rows, most, sketch, value_bytes: 0 }))
    }
}

fn of_sketch(error: SketchError) -> DataFusionError {
    exec_datafusion_err!("approx_top_k: {error}")
}

/// A value as bytes which are equal for equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Value(Box<[u8]>);

impl FrequentItemValue for Value {
    fn serialize_size(item: &Self) -> usize {
        size_of::<u64>() + item.0.len()
    }

    fn serialize_value(&self, bytes: &mut SketchBytes) {
        bytes.write_u64_le(self.0.len() as u64);
        bytes.write(&self.0);
    }

    fn deserialize_value(bytes: &mut SketchSlice<'_>) -> Result<Self, SketchError> {
        let short = || SketchError::new(ErrorKind::InvalidData, "a value is cut off");
        let length = bytes.read_u64_le().map_err(|_| short())?;
        let value = bytes.remaining().get(..length as usize).ok_or_else(short)?.into();
        bytes.advance(length);
        Ok(Self(value))
    }
}

struct TopK {
    value_type: DataType,
    rows: RowConverter,
    most: usize,
    sketch: FrequentItemsSketch<Value>,
    /// The most bytes that one of the values has had.
    value_bytes: usize,
}

impl fmt::Debug for TopK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopK({})", self.most)
    }
}

impl Accumulator for TopK {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = self.rows.convert_columns(&values[..1])?;
        // Equal values are often beside each other.
        let mut run: Option<(usize, u64)> = None;
        for row in (0..rows.num_rows()).filter(|row| values[0].is_valid(*row)) {
            match &mut run {
                Some((first, count)) if rows.row(*first) == rows.row(row) => *count += 1,
                _ => {
                    let ended = run.replace((row, 1));
                    self.add(&rows, ended);
                }
            }
        }
        self.add(&rows, run);
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for state in states[0].as_binary::<i32>().iter().flatten() {
            let other = FrequentItemsSketch::<Value>::deserialize(state).map_err(of_sketch)?;
            let longest = other.frequent_items_with_threshold(ErrorType::NoFalseNegatives, 0);
            self.value_bytes =
                longest.iter().map(|row| row.item().0.len()).chain([self.value_bytes]).max().unwrap_or(0);
            self.sketch.merge(&other);
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Binary(Some(self.sketch.serialize()))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut items: Vec<_> = self.sketch.frequent_items_with_threshold(ErrorType::NoFalseNegatives, 0);
        items.sort_by(|a, b| b.estimate().cmp(&a.estimate()).then_with(|| a.item().0.cmp(&b.item().0)));
        items.truncate(self.most);
        let counts = Int64Array::from_iter_values(items.iter().map(|row| row.estimate() as i64));
        let parser = self.rows.parser();
        let mut values = self.rows.convert_rows(items.iter().map(|row| parser.parse(&row.item().0)))?;
        let values = match values.pop() {
            Some(values) if values.data_type() == &self.value_type => values,
            // Dictionaries come back as their values.
            Some(values) => datafusion::arrow::compute::cast(&values, &self.value_type)?,
            None => datafusion::arrow::array::new_empty_array(&self.value_type),
        };
        let items = StructArray::try_new(item(&self.value_type), vec![values, Arc::new(counts)], None)?;
        Ok(SingleRowListArrayBuilder::new(Arc::new(items)).with_nullable(true).build_list_scalar())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sketch.estimated_size() + self.sketch.num_active_items() * self.value_bytes
    }
}

impl TopK {
    fn add(&mut self, rows: &datafusion::arrow::row::Rows, run: Option<(usize, u64)>) {
        if let Some((row, count)) = run {
            let value = rows.row(row);
            self.value_bytes = self.value_bytes.max(value.as_ref().len());
            self.sketch.update_with_count(Value(value.as_ref().into()), count);
        }
    }
}
