//! `sum` as DataFusion has it, but for two things.
//!
//! - DataFusion's sum of whole numbers and decimals begins anew at the other end of its type: the sum of two `BIGINT`
//!   can be less than each. Here it fails, and says what would not.
//! - Where a frame moves, DataFusion takes from a sum of floating-point numbers what leaves the frame: see
//!   [`frame_sum`].

mod checked;
mod frame_sum;

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::sum::{Sum, sum_udaf};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Expr, GroupsAccumulator, Operator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};

pub(crate) use self::frame_sum::FrameSum;

static EXACT_SUM: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| {
    let of_datafusion = sum_udaf();
    Arc::new(AggregateUDF::new_from_impl(ExactSum { of_datafusion }))
});

/// What stands for `function` if that is DataFusion's sum.
pub(crate) fn exact_sum(function: &AggregateUDF) -> Option<Arc<AggregateUDF>> {
    function.inner().is::<Sum>().then(|| Arc::clone(&EXACT_SUM))
}

/// Whether a function is a sum, DataFusion's or this one.
pub(crate) fn is_sum(function: &AggregateUDF) -> bool {
    function.inner().is::<Sum>() || function.inner().is::<ExactSum>()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ExactSum {
    of_datafusion: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for ExactSum {
    fn name(&self) -> &str {
        self.of_datafusion.name()
    }

    fn signature(&self) -> &Signature {
        self.of_datafusion.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.of_datafusion.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef> {
        self.of_datafusion.return_field(fields)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.of_datafusion.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match checked::of_rows(&args) {
            Some(sum) if !args.is_distinct => Ok(sum),
            Some(_) => checked::of_distinct(self.of_datafusion.accumulator(args.clone())?, &args),
            None => self.of_datafusion.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.return_field.data_type() {
            DataType::Int64 if args.is_distinct => Ok(checked::of_distinct_frames(&args)),
            _ if args.is_distinct => self.of_datafusion.create_sliding_accumulator(args),
            DataType::Float64 => Ok(Box::new(FrameSum::new(false))),
            _ => match checked::of_frames(&args) {
                Some(sum) => Ok(sum),
                None => self.of_datafusion.create_sliding_accumulator(args),
            },
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.of_datafusion.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match checked::of_groups(&args) {
            Some(sums) => Ok(sums),
            None => self.of_datafusion.create_groups_accumulator(args),
        }
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.of_datafusion.default_value(data_type)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.of_datafusion.order_sensitivity()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_datafusion.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.of_datafusion.inner().set_monotonicity(data_type)
    }

    fn simplify_expr_op_literal(
        &self,
        call: &AggregateFunction,
        of: &Expr,
        op: Operator,
        literal: &Expr,
        is_left: bool,
    ) -> Result<Option<Expr>> {
        self.of_datafusion.inner().simplify_expr_op_literal(call, of, op, literal, is_left)
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.of_datafusion.value_from_stats(statistics)
    }
}
