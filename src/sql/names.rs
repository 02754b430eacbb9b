//! What relations without an alias are called.
//!
//! A file or directory is called by its name without extension, `tpch('orders', 1)` is `orders`, `range(9)` is `range`,
//! and a function over a table has the name of that table. Where several relations stand in one FROM, those of ours
//! that were not given an alias get one, with a number from the second of a name on, so that their columns can be told
//! apart:
//!
//! ```text
//! FROM read_parquet('a/') JOIN read_parquet('b/') ..    a, b
//! FROM 'a/' JOIN random_shuffle('a/') ..                a, a_2
//! ```

use std::collections::HashSet;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectItem, SetExpr, TableAlias, TableFactor,
    TableWithJoins,
};

use super::syntax::function_of;
use crate::call::{TableFunctions, Tables};

/// Gives names to those relations of a FROM that have none and need one.
pub(super) fn name_relations(select: &mut Select, functions: &TableFunctions) {
    let relations: usize = select.from.iter().map(|table| 1 + table.joins.len()).sum();
    if relations < 2 {
        return;
    }
    let mut taken: Vec<String> = Vec::new();
    for_each_relation(&mut select.from, &mut |factor| taken.extend(name_of(factor).map(|name| text_of(&name))));
    for_each_relation(&mut select.from, &mut |factor| {
        let name = own_name(factor, functions);
        let (Some(name), Some(alias)) = (name, alias_of(factor)) else { return };
        if alias.is_none() {
            *alias = Some(named(&unique(&name, &mut taken)));
        }
    });
}

/// The names by which the columns of a FROM can be said.
pub(super) fn relations_of(select: &mut Select) -> HashSet<String> {
    let mut names = HashSet::new();
    for_each_relation(&mut select.from, &mut |factor| names.extend(name_of(factor).map(|name| text_of(&name))));
    names
}

/// The query that gives the columns of all their names.
pub(super) fn first_select(body: &mut SetExpr) -> Option<&mut Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::SetOperation { left, .. } => first_select(left),
        SetExpr::Query(query) => first_select(&mut query.body),
        _ => None,
    }
}

/// Gives a column that is selected from a relation `around` the query its own name: DataFusion calls it
/// `outer_ref(t.x)`, and nobody finds `x`.
pub(super) fn name_columns_of(around: &[HashSet<String>], select: &mut Select) {
    let here = relations_of(select);
    for item in &mut select.projection {
        let SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) = item else { continue };
        let [relation, column] = parts.as_slice() else { continue };
        let relation = text_of(relation);
        if !here.contains(&relation) && around.iter().any(|names| names.contains(&relation)) {
            let (expr, alias) = (Expr::CompoundIdentifier(parts.clone()), column.clone());
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// Gives every subquery of a FROM a name by which its columns can be said.
pub(super) fn name_subqueries(from: &mut [TableWithJoins]) {
    let mut taken: Vec<String> = Vec::new();
    for_each_relation(from, &mut |factor| taken.extend(name_of(factor).map(|name| text_of(&name))));
    for_each_relation(from, &mut |factor| {
        if let TableFactor::Derived { alias: alias @ None, .. } = factor {
            *alias = Some(named(&unique("subquery", &mut taken)));
        }
    });
}

/// The name by which the columns of a relation can be said.
pub(super) fn name_of(factor: &TableFactor) -> Option<Ident> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::NestedJoin { alias: Some(alias), .. } => Some(alias.name.clone()),
        TableFactor::Table { name, args: None, .. } => {
            let name = name.0.last()?.as_ident()?;
            (name.quote_style != Some('\'')).then(|| name.clone())
        }
        _ => None,
    }
}

/// An identifier as it is compared: capitals count within quotes only.
pub(super) fn text_of(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}

/// The same of an identifier that is known by its text only, with its quotes.
pub(super) fn text_of_written(ident: &str) -> String {
    match ident.strip_prefix('"').and_then(|ident| ident.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => ident.to_lowercase(),
    }
}

/// What a relation that is read from `path` is called; `other` where that says nothing.
pub(super) fn name_of_path(path: &str, other: &str) -> String {
    let of_part = |part: &str| {
        let stem = part.split('.').find(|part| !part.is_empty()).unwrap_or_default();
        let name: String =
            stem.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
        let is_pattern = part.contains(['*', '?', '[', ']', '{', '}', ':', '=']);
        (is_name && !is_pattern).then_some(name)
    };
    path.split('/').rev().find_map(of_part).unwrap_or_else(|| other.to_owned())
}

/// The name of a call of ours, or of a path.
fn own_name(factor: &TableFactor, functions: &TableFunctions) -> Option<String> {
    let TableFactor::Table { name, args, .. } = factor else { return None };
    let [part] = name.0.as_slice() else { return None };
    let ident = part.as_ident()?;
    match args {
        None => (ident.quote_style == Some('\'')).then(|| name_of_path(&ident.value, "files")),
        Some(args) => Some(name_of_call(function_of(name, functions)?.name(), &args.args, functions)),
    }
}

/// What the rows of a call are called: by what it says first, which is a table, or where the rows are from.
pub(super) fn name_of_call(name: &str, args: &[FunctionArg], functions: &TableFunctions) -> String {
    let function = functions.find(name);
    let parameters = function.as_ref().map(|function| function.parameters()).unwrap_or_default();
    let is_first = |name: &Ident| parameters.first().is_some_and(|parameter| parameter.name == text_of(name));
    let first = args.iter().find_map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        FunctionArg::Named { name, arg: FunctionArgExpr::Expr(expr), .. } if is_first(name) => Some(expr),
        _ => None,
    });
    let of_tables = function.is_none_or(|function| function.tables() != Tables::None);
    first.and_then(|expr| name_of_argument(name, of_tables, expr, functions)).unwrap_or_else(|| name.to_owned())
}

fn name_of_argument(function: &str, of_tables: bool, expr: &Expr, functions: &TableFunctions) -> Option<String> {
    match expr {
        Expr::Identifier(ident) => Some(text_of(ident)),
        Expr::CompoundIdentifier(idents) => idents.last().map(text_of),
        Expr::Nested(inner) => name_of_argument(function, of_tables, inner, functions),
        Expr::Value(value) => Some(name_of_path(&value.value.clone().into_string()?, function)),
        Expr::Array(array) if !of_tables => name_of_argument(function, of_tables, array.elem.first()?, functions),
        Expr::Function(call) if of_tables => {
            let FunctionArguments::List(list) = &call.args else { return None };
            let name = call.name.to_string().to_lowercase();
            let name = if name == "table" { function } else { &name };
            Some(name_of_call(name, &list.args, functions))
        }
        _ => None,
    }
}

fn unique(name: &str, taken: &mut Vec<String>) -> String {
    let mut unique = name.to_owned();
    let mut number = 2;
    while taken.contains(&unique) {
        unique = format!("{name}_{number}");
        number += 1;
    }
    taken.push(unique.clone());
    unique
}

fn named(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: Ident::with_quote('"', name), columns: Vec::new(), at: None }
}

fn alias_of(factor: &mut TableFactor) -> Option<&mut Option<TableAlias>> {
    match factor {
        TableFactor::Table { alias, .. } => Some(alias),
        _ => None,
    }
}

fn for_each_relation(from: &mut [TableWithJoins], f: &mut impl FnMut(&mut TableFactor)) {
    for table in from {
        let joined = table.joins.iter_mut().map(|join| &mut join.relation);
        for factor in std::iter::once(&mut table.relation).chain(joined) {
            match factor {
                TableFactor::NestedJoin { table_with_joins, alias: None } => {
                    for_each_relation(std::slice::from_mut(table_with_joins.as_mut()), f);
                }
                factor => f(factor),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::{SetExpr, Statement};
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    #[test]
    fn relations_without_alias_are_called_by_what_they_read() {
        for (from, want) in [
            ("read_parquet('a/') JOIN read_parquet('b/') USING (k)", r#""a", "b""#),
            ("read_csv('s3://x/Sales-2024.csv.gz'), 'Sales-2024.csv'", r#""sales_2024", "sales_2024_2""#),
            ("'d/*.parquet' JOIN range(3) ON true", r#""d", "range""#),
            ("range(3), range(4), range", r#""range_2", "range_3", range"#),
            ("tpch('orders', 1), tpch(\"table\" => 'LINEITEM', scale => 1)", r#""orders", "lineitem""#),
            ("read_parquet(['x/1.parquet', 'y/2.parquet']), read_json('1.json')", r#""x", "read_json""#),
            ("t, map_batches(t, 'f'), random_shuffle(map_batches(u, 'f'))", r#"t, "t_2", "u""#),
            ("zip(a, b), map_batches((SELECT 1), 'f') AS m", r#""a", m"#),
            ("(range(3) JOIN range(4) ON true) JOIN generate_series(1, 2) ON true", r#""range", "range_2""#),
        ] {
            let mut parsed = Parser::parse_sql(&GenericDialect {}, &format!("SELECT * FROM {from}")).unwrap();
            let Statement::Query(query) = &mut parsed[0] else { panic!("{from}") };
            let SetExpr::Select(select) = query.body.as_mut() else { panic!("{from}") };
            name_relations(select, &super::super::functions::table_functions());
            let mut names = Vec::new();
            for_each_relation(&mut select.from, &mut |factor| names.extend(name_of(factor).map(|n| n.to_string())));
            assert_eq!(names.join(", "), want, "{from}");
        }
    }

    #[test]
    fn a_path_that_says_nothing_leaves_the_other_name() {
        for path in ["", "/", "*.parquet", "2024/", "..", "s3://", "k=3/*.parquet"] {
            assert_eq!(name_of_path(path, "files"), "files", "{path}");
        }
        assert_eq!(name_of_path("events/k=*/*.parquet", "files"), "events");
    }
}
