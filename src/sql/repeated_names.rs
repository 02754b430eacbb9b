//! Columns of one SELECT that would have one name, which DataFusion refuses: the second is called `a_1`, and a cast by
//! its text.
//!
//! ```text
//! SELECT id, id                      id, id_1
//! SELECT CAST(id AS INT), id         CAST(id AS INT), id
//! SELECT *, id FROM t                .., id_1
//! SELECT max(v), max(v::REAL)        max(v), max(v::REAL)
//! ```
//!
//! Columns of one name that are of different relations stay as they are.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};

use super::names::{relations_of, text_of};

/// The name of a column, as DataFusion tells columns apart.
#[derive(Debug, Clone)]
struct Name {
    relation: Relation,
    column: String,
}

/// Where a column is from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Relation {
    /// Computed, or named.
    None,
    /// One that is not said.
    Some,
    Of(String),
}

/// All columns of a relation, or of all.
struct All(Relation);

/// Names that are in a SELECT, by their columns.
#[derive(Default)]
struct Taken(HashMap<String, Vec<Relation>>);

impl Taken {
    fn add(&mut self, name: Name) {
        self.0.entry(name.column).or_default().push(name.relation);
    }

    /// Whether one that is there cannot be in one SELECT with this one.
    fn meets(&self, name: &Name) -> bool {
        let is_apart = |other: &Relation| match (&name.relation, other) {
            (Relation::Of(one), Relation::Of(other)) => one != other,
            _ => false,
        };
        self.0.get(&name.column).is_some_and(|others| !others.iter().all(is_apart))
    }
}

impl All {
    fn of(item: &SelectItem) -> Option<Self> {
        match item {
            SelectItem::Wildcard(options) if has_all(options) => Some(Self(Relation::Some)),
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if has_all(options) =>
            {
                let last = name.0.last()?.as_ident()?;
                Some(Self(Relation::Of(text_of(last))))
            }
            _ => None,
        }
    }

    /// Whether a column is among them, where these relations are there, or only one.
    fn has(&self, name: &Name, relations: &HashSet<String>, is_alone: bool) -> bool {
        match (&self.0, &name.relation) {
            (_, Relation::None) => false,
            (Relation::Of(one), Relation::Of(other)) => one == other,
            (Relation::Of(_), Relation::Some) => is_alone,
            // Another one is of the query around.
            (_, Relation::Of(relation)) => relations.contains(relation),
            _ => true,
        }
    }
}

fn has_all(options: &WildcardAdditionalOptions) -> bool {
    let WildcardAdditionalOptions { opt_exclude, opt_except, opt_replace, opt_rename, .. } = options;
    opt_exclude.is_none() && opt_except.is_none() && opt_replace.is_none() && opt_rename.is_none()
}

/// Gives columns names of their own.
pub(super) fn tell_apart(select: &mut Select) {
    let is_alone = select.from.len() == 1 && select.from.iter().all(|table| table.joins.is_empty());
    let relations = relations_of(select);
    let all: Vec<All> = select.projection.iter().filter_map(All::of).collect();
    let mut taken = Taken::default();
    // Casts have the names of what they cast, unless that is there, too.
    for casts in [false, true] {
        for item in &mut select.projection {
            let Some((name, is_cast)) = name_of(item) else { continue };
            if is_cast != casts {
                continue;
            }
            let is_taken = |name: &Name, taken: &Taken| {
                taken.meets(name) || all.iter().any(|all| all.has(name, &relations, is_alone))
            };
            if !is_taken(&name, &taken) {
                taken.add(name);
                continue;
            }
            let (Some(text), Some(expr)) = (text_of_item(item), expr_of(item)) else { continue };
            let named = |column: String| Name { relation: Relation::None, column };
            let numbered = (1..).map(|number| format!("{text}_{number}"));
            let alone = (is_cast && !matches!(item, SelectItem::ExprWithAlias { .. })).then(|| text.clone());
            let free = alone.into_iter().chain(numbered).find(|text| !is_taken(&named(text.clone()), &taken));
            let Some(alias) = free else { continue };
            taken.add(named(alias.clone()));
            *item = SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', alias) };
        }
    }
}

fn expr_of(item: &SelectItem) -> Option<Expr> {
    match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
        _ => None,
    }
}

/// What a column is called, for another one to be called alike.
fn text_of_item(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(text_of(alias)),
        SelectItem::UnnamedExpr(Expr::Identifier(column)) => Some(text_of(column)),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(text_of),
        SelectItem::UnnamedExpr(expr) => match column_of_subquery(expr) {
            Some(item) => text_of_item(item),
            None => Some(expr.to_string()),
        },
        _ => None,
    }
}

/// The name of a column, and whether there is a cast in it.
fn name_of(item: &SelectItem) -> Option<(Name, bool)> {
    let expr = match item {
        SelectItem::ExprWithAlias { expr, alias } => {
            let alias = Name { relation: Relation::None, column: text_of(alias) };
            // A column that is called as it is called stays what it is.
            let own = name_of_column(unnested(expr)).filter(|own| own.column == alias.column);
            return Some((own.unwrap_or(alias), false));
        }
        SelectItem::UnnamedExpr(expr) => expr,
        _ => return None,
    };
    if let Some(column) = column_of_subquery(expr) {
        // It is called as its column, of no relation.
        let (name, _) = name_of(column)?;
        return Some((Name { relation: Relation::None, ..name }, false));
    }
    let (bare, casts) = without_casts(expr);
    let bare = unnested(&bare);
    let computed = || Name { relation: Relation::None, column: folded(&bare.to_string()) };
    Some((name_of_column(bare).unwrap_or_else(computed), casts > 0))
}

/// The column of a subquery that is a value.
fn column_of_subquery(expr: &Expr) -> Option<&SelectItem> {
    let Expr::Subquery(query) = unnested(expr) else { return None };
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    select.projection.first()
}

fn name_of_column(expr: &Expr) -> Option<Name> {
    let (relation, column) = match expr {
        Expr::Identifier(column) => (Relation::Some, column),
        Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [.., relation, column] => (Relation::Of(text_of(relation)), column),
            _ => return None,
        },
        _ => return None,
    };
    Some(Name { relation, column: text_of(column) })
}

fn unnested(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// Text whose capitals count within quotes only.
pub(super) fn folded(text: &str) -> String {
    let mut within = None;
    let fold = |c: char| {
        match within {
            Some(quote) if quote == c => within = None,
            None if c == '"' || c == '\'' => within = Some(c),
            _ => {}
        }
        if within.is_some() { c } else { c.to_ascii_lowercase() }
    };
    text.chars().map(fold).collect()
}

/// An expression without casts, and how many there were.
pub(super) fn without_casts(expr: &Expr) -> (Expr, usize) {
    let (mut bare, mut casts) = (expr.clone(), Casts(0));
    let ControlFlow::Continue(()) = bare.visit(&mut casts);
    (bare, casts.0)
}

/// Takes casts off, and what is one, of which the names of DataFusion say nothing, and counts them.
struct Casts(usize);

impl VisitorMut for Casts {
    type Break = Infallible;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        let inner = match expr {
            Expr::Cast { expr: inner, .. } | Expr::AtTimeZone { timestamp: inner, .. } => inner.as_ref().clone(),
            Expr::TypedString(typed) => Expr::Value(typed.value.clone()),
            _ => return ControlFlow::Continue(()),
        };
        self.0 += 1;
        *expr = inner;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::{SetExpr, Statement};
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    #[test]
    fn a_second_column_of_a_name_has_one_of_its_own() {
        for (written, want) in [
            ("id, v FROM t", "id, v"),
            ("id, id, ID, \"ID\" FROM t", r#"id, id AS "id_1", ID AS "id_2", "ID""#),
            ("id, id_1, id FROM t", r#"id, id_1, id AS "id_2""#),
            ("CAST(id AS INT), id FROM t", r#"CAST(id AS INT) AS "CAST(id AS INT)", id"#),
            ("CAST(id AS INT), v FROM t", "CAST(id AS INT), v"),
            ("id::INT, id::TEXT, id::TEXT FROM t", r#"id::INT, id::TEXT AS "id::TEXT", id::TEXT AS "id::TEXT_1""#),
            ("max(v), MAX(v), max(v::REAL) FROM t", r#"max(v), MAX(v) AS "MAX(v)_1", max(v::REAL) AS "max(v::REAL)""#),
            ("'a', 'A' FROM t", "'a', 'A'"),
            ("a.id, b.id FROM a, b", "a.id, b.id"),
            ("a.id, a.id, b.id AS id FROM a, b", r#"a.id, a.id AS "id_1", b.id AS id"#),
            ("*, id, v + 1 FROM t", r#"*, id AS "id_1", v + 1"#),
            ("*, id::INT AS x, id::INT FROM t", r#"*, id::INT AS x, id::INT AS "id::INT""#),
            ("*, t.id, o.id FROM t", r#"*, t.id AS "id_1", o.id"#),
            ("* EXCLUDE (id), id FROM t", "* EXCLUDE (id), id"),
            ("a.*, b.id, id, a.id FROM a, b", r#"a.*, b.id, id AS "id_1", a.id AS "id_2""#),
            ("t.*, id FROM t", r#"t.*, id AS "id_1""#),
            ("id AS x, v AS x FROM t", r#"id AS x, v AS "x_1""#),
        ] {
            let mut parsed = Parser::parse_sql(&GenericDialect {}, &format!("SELECT {written}")).unwrap();
            let Statement::Query(query) = &mut parsed[0] else { panic!("{written}") };
            let SetExpr::Select(select) = query.body.as_mut() else { panic!("{written}") };
            tell_apart(select);
            let items: Vec<String> = select.projection.iter().map(ToString::to_string).collect();
            assert_eq!(items.join(", "), want, "{written}");
        }
    }
}
