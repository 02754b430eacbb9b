//! What expressions say in full, for another process to tell whether it means the same. What plans show of them leaves
//! out how functions are configured, the ends of long values, and much of casts.

use std::any::Any;
use std::fmt::Write;
use std::sync::Arc;

use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NegativeExpr,
    NotExpr, TryCastExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::stand_ins::is_narrow_decimals;

/// All that decides the values of expressions; none where one has a part of which it is not known what decides it, as
/// one that is drawn for each row or that another plan gives.
pub(crate) fn said<'a>(exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Option<String> {
    let mut text = String::new();
    exprs.into_iter().try_for_each(|expr| say(expr, &mut text))?;
    Some(text)
}

fn say(expr: &Arc<dyn PhysicalExpr>, text: &mut String) -> Option<()> {
    // Writing to text does not fail.
    let _written = write!(text, "({} ", without_children(expr)?);
    expr.children().into_iter().try_for_each(|child| say(child, text))?;
    text.push(')');
    Some(())
}

fn without_children(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let node: &dyn Any = expr.as_ref();
    if let Some(column) = node.downcast_ref::<Column>() {
        return Some(format!("{}@{}", column.name(), column.index()));
    }
    if let Some(literal) = node.downcast_ref::<Literal>() {
        return Some(format!("{:?}: {:?}", literal.value(), literal.value().data_type()));
    }
    if let Some(case) = node.downcast_ref::<CaseExpr>() {
        let (is_of, has_else) = (case.expr().is_some(), case.else_expr().is_some());
        return Some(format!("case {is_of} {} {has_else}", case.when_then_expr().len()));
    }
    if let Some(list) = node.downcast_ref::<InListExpr>() {
        return Some(format!("in {}", list.negated()));
    }
    if let Some(like) = node.downcast_ref::<LikeExpr>() {
        return Some(format!("like {} {}", like.negated(), like.case_insensitive()));
    }
    if let Some(call) = node.downcast_ref::<ScalarFunctionExpr>() {
        let said = || format!("call {:?}: {:?}", call.fun().inner(), call.return_type());
        return (!call.is_volatile_node()).then(said);
    }
    if node.is::<BinaryExpr>() || node.is::<CastExpr>() || node.is::<TryCastExpr>() {
        // They show all of their fields, of which some cannot be asked for.
        let placeholder = || Arc::new(Column::new("", 0)) as Arc<dyn PhysicalExpr>;
        let children = expr.children().iter().map(|_| placeholder()).collect();
        return Arc::clone(expr).with_new_children(children).ok().map(|node| format!("{node:?}"));
    }
    let plain = [
        (node.is::<NotExpr>(), "not"),
        (node.is::<IsNullExpr>(), "null"),
        (node.is::<IsNotNullExpr>(), "not null"),
        (node.is::<NegativeExpr>(), "negative"),
        // It gives what the expression gives that it stands for.
        (is_narrow_decimals(expr.as_ref()), "narrow"),
    ];
    plain.into_iter().find(|(is_it, _)| *is_it).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::DataType;
    use datafusion::common::ScalarValue;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{UnKnownColumn, lit};

    #[test]
    fn what_differs_is_said_and_what_is_unknown_is_not() {
        let of = |expr: Arc<dyn PhysicalExpr>| said([&expr]);
        let bytes = |last: u8| lit(ScalarValue::Binary(Some([vec![b'a'; 40], vec![last]].concat())));
        let a = || Arc::new(Column::new("a", 0)) as Arc<dyn PhysicalExpr>;
        let cast = |to| Arc::new(CastExpr::new(a(), to, None)) as Arc<dyn PhysicalExpr>;
        let sum = |fails: bool| {
            Arc::new(BinaryExpr::new(a(), Operator::Plus, a()).with_fail_on_overflow(fails)) as Arc<dyn PhysicalExpr>
        };
        for (one, other) in [
            (bytes(1), bytes(2)),
            (cast(DataType::Int32), cast(DataType::Int64)),
            (sum(false), sum(true)),
            (lit(1_i32), lit(1_i64)),
            (a(), Arc::new(Column::new("a", 1)) as _),
        ] {
            assert!(of(Arc::clone(&one)).is_some());
            assert_ne!(of(one), of(other));
        }
        assert_eq!(of(cast(DataType::Int32)), of(cast(DataType::Int32)));
        assert_eq!(of(Arc::new(UnKnownColumn::new("a"))), None);
    }
}
