//! Counts of values that are not null.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;

use super::CumulativeWindow;
use super::rows::Rows;
use super::walk::{Until, Walk, walk};

/// A `count`.
pub(super) struct Counted {
    pub(super) argument: Arc<dyn PhysicalExpr>,
    pub(super) until: Until,
    pub(super) count: i64,
}

impl CumulativeWindow for Counted {
    fn next(&mut self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let count = rows.batch.num_rows();
        let nulls = self.argument.evaluate(rows.batch)?.into_array(count)?.logical_nulls();
        let mut counting = Counting { count: &mut self.count, nulls, told: Vec::with_capacity(count) };
        walk(rows, self.until, &mut counting)?;
        Ok(Arc::new(Int64Array::from(counting.told)))
    }
}

struct Counting<'a> {
    count: &'a mut i64,
    nulls: Option<NullBuffer>,
    told: Vec<i64>,
}

impl Walk for Counting<'_> {
    fn begin(&mut self) -> Result<()> {
        *self.count = 0;
        Ok(())
    }

    fn add(&mut self, rows: Range<usize>) -> Result<()> {
        *self.count += match &self.nulls {
            None => rows.len() as i64,
            Some(nulls) => rows.filter(|row| nulls.is_valid(*row)).count() as i64,
        };
        Ok(())
    }

    fn tell(&mut self, rows: usize) -> Result<()> {
        self.told.extend(repeat_n(*self.count, rows));
        Ok(())
    }
}
