//! Plans back to SQL: what table functions have made as their calls, everything else as DataFusion writes it.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchemaRef, Result, TableReference, internal_err, not_impl_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::sql::sqlparser::ast::{
    Array, Expr as SqlExpr, FunctionArg, FunctionArgExpr, FunctionArgOperator, Ident, ObjectName, Statement,
    TableAlias, TableFunctionArgs, Value as Literal,
};
use datafusion::sql::unparser::Unparser;
use datafusion::sql::unparser::ast::{QueryBuilder, RelationBuilder, SelectBuilder, TableRelationBuilder};
use datafusion::sql::unparser::extension_unparser::{
    UnparseToStatementResult, UnparseWithinStatementResult, UserDefinedLogicalNodeUnparser,
};

use super::syntax::{named, select_all};
use crate::call::{Call, TableFunctions, Value};
use crate::dataset::Dataset;
use crate::logical::{extension, is_ours};

impl Dataset {
    /// SQL text that gives the same rows.
    ///
    /// # Errors
    ///
    /// Where a part of the plan has no SQL form, such as a closure.
    pub fn to_sql(&self) -> Result<String> {
        plan_to_sql(self.logical_plan(), self.context().table_functions())
    }
}

/// SQL text for a plan.
fn plan_to_sql(plan: &LogicalPlan, functions: &TableFunctions) -> Result<String> {
    // From the top: a call may stand for several nodes, of which the lower ones are calls too.
    let plan = plan.clone().transform_down(|node| match functions.call_of(&node)? {
        Some(call) => Ok(Transformed::yes(extension(CallNode { call, schema: Arc::clone(node.schema()) }))),
        None if is_ours(&node) => not_impl_err!(
            "SQL for {}: only map_batches and map_groups with a registered function have a form",
            node.display()
        ),
        None => Ok(Transformed::no(node)),
    });
    let unparser = Unparser::default().with_extension_unparsers(vec![Arc::new(CallUnparser)]);
    Ok(unparser.plan_to_sql(&plan.data()?)?.to_string())
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
