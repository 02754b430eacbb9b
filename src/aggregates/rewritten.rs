//! Aggregates that are builtin ones of some expression.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, internal_err};
use datafusion::functions::math::expr_fn::abs;
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::min_max::max_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, Signature, Volatility, cast, lit, when,
};

/// An aggregate by its name, and what it stands for.
pub(super) struct Rewritten {
    name: &'static str,
    signature: Signature,
    builtin: fn() -> Arc<AggregateUDF>,
    /// Its type, for an argument of a type.
    returns: fn(&DataType) -> DataType,
    argument: fn(Expr) -> Result<Expr>,
    distinct: bool,
}

impl Rewritten {
    pub(super) fn all() -> Vec<Self> {
        let numeric = || Signature::numeric(1, Volatility::Immutable);
        let any = || Signature::any(1, Volatility::Immutable);
        let list = |item: &DataType| DataType::List(Arc::new(Field::new_list_field(item.clone(), true)));
        let of = |name, signature, builtin, returns, argument, distinct| Self {
            name,
            signature,
            builtin,
            returns,
            argument,
            distinct,
        };
        vec![
            of("abs_max", numeric(), max_udaf, DataType::clone, |x| Ok(abs(x)), false),
            of(
                "missing_value_percentage",
                any(),
                avg_udaf,
                |_| DataType::Float64,
                |x| when(x.is_null(), lit(100.0)).otherwise(lit(0.0)),
                false,
            ),
            of(
                "zero_percentage",
                numeric(),
                avg_udaf,
                |_| DataType::Float64,
                |x| {
                    when(cast(x.clone(), DataType::Float64).eq(lit(0.0)), lit(100.0))
                        .when(x.is_not_null(), lit(0.0))
                        .end()
                },
                false,
            ),
            of("as_list", any(), array_agg_udaf, list, Ok, false),
            of("unique_values", any(), array_agg_udaf, list, Ok, true),
        ]
    }
}

impl AggregateUDFImpl for Rewritten {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok((self.returns)(&types[0]))
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        let (builtin, argument, distinct) = ((self.builtin)(), self.argument, self.distinct);
        Some(Box::new(move |call: AggregateFunction, _| {
            let mut params: AggregateFunctionParams = call.params;
            let Some(of) = params.args.pop() else {
                return internal_err!("an aggregate without its argument");
            };
            params.args = vec![argument(of)?];
            params.distinct |= distinct;
            Ok(Expr::AggregateFunction(AggregateFunction { func: Arc::clone(&builtin), params }))
        }))
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        internal_err!("{} is planned as another aggregate", self.name)
    }
}

impl fmt::Debug for Rewritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rewritten({})", self.name)
    }
}

impl PartialEq for Rewritten {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Rewritten {}

impl Hash for Rewritten {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
