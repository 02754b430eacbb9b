//! `lag` and `lead` over the rows of a whole partition.
//!
//! DataFusion evaluates them along with the rows where it can, and then loses count of the nulls that it is to ignore.
//! Over a whole partition it does not.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_window::lead_lag::WindowShift;
use datafusion::logical_expr::expr::{NullTreatment, WindowFunctionParams};
use datafusion::logical_expr::function::{ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Documentation, Expr, LimitEffect, PartitionEvaluator, ReversedUDWF, Signature, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

/// One of both that would lose count, evaluated over whole partitions.
pub(super) fn over_partitions(function: &Arc<WindowUDF>, params: &WindowFunctionParams) -> Option<Arc<WindowUDF>> {
    let is_next = match params.args.get(1) {
        None | Some(Expr::Literal(ScalarValue::Int64(Some(1)), _)) => true,
        Some(_) => false,
    };
    let loses_count = !is_next && params.null_treatment == Some(NullTreatment::IgnoreNulls);
    let shift = Arc::clone(function);
    (loses_count && function.inner().is::<WindowShift>())
        .then(|| Arc::new(WindowUDF::new_from_impl(OverPartitions { shift })))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OverPartitions {
    shift: Arc<WindowUDF>,
}

impl WindowUDFImpl for OverPartitions {
    fn name(&self) -> &str {
        self.shift.name()
    }

    fn signature(&self) -> &Signature {
        self.shift.signature()
    }

    fn expressions(&self, args: ExpressionArgs) -> Vec<Arc<dyn PhysicalExpr>> {
        self.shift.expressions(args)
    }

    fn partition_evaluator(&self, args: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Whole(self.shift.partition_evaluator_factory(args)?)))
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        self.shift.field(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.shift.coerce_types(types)
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        ReversedUDWF::NotSupported
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.shift.documentation()
    }

    fn limit_effect(&self, _args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        LimitEffect::Unknown
    }
}

/// What is evaluated over a whole partition alone.
#[derive(Debug)]
struct Whole(Box<dyn PartitionEvaluator>);

impl PartitionEvaluator for Whole {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        self.0.evaluate_all(values, rows)
    }

    fn get_range(&self, row: usize, rows: usize) -> Result<Range<usize>> {
        self.0.get_range(row, rows)
    }
}
