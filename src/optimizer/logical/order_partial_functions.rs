//! Lets rows be sorted by functions that are not defined everywhere, as in `ORDER BY sqrt(x)`.
//!
//! DataFusion asks a function how its results are ordered. Where an argument may be outside of their domain, some
//! functions answer with an error instead of "not at all", and what was sorted by them is not taken for sorted: the
//! plan is refused. This rule puts a function in the place of theirs that has the right answer and is the same in all
//! else.

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{ExprSchema, Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExpressionPlacement, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, StructFieldMapping,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::has_part;
use std::sync::Arc;

/// Functions of DataFusion that answer with an error.
const PARTIAL: [&str; 8] = ["acos", "acosh", "asin", "atanh", "ln", "log2", "log10", "sqrt"];

#[derive(Debug)]
pub(super) struct OrderPartialFunctions;

impl OptimizerRule for OrderPartialFunctions {
    fn name(&self) -> &str {
        "order_partial_functions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_call = |part: &Expr| matches!(part, Expr::ScalarFunction(call) if is_partial(&call.func));
        match has_part(&plan, is_call) {
            true => plan.map_expressions(|expr| expr.transform_up(|expr| Ok(replaced(expr)))),
            false => Ok(Transformed::no(plan)),
        }
    }
}

fn replaced(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::ScalarFunction(call) if is_partial(&call.func) => {
            let func = Arc::new(ScalarUDF::new_from_impl(Partial(call.func)));
            Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args: call.args }))
        }
        expr => Transformed::no(expr),
    }
}

fn is_partial(function: &ScalarUDF) -> bool {
    PARTIAL.contains(&function.name()) && !function.inner().is::<Partial>()
}

/// A function whose results have no order where it does not know one.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Partial(Arc<ScalarUDF>);

#[warn(clippy::missing_trait_methods)]
impl ScalarUDFImpl for Partial {
    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        Ok(self.0.inner().output_ordering(inputs).unwrap_or(SortProperties::Unordered))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        #[expect(deprecated, reason = "what the function says is passed on")]
        self.0.inner().display_name(args)
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.0.inner().schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.0.inner().return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.0.inner().return_field_from_args(args)
    }

    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        #[expect(deprecated, reason = "what the function says is passed on")]
        self.0.inner().is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.0.inner().is_strict()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.0.invoke_with_args(args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let updated = self.0.inner().with_updated_config(config)?;
        Some(ScalarUDF::new_from_impl(Self(Arc::new(updated))))
    }

    fn aliases(&self) -> &[String] {
        self.0.aliases()
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.0.inner().simplify(args, info)
    }

    fn preimage(&self, args: &[Expr], lit_expr: &Expr, info: &SimplifyContext) -> Result<PreimageResult> {
        self.0.inner().preimage(args, lit_expr, info)
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.0.inner().conditional_arguments(args)
    }

    fn short_circuits(&self) -> bool {
        self.0.inner().short_circuits()
    }

    fn evaluate_bounds(&self, input: &[&Interval]) -> Result<Interval> {
        self.0.inner().evaluate_bounds(input)
    }

    fn propagate_constraints(&self, interval: &Interval, inputs: &[&Interval]) -> Result<Option<Vec<Interval>>> {
        self.0.inner().propagate_constraints(interval, inputs)
    }

    fn struct_field_mapping(&self, literal_args: &[Option<ScalarValue>]) -> Option<StructFieldMapping> {
        self.0.inner().struct_field_mapping(literal_args)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.0.inner().preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.0.inner().strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.0.inner().coerce_types(arg_types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.0.inner().placement(args)
    }
}
