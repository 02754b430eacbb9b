//! `make_tensor(list, [3, 4])` is `make_tensor(list, 3, 4)`. To DataFusion `[3, 4]` is the call of a function, whose
//! value is not known yet when the type of the tensors has to be.

use datafusion::sql::sqlparser::ast::{Array, Expr, FunctionArg, FunctionArgExpr, FunctionArguments};

use crate::tensors::MAKE_TENSOR;

/// Writes the shape of a call of `make_tensor` out, if the expression is one.
pub(super) fn write_out(expr: &mut Expr) {
    let Expr::Function(function) = expr else { return };
    if !function.name.to_string().eq_ignore_ascii_case(MAKE_TENSOR) {
        return;
    }
    let FunctionArguments::List(list) = &mut function.args else { return };
    if let [_, FunctionArg::Unnamed(FunctionArgExpr::Expr(shape))] = list.args.as_slice()
        && let Some(dimensions) = dimensions(shape)
    {
        list.args.truncate(1);
        list.args.extend(dimensions.into_iter().map(|one| FunctionArg::Unnamed(FunctionArgExpr::Expr(one))));
    }
}

fn dimensions(shape: &Expr) -> Option<Vec<Expr>> {
    match shape {
        Expr::Array(Array { elem, .. }) | Expr::Tuple(elem) => Some(elem.clone()),
        Expr::Nested(inner) => dimensions(inner),
        _ => None,
    }
}
