//! Ray's `ValueCounter`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StructArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Int64Type};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{HashMap, Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};

/// Counts each different value.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ValueCounter {
    signature: Signature,
}

impl ValueCounter {
    pub(super) fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

/// What is told of a value.
pub(super) fn item(value: &DataType) -> Fields {
    Fields::from(vec![Field::new("value", value.clone(), false), Field::new("count", DataType::Int64, false)])
}

/// What is told of several.
pub(super) fn list(value: &DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Struct(item(value)), true)))
}

impl AggregateUDFImpl for ValueCounter {
    fn name(&self) -> &str {
        "value_counter"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(list(&types[0]))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new("counts", list(args.input_fields[0].data_type()), true))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let value_type = args.expr_fields[0].data_type().clone();
        Ok(Box::new(Counts { value_type, counts: HashMap::default(), value_bytes: 0 }))
    }
}

#[derive(Debug)]
struct Counts {
    value_type: DataType,
    counts: HashMap<ScalarValue, i64>,
    /// Bytes that values have beside their place in the table.
    value_bytes: usize,
}

impl Counts {
    fn add(&mut self, values: &ArrayRef, count: impl Fn(usize) -> i64) -> Result<()> {
        for row in (0..values.len()).filter(|row| values.is_valid(*row)) {
            let mut value = ScalarValue::try_from_array(values, row)?;
            if let Some(known) = self.counts.get_mut(&value) {
                *known += count(row);
                continue;
            }
            value.compact();
            self.value_bytes += value.size() - size_of::<ScalarValue>();
            self.counts.insert(value, count(row));
        }
        Ok(())
    }
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0], |_| 1)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for state in states[0].as_list::<i32>().iter().flatten() {
            let items = state.as_struct();
            let counts = items.column(1).as_primitive::<Int64Type>();
            self.add(items.column(0), |row| counts.value(row))?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut counts: Vec<_> = self.counts.iter().collect();
        let order = |a: &ScalarValue, b: &ScalarValue| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal);
        counts.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| order(a, b)));
        let numbers = Int64Array::from_iter_values(counts.iter().map(|(_, count)| **count));
        let values = match counts.is_empty() {
            true => datafusion::arrow::array::new_empty_array(&self.value_type),
            false => ScalarValue::iter_to_array(counts.into_iter().map(|(value, _)| value.clone()))?,
        };
        let items = StructArray::try_new(item(&self.value_type), vec![values, Arc::new(numbers)], None)?;
        Ok(SingleRowListArrayBuilder::new(Arc::new(items)).with_nullable(true).build_list_scalar())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.allocation_size() + self.value_bytes
    }
}
