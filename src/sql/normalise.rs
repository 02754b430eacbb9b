//! What is rewritten before DataFusion plans a statement.
//!
//! * A table in the place of an argument, `f(t)`, `f(TABLE(t))` or `f(g(..))`, becomes `f((SELECT * FROM t))`:
//!   DataFusion looks up only the tables that stand in FROM.
//! * Relations without an alias get one where there are several (`names.rs`), columns of `USING` are written out
//!   (`using.rs`), `IS DISTINCT FROM` and `||` are put where they bind (`distinct_from.rs`, `concatenation.rs`), `EXCEPT
//!   ALL`, `INTERSECT ALL` and unions that begin with NULL become calls (`set_operations.rs`).
//! * `(a, b) IN (SELECT ..)` becomes EXISTS (`row_in.rs`).
//! * `WITH` tables that are drawn and read several times get a name (`once.rs`).
//! * `SIMILAR TO` becomes a regular expression (`similar_to.rs`), and `ESCAPE` of `LIKE` backslashes (`escapes.rs`).
//! * Words that DataFusion does not know become those that it knows (`other_words.rs`).
//! * Columns that would have one name get names of their own (`repeated_names.rs`), and so do
//!   calls that differ in casts alone (`repeated_calls.rs`).
//! * Windows that go on from others are written out (`windows.rs`).
//! * The text in `foreach_window(t, 'SELECT ..')` becomes a query (`this_window.rs`).
//! * The shape in `make_tensor(list, [3, 4])` is written out (`tensor_shapes.rs`).
//! * `FROM t` without SELECT becomes `SELECT * FROM t`: DataFusion would select no columns.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::{DataFusionError, Result, not_impl_datafusion_err, not_impl_err};
use datafusion::sql::parser::{CopyToSource, CreateExternalTable, Statement as DFStatement};
use datafusion::sql::sqlparser::ast::{
    ColumnOption, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    ObjectName, Query, Select, SelectFlavor, SelectItem, SetExpr, TableFactor, TableFunctionArgs, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};

use super::syntax::{function_of, named, select_all};
use super::{
    concatenation, copies, distinct_from, escapes, names, once, other_words, recursive, repeated_calls, repeated_names,
    row_in, set_operations, similar_to, tensor_shapes, this_window, using, windows,
};
use crate::call::TableFunctions;

/// Rewrites a statement in place.
pub(super) fn normalise(statement: &mut DFStatement, functions: &TableFunctions) -> Result<()> {
    match statement {
        DFStatement::Statement(statement) => visit(statement.as_mut(), functions),
        DFStatement::CopyTo(copy) => {
            name_columns(&mut copy.partitioned_by);
            copies::name_compression(copy);
            match &mut copy.source {
                CopyToSource::Query(query) => visit(query.as_mut(), functions),
                CopyToSource::Relation(_) => Ok(()),
            }
        }
        DFStatement::Explain(explain) => normalise(&mut explain.statement, functions),
        // DataFusion relies on keys, so that DISTINCT over them does nothing, and does not check them.
        DFStatement::CreateExternalTable(table) if has_keys(table) => {
            not_impl_err!("constraints of an external table, which nobody would check; CREATE TABLE AS checks them")
        }
        DFStatement::CreateExternalTable(table) => {
            name_columns(&mut table.table_partition_cols);
            Ok(())
        }
        DFStatement::Reset(_) => Ok(()),
    }
}

/// DataFusion takes what stands in PARTITIONED BY for the names, with quotes and capitals.
fn name_columns(partitioned_by: &mut [String]) {
    partitioned_by.iter_mut().for_each(|column| *column = names::text_of_written(column));
}

fn has_keys(table: &CreateExternalTable) -> bool {
    let is_key = |option: &ColumnOption| matches!(option, ColumnOption::PrimaryKey(_) | ColumnOption::Unique(_));
    let mut options = table.columns.iter().flat_map(|column| &column.options);
    !table.constraints.is_empty() || options.any(|option| is_key(&option.option))
}

fn visit(node: &mut impl VisitMut, functions: &TableFunctions) -> Result<()> {
    match node.visit(&mut Normaliser { functions, around: Vec::new(), recursive: Vec::new(), drawn: 0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Normaliser<'a> {
    functions: &'a TableFunctions,
    /// The relations of each query around.
    around: Vec<HashSet<String>>,
    /// Tables that may read themselves.
    recursive: Vec<String>,
    /// Tables that are drawn and read several times, so far.
    drawn: usize,
}

impl VisitorMut for Normaliser<'_> {
    type Break = DataFusionError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        if let SetExpr::Select(select) = query.body.as_mut() {
            names::name_relations(select, self.functions);
        }
        other_words::rewrite_query(query);
        if let Some(with) = query.with.as_ref().filter(|with| with.recursive) {
            self.recursive.extend(with.cte_tables.iter().map(|table| names::text_of(&table.alias.name)));
        }
        once::name_drawn(query, &mut self.drawn);
        set_operations::rewrite(&mut query.body, &self.recursive);
        continue_unless(recursive::check(query).and_then(|()| using::write_out_order(query)))
    }

    // Those in subqueries have been written out by then.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        repeated_calls::tell_apart(&mut query.body, &mut query.order_by);
        match (query.body.as_ref(), &mut query.order_by) {
            (SetExpr::Select(select), Some(order)) => continue_unless(windows::write_out_beside(select, order)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        self.around.pop();
        let written_out = windows::write_out(select);
        repeated_names::tell_apart(select);
        continue_unless(written_out)
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        if let Some(what) = unhandled_in_call(expr) {
            return ControlFlow::Break(not_impl_datafusion_err!("{what}"));
        }
        other_words::rewrite_expr(expr);
        distinct_from::rebind(expr);
        concatenation::rebind(expr);
        tensor_shapes::write_out(expr);
        row_in::write_out(expr);
        continue_unless(escapes::write_out(expr).and_then(|()| similar_to::write_out(expr)))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        if select.flavor == SelectFlavor::FromFirstNoSelect {
            select.flavor = SelectFlavor::Standard;
            select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
        }
        if let Some(what) = unhandled(select) {
            return ControlFlow::Break(not_impl_datafusion_err!("{what}"));
        }
        other_words::rewrite_select(select);
        names::name_relations(select, self.functions);
        self.around.push(names::relations_of(select));
        let written_out = using::write_out(select);
        row_in::write_out_conditions(select);
        continue_unless(written_out)
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<DataFusionError> {
        if let TableFactor::Derived { subquery, .. } = factor
            && subquery.order_by.is_none()
            && let Some(select) = names::first_select(&mut subquery.body)
        {
            names::name_columns_of(&self.around, select);
        }
        if let TableFactor::Table { name, args: Some(TableFunctionArgs { args, .. }), .. } = factor
            && let Some(function) = function_of(name, self.functions)
        {
            if let Err(error) = this_window::rewrite(name, args) {
                return ControlFlow::Break(error);
            }
            let tables = args.iter_mut().filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression),
                _ => None,
            });
            for expression in tables.take(function.tables().max()) {
                if let Some(query) = table_of(expression).and_then(select_all) {
                    *expression = Expr::Subquery(Box::new(query));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

fn continue_unless(done: Result<(), String>) -> ControlFlow<DataFusionError> {
    match done {
        Ok(()) => ControlFlow::Continue(()),
        Err(what) => ControlFlow::Break(not_impl_datafusion_err!("{what}")),
    }
}

/// Clauses that DataFusion would plan and then fail on, or ignore.
fn unhandled(select: &Select) -> Option<&'static str> {
    if !select.distribute_by.is_empty() {
        Some("DISTRIBUTE BY; use repartition(t, keys => ['a'])")
    } else if !select.cluster_by.is_empty() {
        Some("CLUSTER BY; use repartition(t, keys => ['a'], sort => true)")
    } else if !select.sort_by.is_empty() {
        Some("SORT BY; use ORDER BY")
    } else if select.projection.iter().any(has_pattern) {
        Some("* ILIKE; name the columns")
    } else {
        None
    }
}

/// Whether an item of a SELECT is all columns whose names match a pattern.
fn has_pattern(item: &SelectItem) -> bool {
    match item {
        SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) => options.opt_ilike.is_some(),
        _ => false,
    }
}

/// Modifiers of calls that DataFusion would ignore.
fn unhandled_in_call(expr: &Expr) -> Option<&'static str> {
    let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = expr else { return None };
    let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    let all = |arg: &FunctionArg| {
        matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::QualifiedWildcard(_)))
    };
    (is_distinct && list.args.iter().any(all))
        .then_some("DISTINCT of all columns in a call; use SELECT count(*) FROM (SELECT DISTINCT * FROM t)")
}

/// The relation that an argument names, if it is not a subquery already.
fn table_of(expression: &Expr) -> Option<TableFactor> {
    match expression {
        Expr::Identifier(ident) => Some(named(ObjectName::from(vec![ident.clone()]), None)),
        Expr::CompoundIdentifier(idents) => Some(named(ObjectName::from(idents.clone()), None)),
        Expr::Nested(inner) => table_of(inner),
        Expr::Value(value) => {
            // 'dir/*.parquet' as a table of its own.
            let text = value.value.clone().into_string()?;
            Some(named(ObjectName::from(vec![Ident::with_quote('\'', text)]), None))
        }
        Expr::Function(function) => {
            let FunctionArguments::List(list) = &function.args else {
                return None;
            };
            let is_table = function.name.to_string().eq_ignore_ascii_case("table");
            match (is_table, list.args.as_slice()) {
                (true, [FunctionArg::Unnamed(FunctionArgExpr::Expr(inner))]) => table_of(inner),
                (true, _) => None,
                (false, _) => {
                    let args = TableFunctionArgs { args: list.args.clone(), settings: None };
                    Some(named(function.name.clone(), Some(args)))
                }
            }
        }
        _ => None,
    }
}
