//! Headers of results: what DataFusion calls `sum(readparquet.v)` is `sum(v)`, where that leaves no doubt.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::Dataset;

/// The names under which the columns of a dataset are shown. Names that somebody gave stay.
pub(super) fn shown(dataset: &Dataset) -> Vec<String> {
    let plan = dataset.logical_plan();
    let qualifiers = qualifiers(plan);
    let given = given_names(plan);
    let columns = dataset.columns();
    let short: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| match given.get(index) {
            Some(true) => column.clone(),
            _ => without_qualifiers(column, &qualifiers),
        })
        .collect();
    let is_alone = |name: &String| short.iter().filter(|other| *other == name).count() == 1;
    let shown = short.iter().zip(columns).map(|(name, column)| if is_alone(name) { name.clone() } else { column });
    shown.collect()
}

/// The columns of a result under other names.
pub(super) fn renamed(schema: &Schema, names: &[String]) -> SchemaRef {
    let fields = schema.fields().iter().zip(names).map(|(field, name)| field.as_ref().clone().with_name(name));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<Field>>(), schema.metadata().clone()))
}

/// Names that columns of the plan may be qualified with.
fn qualifiers(plan: &LogicalPlan) -> HashSet<String> {
    let mut found = HashSet::new();
    let visited = plan.apply_with_subqueries(|node| {
        found.extend(node.schema().iter().filter_map(|(qualifier, _)| qualifier).map(ToString::to_string));
        Ok(TreeNodeRecursion::Continue)
    });
    // Nothing can fail above; without names nothing would be taken away.
    if visited.is_err() { HashSet::new() } else { found }
}

/// For each column, whether the query itself names it.
fn given_names(plan: &LogicalPlan) -> Vec<bool> {
    match plan {
        LogicalPlan::Projection(projection) => projection.expr.iter().map(|e| matches!(e, Expr::Alias(_))).collect(),
        LogicalPlan::Sort(sort) => given_names(&sort.input),
        LogicalPlan::Limit(limit) => given_names(&limit.input),
        LogicalPlan::Filter(filter) => given_names(&filter.input),
        _ => Vec::new(),
    }
}

/// A name such as `sum(t.a) + t.b` as `sum(a) + b`. Text in quotes stays.
fn without_qualifiers(name: &str, qualifiers: &HashSet<String>) -> String {
    let mut shown = String::new();
    let mut rest = name;
    let mut quoted = false;
    while let Some(next) = rest.chars().next() {
        let inside = quoted || shown.chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_.\"".contains(c));
        let longest = qualifiers
            .iter()
            .filter(|_| !inside)
            .filter(|q| rest.strip_prefix(q.as_str()).is_some_and(|after| after.starts_with('.')))
            .max_by_key(|q| q.len());
        if let Some(qualifier) = longest {
            rest = &rest[qualifier.len() + 1..];
            continue;
        }
        quoted ^= next == '\'';
        shown.push(next);
        rest = &rest[next.len_utf8()..];
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualifiers_go_and_all_else_stays() {
        let qualifiers: HashSet<String> = ["t", "s.t", "readparquet"].map(str::to_owned).into();
        for (name, shown) in [
            ("sum(readparquet.v)", "sum(v)"),
            ("t.a + t.b", "a + b"),
            ("s.t.a", "a"),
            ("max(x.a)", "max(x.a)"),
            ("t", "t"),
            ("at.a", "at.a"),
            ("concat(t.a,Utf8(\"t.b\"))", "concat(a,Utf8(\"t.b\"))"),
            ("'t.a' || t.a", "'t.a' || a"),
            ("sum(t.ä)", "sum(ä)"),
        ] {
            assert_eq!(without_qualifiers(name, &qualifiers), shown, "{name}");
        }
    }
}
