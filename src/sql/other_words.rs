//! Standard and common words for what DataFusion can do, but knows by others only.
//!
//! ```text
//! FETCH FIRST 5 ROWS ONLY                    LIMIT 5
//! SELECT a, b .. ORDER BY ALL DESC           ORDER BY 1 DESC, 2 DESC
//! a SEMI JOIN b, a ANTI JOIN b               a LEFT SEMI JOIN b, a LEFT ANTI JOIN b
//! RANGE BETWEEN INTERVAL 2 DAY PRECEDING     INTERVAL '2' DAY
//! GROUP BY a, (b, c)                         GROUP BY a, b, c
//! SELECT a .. GROUP BY ROLLUP (1)            GROUP BY ROLLUP (a)
//! timestamp '2024-01-31 12:00'               timestamp '2024-01-31 12:00:00'
//! ```

use datafusion::sql::sqlparser::ast::{
    DataType, Expr, Fetch, Function, GroupByExpr, Interval, JoinConstraint, JoinOperator, LimitClause, NamedWindowExpr,
    OrderBy, OrderByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, TypedString, Value, WindowFrame,
    WindowFrameBound, WindowSpec, WindowType,
};

use super::names::text_of;

/// Rewrites what stands behind the body of a query.
pub(super) fn rewrite_query(query: &mut Query) {
    fetch_as_limit(query);
    if let SetExpr::Select(select) = query.body.as_ref() {
        order_by_places(select, &mut query.order_by);
    }
}

/// Rewrites joins and named windows.
pub(super) fn rewrite_select(select: &mut Select) {
    for join in select.from.iter_mut().flat_map(|table| &mut table.joins) {
        let taken = |on: &mut JoinConstraint| std::mem::replace(on, JoinConstraint::None);
        match &mut join.join_operator {
            JoinOperator::Semi(on) => join.join_operator = JoinOperator::LeftSemi(taken(on)),
            JoinOperator::Anti(on) => join.join_operator = JoinOperator::LeftAnti(taken(on)),
            _ => {}
        }
    }
    flatten_groups(&mut select.group_by);
    name_places(&select.projection, &mut select.group_by);
    for window in &mut select.named_window {
        if let NamedWindowExpr::WindowSpec(window) = &mut window.1 {
            quote_bounds(window);
        }
    }
}

/// `GROUP BY a, (b, c)` is GROUP BY a, b, c; DataFusion takes what is in parentheses for a struct.
fn flatten_groups(groups: &mut GroupByExpr) {
    let GroupByExpr::Expressions(keys, _) = groups else { return };
    if keys.iter().any(|key| matches!(key, Expr::Tuple(_))) {
        let parts = std::mem::take(keys).into_iter().flat_map(|key| match key {
            Expr::Tuple(parts) => parts,
            key => vec![key],
        });
        *keys = parts.collect();
    }
}

/// Numbers in grouping sets are places in the SELECT, as in GROUP BY; DataFusion takes them for constants.
fn name_places(projection: &[SelectItem], groups: &mut GroupByExpr) {
    let GroupByExpr::Expressions(keys, _) = groups else { return };
    let at = |place: &Expr| {
        let Expr::Value(value) = place else { return None };
        let Value::Number(place, _) = &value.value else { return None };
        let before = projection.get(..place.parse().ok()?)?;
        let is_one = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
        match before.last().filter(|_| before.iter().all(is_one))? {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
            _ => None,
        }
    };
    for key in keys {
        if let Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) = key {
            for place in sets.iter_mut().flatten() {
                if let Some(expr) = at(place) {
                    *place = expr;
                }
            }
        }
    }
}

/// Rewrites the frame of a window, and points of time without seconds.
pub(super) fn rewrite_expr(expr: &mut Expr) {
    if let Expr::TypedString(TypedString { data_type: DataType::Timestamp(..), value, .. }) = expr
        && let Value::SingleQuotedString(text) = &mut value.value
        && is_minute(text)
    {
        text.push_str(":00");
    }
    if let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = expr {
        quote_bounds(window);
    }
}

/// Whether a text is a date and a time without seconds, like `2024-01-31 12:00`.
fn is_minute(text: &str) -> bool {
    let digits = |part: &str, number: usize| part.len() == number && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once([' ', 'T']).is_some_and(|(date, time)| {
        let mut parts = date.split('-');
        let is_date = parts.next().is_some_and(|year| digits(year, 4)) && parts.clone().count() == 2;
        let is_time = time.split_once(':').is_some_and(|(hours, minutes)| digits(hours, 2) && digits(minutes, 2));
        is_date && is_time && parts.all(|part| digits(part, 2))
    })
}

fn fetch_as_limit(query: &mut Query) {
    let Some(Fetch { with_ties: false, percent: false, quantity }) = &query.fetch else { return };
    // FETCH FIRST ROW ONLY is one row.
    let rows = quantity.clone().unwrap_or_else(|| Expr::value(Value::Number("1".to_owned(), false)));
    match &mut query.limit_clause {
        None => {
            let clause = LimitClause::LimitOffset { limit: Some(rows), offset: None, limit_by: Vec::new() };
            query.limit_clause = Some(clause);
        }
        Some(LimitClause::LimitOffset { limit: limit @ None, .. }) => *limit = Some(rows),
        Some(_) => return,
    }
    query.fetch = None;
}

/// Places of all columns for ALL, where no column has that name and it is known how many there are.
fn order_by_places(select: &Select, order: &mut Option<OrderBy>) {
    let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = order else { return };
    let [OrderByExpr { expr: Expr::Identifier(all), options, with_fill }] = keys.as_slice() else { return };
    let is_named = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) | SelectItem::ExprWithAlias { alias: name, .. } => {
            text_of(name) == "all"
        }
        SelectItem::UnnamedExpr(_) => false,
        _ => true,
    };
    if all.quote_style.is_some() || text_of(all) != "all" || select.projection.iter().any(is_named) {
        return;
    }
    let place = |place: usize| OrderByExpr {
        expr: Expr::value(Value::Number(place.to_string(), false)),
        options: *options,
        with_fill: with_fill.clone(),
    };
    *keys = (1..=select.projection.len()).map(place).collect();
}

fn quote_bounds(window: &mut WindowSpec) {
    let Some(WindowFrame { start_bound, end_bound, .. }) = &mut window.window_frame else { return };
    for bound in std::iter::once(start_bound).chain(end_bound) {
        if let WindowFrameBound::Preceding(Some(expr)) | WindowFrameBound::Following(Some(expr)) = bound
            && let Expr::Interval(Interval { value, .. }) = expr.as_mut()
            && let Expr::Value(number) = value.as_mut()
            && let Value::Number(digits, _) = &number.value
        {
            number.value = Value::SingleQuotedString(digits.clone());
        }
    }
}
