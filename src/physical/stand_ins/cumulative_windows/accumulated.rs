//! Aggregates of any kind, by DataFusion's accumulators.

use std::ops::Range;

use datafusion::arrow::array::{ArrayRef, UInt64Array};
use datafusion::arrow::compute::take;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use super::CumulativeWindow;
use super::rows::Rows;
use super::walk::{Until, Walk, walk};

/// Any aggregate.
pub(super) struct Accumulated {
    aggregate: AggregateFunctionExpr,
    accumulator: Box<dyn Accumulator>,
    until: Until,
}

impl Accumulated {
    pub(super) fn try_new(aggregate: AggregateFunctionExpr, until: Until) -> Result<Self> {
        Ok(Self { accumulator: aggregate.create_accumulator()?, aggregate, until })
    }
}

impl CumulativeWindow for Accumulated {
    fn next(&mut self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let count = rows.batch.num_rows();
        let arguments = self.aggregate.expressions();
        let arguments = arguments.iter().map(|argument| argument.evaluate(rows.batch)?.into_array(count));
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let until = self.until;
        let mut accumulating =
            Accumulating { window: self, arguments, told: vec![], places: Vec::with_capacity(count) };
        walk(rows, until, &mut accumulating)?;
        let Accumulating { told, places, .. } = accumulating;
        let one_each = told.len() == places.len();
        let told = ScalarValue::iter_to_array(told)?;
        Ok(if one_each { told } else { take(&told, &UInt64Array::from(places), None)? })
    }

    fn bytes(&self) -> usize {
        self.accumulator.size()
    }
}

struct Accumulating<'a> {
    window: &'a mut Accumulated,
    arguments: Vec<ArrayRef>,
    told: Vec<ScalarValue>,
    /// Which of them is said of a row.
    places: Vec<u64>,
}

impl Walk for Accumulating<'_> {
    fn begin(&mut self) -> Result<()> {
        self.window.accumulator = self.window.aggregate.create_accumulator()?;
        Ok(())
    }

    fn add(&mut self, rows: Range<usize>) -> Result<()> {
        let arguments: Vec<_> = self.arguments.iter().map(|values| values.slice(rows.start, rows.len())).collect();
        self.window.accumulator.update_batch(&arguments)
    }

    fn tell(&mut self, rows: usize) -> Result<()> {
        let place = self.told.len() as u64;
        self.told.push(self.window.accumulator.evaluate()?);
        self.places.extend(std::iter::repeat_n(place, rows));
        Ok(())
    }
}
