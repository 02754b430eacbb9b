//! What a column means that a join has brought together by `USING`.
//!
//! `l RIGHT JOIN r USING (k)` has one column `k`: that of the side whose rows all stay, and of a full join whichever is
//! not null. DataFusion takes the left one (for `*` the one of the table that comes first in the alphabet), which is
//! null where the left side has no row; in WHERE it finds `k` ambiguous, and in a subquery it takes the column of that
//! name of the query around. So the column is written out before it plans:
//!
//! ```text
//! SELECT k FROM l RIGHT JOIN r USING (k)             SELECT r.k FROM ..
//! SELECT * FROM l FULL JOIN r USING (k)       ->     SELECT coalesce(l.k, r.k) AS k, l.* EXCLUDE (k), r.* EXCLUDE (k) FROM ..
//! SELECT k FROM l JOIN r USING (k) WHERE k = 2       SELECT l.k FROM .. WHERE l.k = 2
//! ```
//!
//! A natural outer join names no columns and is refused.

use std::mem::take;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, ExcludeSelectItem, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, OrderByKind, Query,
    Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableWithJoins, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::names::{name_of, name_subqueries, text_of};

/// What is wrong with a query, for an error that says that it is not supported.
type Refusal = String;

/// Writes out the columns of `USING` in the ORDER BY of a query, unless they are among what it selects.
pub(super) fn write_out_order(query: &mut Query) -> Result<(), Refusal> {
    let (SetExpr::Select(select), Some(order)) = (query.body.as_ref(), &mut query.order_by) else { return Ok(()) };
    let OrderByKind::Expressions(keys) = &mut order.kind else { return Ok(()) };
    let mut from = select.from.clone();
    let Some(mut merged) = Merged::of(&mut from)? else { return Ok(()) };
    merged.columns.retain(|column| !select.projection.iter().any(|item| gives(item, &column.name)));
    keys.iter_mut().for_each(|key| merged.write_out(&mut key.expr));
    Ok(())
}

/// Writes out the columns of `USING` in a SELECT.
pub(super) fn write_out(select: &mut Select) -> Result<(), Refusal> {
    let Some(merged) = Merged::of(&mut select.from)? else { return Ok(()) };
    let mut items = Vec::with_capacity(select.projection.len());
    for item in take(&mut select.projection) {
        match item {
            SelectItem::Wildcard(options) if options == WildcardAdditionalOptions::default() => match merged.all() {
                Some(columns) => items.extend(columns),
                None if merged.outer => return Err(without_table()),
                None => items.push(SelectItem::Wildcard(options)),
            },
            SelectItem::Wildcard(_) if merged.outer => {
                return Err("* with options over an outer join with USING; name the columns".to_owned());
            }
            SelectItem::UnnamedExpr(Expr::Identifier(ident)) => {
                let item = merged.find(&ident).map(Column::item);
                items.push(item.unwrap_or(SelectItem::UnnamedExpr(Expr::Identifier(ident))));
            }
            item => items.push(item),
        }
    }
    select.projection = items;
    let from = take(&mut select.from);
    merged.write_out(select);
    select.from = from;
    Ok(())
}

/// Whether an item of a SELECT gives a column of that name.
fn gives(item: &SelectItem, name: &Ident) -> bool {
    match item {
        SelectItem::Wildcard(_) => true,
        SelectItem::ExprWithAlias { alias, .. } => text_of(alias) == text_of(name),
        SelectItem::UnnamedExpr(Expr::Identifier(ident)) => text_of(ident) == text_of(name),
        _ => false,
    }
}

/// A column that stands for those of one name on both sides of a join.
struct Column {
    name: Ident,
    /// What it is, in terms of columns with the name of their table.
    expr: Expr,
    /// Whether that is the column of the left side, as DataFusion takes it.
    is_left: bool,
    /// The tables whose column it stands for.
    tables: Vec<String>,
}

/// The columns of all `USING` of a FROM.
struct Merged {
    columns: Vec<Column>,
    /// The tables of the FROM, where all have names.
    tables: Option<Vec<Ident>>,
    /// Whether some of the joins is an outer one.
    outer: bool,
    /// Whether some is natural: its columns are not known.
    natural: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// That of either, which is the same.
    Both,
    /// That of either which is not null.
    Either,
}

impl Merged {
    /// The columns, if there is any `USING`. Conditions that rest on what was written out become `ON`.
    fn of(from: &mut [TableWithJoins]) -> Result<Option<Self>, Refusal> {
        let any = |found: fn(&Using) -> bool| {
            let mut joins = from.iter().flat_map(|table| &table.joins).map(|join| &join.join_operator);
            joins.any(|operator| using(operator).is_some_and(|using| found(&using)))
        };
        if !any(|_| true) {
            return Ok(None);
        }
        let (outer, natural) = (any(|using| using.outer), any(|using| using.names.is_none()));
        name_subqueries(from);
        let mut merged = Self { columns: Vec::new(), tables: Some(Vec::new()), outer, natural };
        for table in from {
            let (columns, tables) = merged.of_joins(table)?;
            merged.columns.extend(columns);
            merged.tables = merged.tables.zip(tables).map(|(all, tables)| [all, tables].concat());
        }
        Ok(Some(merged))
    }

    /// The columns of a chain of joins, and its tables, if all have names.
    fn of_joins(&self, table: &mut TableWithJoins) -> Result<(Vec<Column>, Option<Vec<Ident>>), Refusal> {
        let mut tables = vec![name_of(&table.relation)];
        let mut here = Self { columns: Vec::new(), tables: None, ..*self };
        for Join { relation, join_operator, .. } in &mut table.joins {
            let right = name_of(relation);
            let on = match using(join_operator) {
                Some(Using { names: None, .. }) if self.outer => {
                    return Err("a natural outer join; name its columns with USING".to_owned());
                }
                Some(Using { names: Some(names), side, .. }) => here.join(names, side, &tables, right.as_ref())?,
                _ => None,
            };
            match (on, constraint_mut(join_operator)) {
                (Some(on), Some(constraint)) => *constraint = JoinConstraint::On(on),
                (None, Some(JoinConstraint::On(condition))) => here.write_out(condition),
                _ => {}
            }
            match join_operator {
                JoinOperator::Semi(_) | JoinOperator::LeftSemi(_) => {}
                JoinOperator::Anti(_) | JoinOperator::LeftAnti(_) => {}
                JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_) => tables = vec![right],
                _ => tables.push(right),
            }
        }
        Ok((here.columns, tables.into_iter().collect()))
    }

    /// Brings columns of the tables so far together with those of the table on the right. Gives the condition of the
    /// join where `USING` does not say it any more.
    fn join(
        &mut self,
        names: &[ObjectName],
        side: Side,
        tables: &[Option<Ident>],
        right: Option<&Ident>,
    ) -> Result<Option<Expr>, Refusal> {
        let mut conditions = Vec::new();
        let mut written_out = false;
        for name in names.iter().filter_map(ident_of) {
            let place = self.columns.iter().position(|column| text_of(&column.name) == text_of(&name));
            let known = place.map(|place| self.columns.remove(place));
            let left = known.or_else(|| Column::of_table(&name, tables));
            // DataFusion finds the column of three tables, and of four none.
            let is_found = |left: &Column| left.is_left && left.tables.len() < 3;
            written_out |= left.as_ref().is_some_and(|left| !is_found(left)) && (self.outer || right.is_some());
            let condition =
                left.as_ref().zip(right).map(|(left, right)| equal(left.expr.clone(), column(right, &name)));
            conditions.push(condition.ok_or_else(|| without_name(&name)));
            self.columns.extend(joined(&name, left, right, side)?);
        }
        if !written_out {
            return Ok(None);
        }
        let conditions = conditions.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(conditions.into_iter().reduce(|left, right| binary(left, BinaryOperator::And, right)))
    }

    fn find(&self, ident: &Ident) -> Option<&Column> {
        self.columns.iter().find(|column| text_of(&column.name) == text_of(ident))
    }

    /// What `*` stands for, if that is known: the columns that were brought together, and then the others of each
    /// table.
    fn all(&self) -> Option<Vec<SelectItem>> {
        let tables = self.tables.as_ref().filter(|_| !self.natural)?;
        let merged = self.columns.iter();
        let mut items: Vec<_> = merged.map(Column::item).collect();
        for table in tables {
            let has = |column: &&Column| column.tables.contains(&text_of(table));
            let names: Vec<_> =
                self.columns.iter().filter(has).map(|c| ObjectName::from(vec![c.name.clone()])).collect();
            let exclude = (!names.is_empty()).then_some(ExcludeSelectItem::Multiple(names));
            let options = WildcardAdditionalOptions { opt_exclude: exclude, ..Default::default() };
            let table = ObjectName::from(vec![table.clone()]);
            items.push(SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options));
        }
        Some(items)
    }

    /// Writes out the columns in an expression, but not in subqueries, which have columns of their own.
    fn write_out(&self, node: &mut impl VisitMut) {
        let ControlFlow::Continue(()) = node.visit(&mut WriteOut { merged: self, depth: 0 }) else { return };
    }
}

impl Column {
    /// The column as it is selected, under its own name.
    fn item(&self) -> SelectItem {
        match &self.expr {
            Expr::CompoundIdentifier(_) => SelectItem::UnnamedExpr(self.expr.clone()),
            expr => SelectItem::ExprWithAlias { expr: expr.clone(), alias: self.name.clone() },
        }
    }

    /// The column of a side that is one table. With several, it is not known which has it.
    fn of_table(name: &Ident, tables: &[Option<Ident>]) -> Option<Self> {
        let [Some(table)] = tables else { return None };
        Some(Self { name: name.clone(), expr: column(table, name), is_left: true, tables: vec![text_of(table)] })
    }
}

/// The column that a join makes of two, if it is known.
fn joined(name: &Ident, left: Option<Column>, right: Option<&Ident>, side: Side) -> Result<Option<Column>, Refusal> {
    let of_right = right.map(|table| column(table, name));
    let (is_left, expr) = match (side, &left, of_right) {
        (Side::Left | Side::Both, Some(left), _) => (left.is_left, left.expr.clone()),
        (Side::Both, None, Some(right)) => (false, right),
        // As DataFusion finds it: on the left.
        (Side::Left | Side::Both, None, _) => (true, Expr::Identifier(name.clone())),
        (Side::Right, _, Some(right)) => (false, right),
        (Side::Either, Some(left), Some(right)) => {
            (false, either(&left.expr, &right).ok_or_else(|| without_name(name))?)
        }
        _ => return Err(without_name(name)),
    };
    let tables = left.map_or_else(Vec::new, |left| left.tables);
    let tables = tables.into_iter().chain(right.map(text_of)).collect();
    Ok(Some(Column { name: name.clone(), expr, is_left, tables }))
}

fn without_table() -> Refusal {
    "* over an outer join with USING and a relation without a name; give it an alias".to_owned()
}

fn without_name(name: &Ident) -> Refusal {
    format!("USING ({name}) of an outer join, where it is not clear whose column that is; use ON, and aliases")
}

fn column(table: &Ident, name: &Ident) -> Expr {
    Expr::CompoundIdentifier(vec![table.clone(), name.clone()])
}

fn equal(left: Expr, right: Expr) -> Expr {
    binary(left, BinaryOperator::Eq, right)
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// `coalesce(left, right)`.
fn either(left: &Expr, right: &Expr) -> Option<Expr> {
    let text = format!("coalesce({left}, {right})");
    Parser::new(&GenericDialect {}).try_with_sql(&text).ok()?.parse_expr().ok()
}

fn ident_of(name: &ObjectName) -> Option<Ident> {
    match name.0.as_slice() {
        [part] => part.as_ident().cloned(),
        _ => None,
    }
}

/// A join over columns of the same name.
struct Using<'a> {
    /// The columns; none are named for a natural join.
    names: Option<&'a [ObjectName]>,
    /// Whose columns they are then.
    side: Side,
    outer: bool,
}

fn using(operator: &JoinOperator) -> Option<Using<'_>> {
    use JoinOperator as J;
    let (side, outer, constraint) = match operator {
        J::Join(c) | J::Inner(c) | J::CrossJoin(c) | J::StraightJoin(c) => (Side::Both, false, c),
        J::Semi(c) | J::LeftSemi(c) | J::Anti(c) | J::LeftAnti(c) => (Side::Left, false, c),
        J::RightSemi(c) | J::RightAnti(c) => (Side::Right, false, c),
        J::Left(c) | J::LeftOuter(c) => (Side::Left, true, c),
        J::Right(c) | J::RightOuter(c) => (Side::Right, true, c),
        J::FullOuter(c) => (Side::Either, true, c),
        _ => return None,
    };
    match constraint {
        JoinConstraint::Using(names) => Some(Using { names: Some(names), side, outer }),
        JoinConstraint::Natural => Some(Using { names: None, side, outer }),
        JoinConstraint::On(_) | JoinConstraint::None => None,
    }
}

fn constraint_mut(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    use JoinOperator as J;
    match operator {
        J::Join(c) | J::Inner(c) | J::CrossJoin(c) | J::StraightJoin(c) | J::Left(c) | J::LeftOuter(c) => Some(c),
        J::Right(c) | J::RightOuter(c) | J::FullOuter(c) | J::Semi(c) | J::LeftSemi(c) | J::RightSemi(c) => Some(c),
        J::Anti(c) | J::LeftAnti(c) | J::RightAnti(c) => Some(c),
        _ => None,
    }
}

struct WriteOut<'a> {
    merged: &'a Merged,
    depth: usize,
}

impl VisitorMut for WriteOut<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let (0, Expr::Identifier(ident)) = (self.depth, &*expr)
            && let Some(column) = self.merged.find(ident)
        {
            *expr = column.expr.clone();
        }
        ControlFlow::Continue(())
    }
}
