//! Windows that go on from others, `OVER (w ORDER BY x)` and `WINDOW v AS (w ..)`, are written out: DataFusion takes no
//! notice of the name in them.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, NamedWindowDefinition, NamedWindowExpr, Select, VisitMut, VisitorMut, WindowSpec, WindowType,
};

use super::names::text_of;

/// Writes out the windows of a SELECT.
pub(super) fn write_out(select: &mut Select) -> Result<(), String> {
    let mut known = HashMap::new();
    for NamedWindowDefinition(name, window) in &mut select.named_window {
        match window {
            NamedWindowExpr::WindowSpec(window) => {
                complete(window, &known)?;
                known.insert(text_of(name), window.clone());
            }
            NamedWindowExpr::NamedWindow(other) => {
                if let Some(window) = known.get(&text_of(other)).cloned() {
                    known.insert(text_of(name), window);
                }
            }
        }
    }
    write_out_in(select, &known)
}

/// Writes out the windows of an expression that belongs to a SELECT, as of an ORDER BY behind it.
pub(super) fn write_out_beside(select: &Select, node: &mut impl VisitMut) -> Result<(), String> {
    let spec = |NamedWindowDefinition(name, window): &NamedWindowDefinition| match window {
        NamedWindowExpr::WindowSpec(window) => Some((text_of(name), window.clone())),
        NamedWindowExpr::NamedWindow(_) => None,
    };
    write_out_in(node, &select.named_window.iter().filter_map(spec).collect())
}

fn write_out_in(node: &mut impl VisitMut, known: &HashMap<String, WindowSpec>) -> Result<(), String> {
    match node.visit(&mut Windows { known }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(what) => Err(what),
    }
}

struct Windows<'a> {
    known: &'a HashMap<String, WindowSpec>,
}

impl VisitorMut for Windows<'_> {
    type Break = String;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        match expr {
            Expr::Function(function) => match &mut function.over {
                Some(WindowType::WindowSpec(window)) => match complete(window, self.known) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(what) => ControlFlow::Break(what),
                },
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

/// The window with what the one that it names says.
fn complete(window: &mut WindowSpec, known: &HashMap<String, WindowSpec>) -> Result<(), String> {
    let Some(name) = window.window_name.take() else { return Ok(()) };
    let Some(base) = known.get(&text_of(&name)) else {
        return Err(format!("OVER ({name}), of which there is no WINDOW {name} before it"));
    };
    if !window.partition_by.is_empty() {
        return Err(format!("a window that goes on from {name} has its PARTITION BY, and no other"));
    }
    if !window.order_by.is_empty() && !base.order_by.is_empty() {
        return Err(format!("a window that goes on from {name} has its ORDER BY, and no other"));
    }
    window.partition_by.clone_from(&base.partition_by);
    if window.order_by.is_empty() {
        window.order_by.clone_from(&base.order_by);
    }
    if window.window_frame.is_none() {
        window.window_frame.clone_from(&base.window_frame);
    }
    Ok(())
}
