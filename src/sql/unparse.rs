//! Plans back to SQL: what table functions have made as their calls, everything else as DataFusion writes it.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchemaRef, Result, TableReference, internal_err, not_impl_err};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::sql::sqlparser::ast::{
    Array, Expr as SqlExpr, FunctionArg, FunctionArgExpr, FunctionArgOperator, Ident, ObjectName, Statement,
    TableAlias, TableFunctionArgs, Value as Literal,
};
use datafusion::sql::unparser::Unparser;
use datafusion::sql::unparser::ast::{QueryBuilder, RelationBuilder, SelectBuilder, TableRelationBuilder};
use datafusion::sql::unparser::extension_unparser::{
    UnparseToStatementResult, UnparseWithinStatementResult, UserDefinedLogicalNodeUnparser,
};

use futures::FutureExt;

use super::syntax::{named, select_all};
use crate::call::{Call, Value};
use crate::dataset::{DataContext, Dataset};
use crate::logical::{MapNode, extension, is_ours, node_of};
use crate::sources::DatasourceTable;

impl Dataset {
    /// SQL text that gives the same rows.
    ///
    /// # Errors
    ///
    /// Where a part of the plan has no SQL form, such as a closure, or rows that only this process has.
    pub fn to_sql(&self) -> Result<String> {
        plan_to_sql(self.logical_plan(), self.context())
    }
}

/// SQL text for a plan.
fn plan_to_sql(plan: &LogicalPlan, context: &DataContext) -> Result<String> {
    let functions = context.table_functions();
    // From the top: a call may stand for several nodes, of which the lower ones are calls too.
    let plan = plan.clone().transform_down(|node| match functions.call_of(&node)? {
        Some(call) => {
            check_function(&node, context)?;
            Ok(Transformed::yes(extension(CallNode { call, schema: Arc::clone(node.schema()) })))
        }
        None if is_nameless(&node, context) => {
            not_impl_err!("SQL for rows that only this process has: write them into files, or CREATE TABLE")
        }
        None if is_ours(&node) => not_impl_err!(
            "SQL for {}: only map_batches and map_groups with a registered function have a form",
            node.display()
        ),
        None => Ok(Transformed::no(node)),
    });
    let unparser = Unparser::default().with_extension_unparsers(vec![Arc::new(CallUnparser)]);
    Ok(unparser.plan_to_sql(&in_selects(plan.data()?)?)?.to_string())
}

/// Fails where the name of a function means another one, or none, in SQL.
fn check_function(node: &LogicalPlan, context: &DataContext) -> Result<()> {
    let Some(function) = node_of::<MapNode>(node).and_then(|map| map.operator().function()) else { return Ok(()) };
    match context.functions().get(function.name()) {
        Ok(known) if known.does_as(function) => Ok(()),
        _ => not_impl_err!("SQL for the function '{}', which is not registered by that name", function.name()),
    }
}

/// Whether a scan is of rows of ours that no table of the session has under its name.
fn is_nameless(node: &LogicalPlan, context: &DataContext) -> bool {
    let LogicalPlan::TableScan(scan) = node else { return false };
    let Ok(provider) = source_as_provider(&scan.source) else { return false };
    if provider.downcast_ref::<DatasourceTable>().is_none() {
        return false;
    }
    let named = context.session().table_provider(scan.table_name.clone()).now_or_never();
    !matches!(named, Some(Ok(named)) if Arc::ptr_eq(&named, &provider))
}

/// The plan with subqueries where the clauses of one SELECT would mean something else, because they are not in the
/// order of the plan: a limit is behind all others, and a condition sees no column that is computed beside it.
fn in_selects(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut number = 0;
    let plan = plan.transform_up(|node| {
        if !node.inputs().into_iter().any(|input| stands_apart(&node, input)) {
            return Ok(Transformed::no(node));
        }
        let mut inputs = Vec::new();
        for input in node.inputs() {
            inputs.push(match stands_apart(&node, input) {
                true => subquery(input.clone(), &mut number)?,
                false => input.clone(),
            });
        }
        let expressions = node.expressions();
        Ok(Transformed::yes(node.with_new_exprs(expressions, inputs)?))
    });
    plan.data()
}

/// Whether what an operator does with its input cannot be said in the same SELECT.
fn stands_apart(node: &LogicalPlan, input: &LogicalPlan) -> bool {
    use LogicalPlan::{Aggregate, Distinct, Filter, Limit, Projection, Sort, Union, Window};
    match (node, input) {
        (Limit(_), Limit(_)) => true,
        (Limit(_), _) => false,
        (Projection(_) | Filter(_) | Sort(_) | Aggregate(_) | Window(_) | Distinct(_) | Union(_), Limit(_)) => true,
        (_, Sort(sort)) if sort.fetch.is_some() => true,
        (Sort(_) | Filter(_) | Aggregate(_) | Window(_) | Distinct(_) | Union(_), Sort(_)) => true,
        (Filter(_), Projection(_) | Aggregate(_) | Distinct(_) | Union(_) | Window(_)) => true,
        (Aggregate(_) | Window(_), Projection(_) | Distinct(_) | Aggregate(_) | Union(_)) => true,
        (Projection(_), Projection(_) | Distinct(_) | Union(_)) => true,
        (Sort(_), Union(_) | Distinct(_)) => true,
        _ => false,
    }
}

/// The rows of a plan as those of a relation, by whose name its columns are asked for already.
fn subquery(plan: LogicalPlan, number: &mut usize) -> Result<LogicalPlan> {
    let names: BTreeSet<_> = plan.schema().iter().filter_map(|(name, _)| name.map(TableReference::table)).collect();
    let name = match names.into_iter().collect::<Vec<_>>().as_slice() {
        [] => {
            *number += 1;
            format!("subquery_{number}")
        }
        [name] => (*name).to_owned(),
        [..] => return not_impl_err!("SQL for what is made of the columns of a join that are known by its sides"),
    };
    LogicalPlanBuilder::from(plan).alias(TableReference::bare(name))?.build()
}

/// Stands for what the call of a table function makes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallNode {
    call: Call,
    schema: DFSchemaRef,
}

// Nobody compares calls.
impl PartialOrd for CallNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for CallNode {
    fn name(&self) -> &str {
        "Call"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.call.tables.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call: {}", self.call.values.owner())
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, tables: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { call: Call { tables, ..self.call.clone() }, schema: Arc::clone(&self.schema) })
    }
}

struct CallUnparser;

impl UserDefinedLogicalNodeUnparser for CallUnparser {
    fn unparse(
        &self,
        node: &dyn UserDefinedLogicalNode,
        unparser: &Unparser,
        _query: &mut Option<&mut QueryBuilder>,
        _select: &mut Option<&mut SelectBuilder>,
        relation: &mut Option<&mut RelationBuilder>,
    ) -> Result<UnparseWithinStatementResult> {
        let (Some(relation), Some(node)) = (relation, node.as_any().downcast_ref::<CallNode>()) else {
            return Ok(UnparseWithinStatementResult::Unmodified);
        };
        let mut table = TableRelationBuilder::default();
        table.name(name_of(&node.call)).args(Some(arguments_of(&node.call, unparser)?));
        // Columns are asked for by the name that the relation has in the plan; in SQL it has that of the function.
        let names: BTreeSet<_> = node.schema.iter().map(|(relation, _)| relation.map(TableReference::table)).collect();
        if let [Some(name)] = names.into_iter().collect::<Vec<_>>().as_slice()
            && *name != node.call.values.owner()
        {
            let name = Ident::with_quote('"', *name);
            table.alias(Some(TableAlias { name, columns: Vec::new(), explicit: true, at: None }));
        }
        relation.table(table);
        Ok(UnparseWithinStatementResult::Modified)
    }

    fn unparse_to_statement(
        &self,
        node: &dyn UserDefinedLogicalNode,
        unparser: &Unparser,
    ) -> Result<UnparseToStatementResult> {
        let Some(node) = node.as_any().downcast_ref::<CallNode>() else {
            return Ok(UnparseToStatementResult::Unmodified);
        };
        let args = TableFunctionArgs { args: arguments_of(&node.call, unparser)?, settings: None };
        match select_all(named(name_of(&node.call), Some(args))) {
            Some(query) => Ok(UnparseToStatementResult::Modified(Statement::Query(Box::new(query)))),
            None => internal_err!("SELECT * does not parse"),
        }
    }
}

fn name_of(call: &Call) -> ObjectName {
    ObjectName::from(vec![Ident::new(call.values.owner())])
}

/// The tables, then what has to be given, by position as long as that is possible, then the others by name.
fn arguments_of(call: &Call, unparser: &Unparser) -> Result<Vec<FunctionArg>> {
    let mut args = Vec::new();
    for table in &call.tables {
        let Statement::Query(query) = unparser.plan_to_sql(table)? else {
            return internal_err!("a table is no query");
        };
        args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(SqlExpr::Subquery(query))));
    }
    let mut by_position = true;
    for parameter in &call.parameters {
        let Some(value) = call.values.get(parameter.name) else {
            by_position = false;
            continue;
        };
        by_position &= parameter.is_required;
        let arg = FunctionArgExpr::Expr(literal(value));
        args.push(match by_position {
            true => FunctionArg::Unnamed(arg),
            false => {
                FunctionArg::Named { name: Ident::new(parameter.name), arg, operator: FunctionArgOperator::RightArrow }
            }
        });
    }
    Ok(args)
}

fn literal(value: &Value) -> SqlExpr {
    let literal = match value {
        Value::Number(digits) => Literal::Number(digits.clone(), false),
        // The parser takes two quotes for one, and the writer writes two.
        Value::Text(text) => Literal::SingleQuotedString(text.clone()),
        Value::Flag(flag) => Literal::Boolean(*flag),
        Value::List(values) => {
            return SqlExpr::Array(Array { elem: values.iter().map(self::literal).collect(), named: false });
        }
    };
    SqlExpr::Value(literal.into())
}
