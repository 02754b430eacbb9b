//! Computes keys of windows and groups, and what windows take, below them, where DataFusion cannot handle them as
//! expressions.
//!
//! - Windows that are partitioned or ordered by a comparison of something that is computed are refused: of
//!   `x % 2 > 0` it does not know that rows are sorted by it, since it does not know the least and greatest `x % 2`.
//! - What `lag` and the like take, and windows with a FILTER, is out of reach of `exact_arithmetic`.
//! - Groups by a column and by a cast of it are refused, since a cast has the name of its column.
//!
//! ```text
//! Window: min(x) PARTITION BY [x % 2 > 0]      Projection: x, "min(x) PARTITION BY [x % 2 > 0]"
//!   TableScan: r                        ->       Window: min(x) PARTITION BY [__blockyard_key_0]
//!                                                  Projection: x, x % 2 > 0 AS __blockyard_key_0
//!                                                    TableScan: r
//! ```

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, LogicalPlan, Projection, Window, WindowFunctionDefinition,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::{compares, computes_integers};

#[derive(Debug)]
pub(super) struct ComputeKeys;

impl OptimizerRule for ComputeKeys {
    fn name(&self) -> &str {
        "compute_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let computed = match &plan {
            LogicalPlan::Window(window) => of_window(window)?,
            LogicalPlan::Aggregate(aggregate) => of_groups(aggregate)?,
            _ => None,
        };
        Ok(computed.map_or_else(|| Transformed::no(plan), Transformed::yes))
    }
}

fn of_window(window: &Window) -> Result<Option<LogicalPlan>> {
    let mut below = Below::default();
    let mut windows = Vec::new();
    let has_filter = |expr: &Expr| matches!(expr, Expr::WindowFunction(call) if call.params.filter.is_some());
    // All have the same keys.
    let has_filters = window.window_expr.iter().any(|expr| expr.exists(|part| Ok(has_filter(part))).unwrap_or(true));
    for expr in &window.window_expr {
        let replaced = expr.clone().transform_up(|expr| {
            let Expr::WindowFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
            let is_out_of_reach = matches!(call.fun, WindowFunctionDefinition::WindowUDF(_));
            let (params, schema) = (&mut call.params, window.input.schema());
            if is_out_of_reach || params.filter.is_some() {
                let taken = params.args.iter_mut().chain(params.filter.as_deref_mut());
                taken.filter(|arg| computes_integers(arg, schema)).for_each(|arg| below.compute(arg));
            }
            let keys = params.partition_by.iter_mut();
            let keys = keys.chain(params.order_by.iter_mut().map(|key| &mut key.expr));
            let is_below = |key: &Expr| compares_computed(key) || has_filters && computes_integers(key, schema);
            keys.filter(|key| is_below(key)).for_each(|key| below.compute(key));
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        })?;
        windows.push(replaced.data);
    }
    if below.keys.is_empty() {
        return Ok(None);
    }
    let input = below.over(&window.input)?;
    let windows = LogicalPlan::Window(Window::try_new(windows, Arc::new(input))?);
    // The keys stand between the columns of the input and those of the windows.
    let (given, made) = (window.input.schema().fields().len(), windows.schema().fields().len());
    let columns = (0..given).chain(given + below.keys.len()..made);
    renamed(windows, columns, &window.schema).map(Some)
}

fn of_groups(aggregate: &Aggregate) -> Result<Option<LogicalPlan>> {
    let is_like_another = |key: &Expr| {
        let name = key.schema_name().to_string();
        matches!(key, Expr::Cast(_) | Expr::TryCast(_))
            && aggregate.group_expr.iter().any(|other| other != key && other.schema_name().to_string() == name)
    };
    if !aggregate.group_expr.iter().any(is_like_another) {
        return Ok(None);
    }
    let (mut below, mut groups) = (Below::default(), aggregate.group_expr.clone());
    groups.iter_mut().filter(|key| is_like_another(key)).for_each(|key| below.compute(key));
    let input = below.over(&aggregate.input)?;
    let grouped = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, aggregate.aggr_expr.clone())?);
    let columns = 0..grouped.schema().fields().len();
    renamed(grouped, columns, &aggregate.schema).map(Some)
}

/// Whether a comparison of something that is neither a column nor a literal is part of an expression.
fn compares_computed(expr: &Expr) -> bool {
    let is_plain = |side: &Expr| matches!(side, Expr::Column(_) | Expr::Literal(..));
    expr.exists(|part| {
        Ok(match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => compares(*op) && !(is_plain(left) && is_plain(right)),
            Expr::Between(_) => true,
            _ => false,
        })
    })
    .unwrap_or(false)
}

/// Keys that are computed below.
#[derive(Default)]
struct Below {
    keys: Vec<Expr>,
}

impl Below {
    /// Puts a column in place of a key.
    fn compute(&mut self, key: &mut Expr) {
        // What is drawn is drawn for each.
        let known = self.keys.iter().position(|known| known == key && !key.is_volatile());
        let number = known.unwrap_or_else(|| {
            self.keys.push(key.clone());
            self.keys.len() - 1
        });
        *key = Expr::Column(Column::new_unqualified(name(number)));
    }

    /// The rows of an input with the keys behind them.
    fn over(&self, input: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
        let given = input.schema().columns().into_iter().map(Expr::Column);
        let keys = self.keys.iter().enumerate().map(|(number, key)| key.clone().alias(name(number)));
        Ok(LogicalPlan::Projection(Projection::try_new(given.chain(keys).collect(), Arc::clone(input))?))
    }
}

fn name(number: usize) -> String {
    format!("__blockyard_key_{number}")
}

/// These columns of a plan under the names that `schema` has for them.
fn renamed(plan: LogicalPlan, columns: impl Iterator<Item = usize>, schema: &DFSchema) -> Result<LogicalPlan> {
    let named = columns.zip(schema.iter()).map(|(place, (table, field))| {
        let (of, made) = plan.schema().qualified_field(place);
        let column = Expr::Column(Column::new(of.cloned(), made.name()));
        match (of, made.name()) == (table, field.name()) {
            true => column,
            false => column.alias_qualified(table.cloned(), field.name()),
        }
    });
    let named = named.collect();
    Ok(LogicalPlan::Projection(Projection::try_new(named, Arc::new(plan))?))
}
