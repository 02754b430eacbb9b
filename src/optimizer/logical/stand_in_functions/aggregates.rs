//! Aggregates that are those of DataFusion but for one thing.
//!
//! - DataFusion turns `array_agg` around where its input comes in the opposite order, and then turns the order that is
//!   said in the call around, too. A call over a window says none, and one with DISTINCT sorts its values itself.
//! - Where a frame moves, DataFusion takes from a mean what leaves the frame. Of floating-point numbers the mean is
//!   then another one: a NaN or infinity that has left stays in it, and so does what a large number has rounded off.
//! - By group DataFusion begins a `max` with the least finite number, and takes whatever comes behind a NaN.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::string_agg::StringAgg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature,
};

use super::float_bounds::FloatBounds;
use crate::aggregates::FrameSum;

/// What is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Change {
    /// A list is never turned around, and asks for no order of its input.
    OwnOrder,
    /// Means of frames that move are made of sums of what is in them.
    MeansOfFrames,
    /// The least or greatest number of each group is so in the order of all numbers.
    FloatBounds,
}

/// A list in the order that it is asked for, whatever else is.
pub(super) fn in_own_order(function: &Arc<AggregateUDF>) -> Option<Arc<AggregateUDF>> {
    let is_list = function.inner().is::<ArrayAgg>() || function.inner().is::<StringAgg>();
    is_list.then(|| StandIn::of(function, Change::OwnOrder))
}

/// A mean over frames that move.
pub(super) fn of_frames(function: &Arc<AggregateUDF>) -> Option<Arc<AggregateUDF>> {
    function.inner().is::<Avg>().then(|| StandIn::of(function, Change::MeansOfFrames))
}

/// A `min` or `max` of floating-point numbers by group.
pub(super) fn of_floats(function: &Arc<AggregateUDF>) -> Option<Arc<AggregateUDF>> {
    let is_bound = function.inner().is::<Min>() || function.inner().is::<Max>();
    is_bound.then(|| StandIn::of(function, Change::FloatBounds))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct StandIn {
    function: Arc<AggregateUDF>,
    change: Change,
}

impl StandIn {
    fn of(function: &Arc<AggregateUDF>, change: Change) -> Arc<AggregateUDF> {
        Arc::new(AggregateUDF::new_from_impl(Self { function: Arc::clone(function), change }))
    }
}

impl AggregateUDFImpl for StandIn {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef> {
        self.function.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.function.is_nullable()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(types)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.function.default_value(data_type)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.function.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let is_float = *args.return_field.data_type() == DataType::Float64;
        match self.change {
            Change::MeansOfFrames if is_float => Ok(Box::new(FrameSum::new(true))),
            _ => self.function.create_sliding_accumulator(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.function.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match self.change {
            Change::FloatBounds => Ok(Box::new(FloatBounds::of(&self.function, args)?)),
            _ => self.function.create_groups_accumulator(args),
        }
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.function.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.function.supports_within_group_clause()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.function.inner().set_monotonicity(data_type)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        match self.change {
            Change::OwnOrder => AggregateOrderSensitivity::Insensitive,
            Change::MeansOfFrames | Change::FloatBounds => self.function.order_sensitivity(),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.change {
            Change::OwnOrder => ReversedUDAF::NotSupported,
            Change::MeansOfFrames | Change::FloatBounds => self.function.reverse_udf(),
        }
    }
}
