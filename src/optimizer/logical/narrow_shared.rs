//! Asks what a query has several times for what all who read it need together: columns that one of them uses, rows that
//! pass the conditions of one of them.
//!
//! Correct because each reader keeps its own conditions above: what is asked for together is more than any one of them
//! asks for. Conditions of the same columns are put together for themselves, too, so that one over group keys reaches
//! the tables where the others stay above the groups. A reader whose conditions are never true gets no rows, and what
//! only one is left to read is no longer shared. Nor is what one of them asks with a condition that may fail, as a
//! division does: it would be asked of rows that others want.
//!
//! It comes last, when conditions and columns have been pushed down to the shared plans; the next pass of the optimizer
//! takes them further. Later passes give all readers the same plan again: the rules may have named parts of it anew in
//! each.
//!
//! ```text
//! Filter: y = 2001                           Filter: y = 2001
//!   Shared: plan=0                             Shared: plan=0
//!     Aggregate: sum(v), max(v) by y             Projection: y, sum(v)
//! Filter: y = 2002                      ->         Filter: y = 2001 OR y = 2002
//!   Shared: plan=0                                   Aggregate: sum(v), max(v) by y
//!     Aggregate: sum(v), max(v) by y         Filter: y = 2002
//!                                              Shared: plan=0
//!                                                ..
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    EmptyRelation, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::together::{has_subquery, may_fail, together};
use crate::logical::{SharedNode, extension, has_node, is_drawn_once, node_of};

#[derive(Debug)]
pub(super) struct NarrowShared;

impl OptimizerRule for NarrowShared {
    fn name(&self) -> &str {
        "narrow_shared"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !has_node(&plan, |node| node_of::<SharedNode>(node).is_some()) {
            return Ok(Transformed::no(plan));
        }
        let mut found = HashMap::new();
        find(&plan, Asked::everything(), &mut found)?;
        if found.is_empty() {
            return Ok(Transformed::no(plan));
        }
        let mut narrowed = Narrowed { plans: HashMap::new(), found, config };
        narrowed.rewrite(plan)
    }
}

/// What somebody asks of a plan.
#[derive(Debug, Default)]
struct Asked {
    /// The columns that are used, if not all are.
    columns: Option<HashSet<Column>>,
    /// What is true of all rows that are used.
    conditions: Vec<Expr>,
}

impl Asked {
    fn everything() -> Self {
        Self::default()
    }

    /// The columns of these expressions, of all rows.
    fn columns_of(expressions: &[Expr]) -> Self {
        let is_plain = expressions.iter().all(|expression| !has_subquery(expression));
        let columns = expressions.iter().flat_map(|expression| expression.column_refs().into_iter().cloned());
        Self { columns: is_plain.then(|| columns.collect()), conditions: Vec::new() }
    }

    /// The same of those rows that pass.
    fn with_condition(mut self, condition: &Expr) -> Self {
        self.columns = match (self.columns, has_subquery(condition)) {
            (Some(mut columns), false) => {
                columns.extend(condition.column_refs().into_iter().cloned());
                Some(columns)
            }
            _ => None,
        };
        self.conditions.extend(split_conjunction_owned(condition.clone()));
        self
    }

    /// What is asked of the input of a projection.
    fn below_projection(self, projection: &Projection) -> Result<Self> {
        let made = |place: usize| projection.expr[place].clone().unalias();
        let conditions = in_other_terms(self.conditions, &projection.schema, made)?;
        Ok(Self { conditions, ..Self::columns_of(&projection.expr) })
    }

    /// What is asked of the input of an alias, which names all columns anew.
    fn below_alias(self, alias: &SubqueryAlias) -> Result<Self> {
        let inner = alias.input.schema().columns();
        let conditions = in_other_terms(self.conditions, &alias.schema, |place| inner[place].clone().into())?;
        let columns = self.columns.and_then(|columns| places(&alias.schema, &columns));
        let columns = columns.map(|places| places.into_iter().map(|place| inner[place].clone()).collect());
        Ok(Self { columns, conditions })
    }
}

/// Conditions with other expressions in place of the columns of `schema`. Those with a column that is not there are
/// left out.
fn in_other_terms(conditions: Vec<Expr>, schema: &DFSchema, of: impl Fn(usize) -> Expr) -> Result<Vec<Expr>> {
    let mut all = Vec::new();
    for condition in conditions {
        let mut is_known = true;
        let replaced = condition.transform_up(|part| {
            let Some(column) = part.try_as_col() else { return Ok(Transformed::no(part)) };
            let place = place_of(schema, column);
            is_known &= place.is_some();
            Ok(place.map_or(Transformed::no(part), |place| Transformed::yes(of(place))))
        });
        if is_known {
            all.push(replaced?.data);
        }
    }
    Ok(all)
}

/// The place of a column, which may be named without its table.
fn place_of(schema: &DFSchema, column: &Column) -> Option<usize> {
    schema.index_of_column_by_name(column.relation.as_ref(), &column.name)
}

/// The places of some columns. `None` where one cannot be found.
fn places(schema: &DFSchema, columns: &HashSet<Column>) -> Option<BTreeSet<usize>> {
    columns.iter().map(|column| place_of(schema, column)).collect()
}

/// A plan that is shared, and what each of its readers asks.
struct Found {
    plan: LogicalPlan,
    is_narrowed: bool,
    asked: Vec<Asked>,
}

impl Found {
    /// What nobody shares any more.
    fn alone(plan: &LogicalPlan) -> Self {
        Self { plan: plan.clone(), is_narrowed: false, asked: Vec::new() }
    }
}

/// Finds who reads shared plans. What is in one is read once, however many read that.
fn find(plan: &LogicalPlan, asked: Asked, found: &mut HashMap<usize, Found>) -> Result<()> {
    if let Some(shared) = node_of::<SharedNode>(plan) {
        if shared.is_alone() {
            found.entry(shared.number()).or_insert_with(|| Found::alone(shared.input()));
            return find(shared.input(), asked, found);
        }
        if let Some(known) = found.get_mut(&shared.number()) {
            known.asked.push(asked);
            return Ok(());
        }
        let plan = shared.input().clone();
        let known = Found { plan: plan.clone(), is_narrowed: shared.is_narrowed(), asked: vec![asked] };
        found.insert(shared.number(), known);
        return find(&plan, Asked::everything(), found);
    }
    plan.apply_subqueries(|subquery| find(subquery, Asked::everything(), found).map(|()| TreeNodeRecursion::Continue))?;
    match plan {
        LogicalPlan::Filter(filter) => find(&filter.input, asked.with_condition(&filter.predicate), found),
        LogicalPlan::SubqueryAlias(alias) => find(&alias.input, asked.below_alias(alias)?, found),
        LogicalPlan::Projection(projection) => find(&projection.input, asked.below_projection(projection)?, found),
        LogicalPlan::Aggregate(aggregate) => {
            let expressions = [aggregate.group_expr.as_slice(), &aggregate.aggr_expr].concat();
            find(&aggregate.input, Asked::columns_of(&expressions), found)
        }
        other => other.inputs().into_iter().try_for_each(|input| find(input, Asked::everything(), found)),
    }
}

/// The plan of all readers of a shared plan, or none where only one is left.
type Common = Option<LogicalPlan>;

struct Narrowed<'a> {
    found: HashMap<usize, Found>,
    plans: HashMap<usize, Common>,
    config: &'a dyn OptimizerConfig,
}

impl Narrowed<'_> {
    fn rewrite(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        if let Some(shared) = node_of::<SharedNode>(&plan) {
            let number = shared.number();
            if shared.is_alone() {
                // What was above has been pushed through it.
                return Ok(Transformed::yes(self.rewrite(shared.input().clone())?.data));
            }
            return match self.common(number)? {
                Some(common) if shared.is_narrowed() && shared.input() == &common => Ok(Transformed::no(plan)),
                Some(common) => Ok(Transformed::yes(extension(SharedNode::narrowed(common, number)))),
                None => {
                    let below = self.rewrite(shared.input().clone())?.data;
                    Ok(Transformed::yes(extension(SharedNode::alone(below, number))))
                }
            };
        }
        if let LogicalPlan::Filter(filter) = &plan
            && self.reads_nothing(filter)?
        {
            let schema = Arc::clone(filter.input.schema());
            return Ok(Transformed::yes(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema })));
        }
        let plan = plan.map_subqueries(|subquery| self.rewrite(subquery))?;
        let plan = plan.transform_sibling(|plan| plan.map_children(|input| self.rewrite(input)))?;
        // Nodes keep the columns of their inputs, which may be fewer now.
        match plan.transformed {
            true => plan.map_data(LogicalPlan::recompute_schema),
            false => Ok(plan),
        }
    }

    /// Whether a condition above a shared plan is true of none of its rows, by what is the same in all of them.
    fn reads_nothing(&self, filter: &Filter) -> Result<bool> {
        let mut asked = Asked::everything().with_condition(&filter.predicate);
        let mut below = filter.input.as_ref();
        loop {
            below = match below {
                LogicalPlan::Filter(filter) => &filter.input,
                LogicalPlan::Projection(projection) => {
                    asked = asked.below_projection(projection)?;
                    &projection.input
                }
                LogicalPlan::SubqueryAlias(alias) => {
                    asked = asked.below_alias(alias)?;
                    &alias.input
                }
                other => match node_of::<SharedNode>(other) {
                    Some(shared) => {
                        return Ok(self.conditions(asked, shared.input())?.iter().any(is_never_true));
                    }
                    None => return Ok(false),
                },
            };
        }
    }

    /// What is asked of the rows of a plan, with the values that are the same in all of them.
    fn conditions(&self, asked: Asked, plan: &LogicalPlan) -> Result<Vec<Expr>> {
        let (schema, constants) = (plan.schema(), constants(plan));
        let context = SimplifyContext::builder()
            .with_schema(Arc::clone(schema))
            .with_config_options(self.config.options())
            .with_query_execution_start_time(self.config.query_execution_start_time())
            .build();
        let simplifier = ExprSimplifier::new(context);
        let all = schema.columns();
        let value = |place: usize| constants.get(place).cloned().flatten().unwrap_or_else(|| all[place].clone().into());
        let usable = asked.conditions.into_iter().filter(|one| !one.is_volatile() && !has_subquery(one));
        let conditions = in_other_terms(usable.collect(), schema, value)?;
        conditions.into_iter().map(|condition| simplifier.simplify(condition)).collect()
    }

    fn common(&mut self, number: usize) -> Result<Common> {
        if let Some(known) = self.plans.get(&number) {
            return Ok(known.clone());
        }
        let common = match self.found.remove(&number) {
            Some(found) if found.is_narrowed => Some(self.rewrite(found.plan)?.data),
            Some(found) => self.narrow(found)?,
            None => None,
        };
        self.plans.insert(number, common.clone());
        Ok(common)
    }

    /// What all readers need of a plan, if there are several.
    fn narrow(&mut self, found: Found) -> Result<Common> {
        let schema = Arc::clone(found.plan.schema());
        // All readers get all rows of what is drawn: that is shared whatever they ask.
        let is_drawn = is_drawn_once(&found.plan);
        // Those who read no rows name columns, too.
        let columns = found.asked.iter().map(|asked| asked.columns.clone()).reduce(|all, more| Some(&all? | &more?));
        let mut readers: Vec<Vec<Expr>> = Vec::new();
        for asked in found.asked {
            let conditions = self.conditions(asked, &found.plan)?;
            if !conditions.iter().any(is_never_true) {
                let asks = |condition: &Expr| !is_true(condition) && !is_drawn;
                readers.push(conditions.into_iter().filter(asks).collect());
            }
        }
        let in_all = |condition: &Expr| readers.iter().all(|conditions| conditions.contains(condition));
        let mut all_conditions = readers.iter().flatten();
        let sees_other_rows = all_conditions.any(|condition| !in_all(condition) && may_fail(condition, &schema));
        if readers.len() < 2 || sees_other_rows {
            return Ok(None);
        }
        let mut plan = LogicalPlanBuilder::from(self.rewrite(found.plan)?.data);
        if let Some(condition) = together(&readers) {
            plan = plan.filter(condition)?;
        }
        if let Some(kept) = columns.flatten().and_then(|columns| places(plan.schema(), &columns)) {
            let all = plan.schema().columns();
            if !kept.is_empty() && kept.len() < all.len() {
                plan = plan.project(kept.into_iter().map(|place| Expr::Column(all[place].clone())))?;
            }
        }
        plan.build().map(Some)
    }
}

/// The columns of a plan that have the same value in each row.
fn constants(plan: &LogicalPlan) -> Vec<Option<Expr>> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => constants(&alias.input),
        LogicalPlan::Filter(filter) => constants(&filter.input),
        LogicalPlan::Projection(projection) => {
            let constant =
                |expression: &Expr| Some(expression.clone().unalias()).filter(|e| matches!(e, Expr::Literal(..)));
            projection.expr.iter().map(constant).collect()
        }
        _ => Vec::new(),
    }
}

fn is_true(condition: &Expr) -> bool {
    matches!(condition, Expr::Literal(ScalarValue::Boolean(Some(true)), _))
}

fn is_never_true(condition: &Expr) -> bool {
    matches!(condition, Expr::Literal(ScalarValue::Boolean(Some(false) | None), _))
}
