//! The order of joins that is expected to be the least work.

use std::collections::HashMap;

use datafusion::common::JoinType;

use super::super::estimate::{Key, damped, matching_all};
use super::graph::{ColumnOf, JoinGraph, LeavesOut, Set, Tree};

/// With more relations than these, not all orders are looked at.
const MAX_EXACT: usize = 10;
/// What a condition beside equal columns keeps, if nothing is known of it.
const PREDICATE: f64 = 0.33;
/// What a row of the build side costs beside one that is probed.
const BUILD: f64 = 4.0;
/// A semi or anti join is expected to keep this part at least.
const LEAST_KEPT: f64 = 0.01;

/// What joins are expected to give and to cost.
pub(super) struct Costs<'a> {
    graph: &'a JoinGraph,
}

impl<'a> Costs<'a> {
    pub(super) fn of(graph: &'a JoinGraph) -> Self {
        Self { graph }
    }

    /// Rows of the join of a set of relations.
    pub(super) fn rows(&self, set: Set) -> f64 {
        let relations = &self.graph.relations;
        let is_in = |number: usize| set >> number & 1 == 1;
        let numbers = || (0..relations.len()).filter(|number| is_in(*number));
        let gives = |number: &usize| relations[*number].leaves_out.is_none();
        let product: f64 = numbers().filter(gives).map(|number| relations[number].estimate.rows).product();
        // Classes that connect the same relations are seldom independent.
        let mut connected: HashMap<Set, Vec<Vec<Key>>> = HashMap::new();
        for class in &self.graph.classes {
            let inside = || class.iter().filter(|(relation, _)| is_in(*relation));
            let of = inside().fold(0, |set: Set, (relation, _)| set | 1 << relation);
            if of.count_ones() < 2 {
                continue;
            }
            let key = |(relation, column): &ColumnOf| self.graph.relations[*relation].estimate.key(*column);
            connected.entry(of).or_default().push(inside().map(key).collect());
        }
        let equal: f64 = connected.into_values().map(matching_all).product();
        let inside = |relations: Set| relations & set == relations;
        let predicates = self.graph.predicates.iter().filter(|predicate| inside(predicate.relations())).count();
        let left_out = numbers().filter_map(|number| {
            let by = relations[number].leaves_out.as_ref()?;
            Some(self.kept_by(number, by))
        });
        let kept: f64 = left_out.product();
        (product * equal * PREDICATE.powi(predicates as i32) * kept).max(1.0)
    }

    fn domain(&self, (relation, column): ColumnOf) -> f64 {
        self.graph.relations[relation].estimate.domain(column)
    }

    /// What part of the rows a semi or anti join keeps.
    fn kept_by(&self, number: usize, by: &LeavesOut) -> f64 {
        let found_of = |right: usize| self.graph.relations[number].estimate.distinct(right);
        let parts = by.on.iter().map(|(left, right)| (found_of(*right) / self.domain(*left)).min(1.0));
        let found = damped(parts.collect()) * if by.filter.is_some() { PREDICATE } else { 1.0 };
        match by.join_type {
            JoinType::LeftAnti => (1.0 - found).max(0.1),
            _ => found.max(LEAST_KEPT),
        }
    }

    /// What a join of two sets costs by itself. `None` where it is none: nothing connects them, or what one of them
    /// leaves out is not there.
    fn of_join(&self, left: Set, right: Set, rows: &mut dyn FnMut(Set) -> f64) -> Option<f64> {
        let (is_possible, rows_right) = match self.leaves_out(right) {
            Some(by) => (by.looks_at & left == by.looks_at, self.rows_of_side(right)),
            None => (self.graph.classes.iter().any(|class| connects(class, left, right)), rows(right)),
        };
        if !is_possible || self.leaves_out(left).is_some() {
            return None;
        }
        let rows_left = rows(left);
        Some(BUILD * rows_left.min(rows_right) + rows_left.max(rows_right) + rows(left | right))
    }

    /// What a relation leaves out, if a set is one that gives no rows itself.
    fn leaves_out(&self, set: Set) -> Option<&LeavesOut> {
        let number = set.trailing_zeros() as usize;
        let relation = self.graph.relations.get(number).filter(|_| set.count_ones() == 1)?;
        relation.leaves_out.as_ref()
    }

    /// Rows of a side of a join, also where it gives none itself.
    fn rows_of_side(&self, set: Set) -> f64 {
        match self.leaves_out(set) {
            Some(_) => self.graph.relations[set.trailing_zeros() as usize].estimate.rows,
            None => self.rows(set),
        }
    }

    /// Whether a join is to build its table of what is on its right.
    pub(super) fn builds_right(&self, left: Set, right: Set) -> bool {
        self.rows(left) > self.rows_of_side(right)
    }

    /// What all joins of a tree cost.
    pub(super) fn of_tree(&self, tree: &Tree) -> f64 {
        let Tree::Join(left, right) = tree else { return 0.0 };
        let own = self.of_join(left.relations(), right.relations(), &mut |set| self.rows(set));
        own.unwrap_or(f64::INFINITY) + self.of_tree(left) + self.of_tree(right)
    }

    /// What they cost as they stand. DataFusion finds the smaller side of two inputs, and builds the table of what is
    /// on the left where that is a join, whose rows it does not know.
    pub(super) fn as_written(&self, tree: &Tree) -> f64 {
        let Tree::Join(left, right) = tree else { return 0.0 };
        let (of_left, of_right) = (left.relations(), right.relations());
        let more = match left.as_ref() {
            Tree::Join(..) if self.builds_right(of_left, of_right) => {
                (BUILD - 1.0) * (self.rows(of_left) - self.rows_of_side(of_right))
            }
            _ => 0.0,
        };
        let own = self.of_join(of_left, of_right, &mut |set| self.rows(set)).unwrap_or(f64::INFINITY);
        own + more + self.as_written(left) + self.as_written(right)
    }

    /// The best order that was found. `None` where nothing connects all relations.
    pub(super) fn best(&self) -> Option<Tree> {
        match self.graph.relations.len() <= MAX_EXACT {
            true => self.exact(),
            false => self.greedy(),
        }
    }

    /// The best order of each set of relations, from small sets to large ones.
    fn exact(&self) -> Option<Tree> {
        let all: Set = (1 << self.graph.relations.len()) - 1;
        let rows: Vec<f64> = (0..=all).map(|set| self.rows(set)).collect();
        let mut rows = |set: Set| rows[set as usize];
        let mut best: Vec<Option<(f64, Option<Set>)>> = vec![None; all as usize + 1];
        for set in 1..=all {
            if set.count_ones() == 1 {
                best[set as usize] = Some((0.0, None));
                continue;
            }
            let mut left = (set - 1) & set;
            while left > 0 {
                let right = set & !left;
                if let (Some((of_left, _)), Some((of_right, _))) = (best[left as usize], best[right as usize])
                    && let Some(own) = self.of_join(left, right, &mut rows)
                {
                    let cost = of_left + of_right + own;
                    if best[set as usize].is_none_or(|(least, _)| cost < least) {
                        best[set as usize] = Some((cost, Some(left)));
                    }
                }
                left = (left - 1) & set;
            }
        }
        tree_of(&best, all)
    }

    /// Joins the two sets that cost the least together, again and again.
    fn greedy(&self) -> Option<Tree> {
        let mut known = HashMap::new();
        let mut rows = |set: Set| *known.entry(set).or_insert_with(|| self.rows(set));
        let mut trees: Vec<Tree> = (0..self.graph.relations.len()).map(Tree::Relation).collect();
        while trees.len() > 1 {
            let mut least: Option<(f64, usize, usize)> = None;
            for left in 0..trees.len() {
                for right in (0..trees.len()).filter(|right| *right != left) {
                    let cost = self.of_join(trees[left].relations(), trees[right].relations(), &mut rows);
                    if let Some(cost) = cost
                        && least.is_none_or(|(least, ..)| cost < least)
                    {
                        least = Some((cost, left, right));
                    }
                }
            }
            let (_, left, right) = least?;
            let (first, second) = (left.min(right), left.max(right));
            let (second, first) = (trees.swap_remove(second), trees.swap_remove(first));
            trees.push(if left < right { Tree::join(first, second) } else { Tree::join(second, first) });
        }
        trees.pop()
    }
}

fn tree_of(best: &[Option<(f64, Option<Set>)>], set: Set) -> Option<Tree> {
    match best[set as usize]? {
        (_, None) => Some(Tree::Relation(set.trailing_zeros() as usize)),
        (_, Some(left)) => Some(Tree::join(tree_of(best, left)?, tree_of(best, set & !left)?)),
    }
}

/// Whether columns of both sets are in a class.
fn connects(class: &[ColumnOf], left: Set, right: Set) -> bool {
    let has = |set: Set| class.iter().any(|(relation, _)| set >> relation & 1 == 1);
    has(left) && has(right)
}
