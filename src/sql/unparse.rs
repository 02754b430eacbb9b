//! Plans back to SQL: our nodes as the table functions that make them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchemaRef, Result, ScalarValue, not_impl_err};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::sql::sqlparser::ast::Statement;
use datafusion::sql::unparser::Unparser;
use datafusion::sql::unparser::ast::{QueryBuilder, RelationBuilder, SelectBuilder};
use datafusion::sql::unparser::extension_unparser::{
    UnparseToStatementResult, UnparseWithinStatementResult, UserDefinedLogicalNodeUnparser,
};

use crate::functions::BatchSize;
use crate::logical::{
    MapNode, MapOperator, MixNode, MixOptions, RandomShuffleNode, RandomizeBlocksNode, RepartitionNode, Repartitioning,
    ZipNode, extension,
};
use crate::sources::{DatasourceTable, FileTable};

/// SQL text for a plan.
pub(crate) fn plan_to_sql(plan: &LogicalPlan) -> Result<String> {
    let plan = plan.clone().transform_up(|node| {
        Ok(match scan_call(&node)? {
            Some(call) => Transformed::yes(extension(call)),
            None => Transformed::no(node),
        })
    });
    let unparser = Unparser::default().with_extension_unparsers(vec![Arc::new(NodeUnparser)]);
    Ok(unparser.plan_to_sql(&plan.data()?)?.to_string())
}

/// Stands for the scan of a source that a table function makes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Hash)]
struct ScanCall {
    scan: LogicalPlan,
    call: String,
}

fn scan_call(plan: &LogicalPlan) -> Result<Option<ScanCall>> {
    let LogicalPlan::TableScan(scan) = plan else {
        return Ok(None);
    };
    let Ok(provider) = source_as_provider(&scan.source) else {
        return Ok(None);
    };
    let call = match (provider.downcast_ref::<FileTable>(), provider.downcast_ref::<DatasourceTable>()) {
        (Some(files), _) => Some(files.sql_call()?),
        (_, Some(table)) => table.sql_call(),
        _ => None,
    };
    Ok(call.map(|call| ScanCall { scan: plan.clone(), call }))
}

impl UserDefinedLogicalNodeCore for ScanCall {
    fn name(&self) -> &str {
        "ScanCall"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }

    fn schema(&self) -> &DFSchemaRef {
        self.scan.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.call)
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, _inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(Self { scan: self.scan.clone(), call: self.call.clone() })
    }
}

struct NodeUnparser;

impl UserDefinedLogicalNodeUnparser for NodeUnparser {
    fn unparse(
        &self,
        node: &dyn UserDefinedLogicalNode,
        unparser: &Unparser,
        _query: &mut Option<&mut QueryBuilder>,
        _select: &mut Option<&mut SelectBuilder>,
        relation: &mut Option<&mut RelationBuilder>,
    ) -> Result<UnparseWithinStatementResult> {
        let Some(relation) = relation else {
            return Ok(UnparseWithinStatementResult::Unmodified);
        };
        let Some(factor) = relation_of(node, unparser)? else {
            return Ok(UnparseWithinStatementResult::Unmodified);
        };
        relation.table(factor);
        Ok(UnparseWithinStatementResult::Modified)
    }

    fn unparse_to_statement(
        &self,
        node: &dyn UserDefinedLogicalNode,
        unparser: &Unparser,
    ) -> Result<UnparseToStatementResult> {
        match call_of(node, unparser)? {
            Some(call) => Ok(UnparseToStatementResult::Modified(parse(&format!("SELECT * FROM {call}"))?)),
            None => Ok(UnparseToStatementResult::Unmodified),
        }
    }
}

/// The call of a table function, as text.
fn call_of(node: &dyn UserDefinedLogicalNode, unparser: &Unparser) -> Result<Option<String>> {
    let inputs = node.inputs();
    let table = |index: usize| Ok(format!("({})", unparser.plan_to_sql(inputs[index])?)) as Result<String>;
    let node = node.as_any();
    let call = if let Some(map) = node.downcast_ref::<MapNode>() {
        let (call, function, batches) = match map.operator() {
            MapOperator::Batches(function, size) => {
                let size = match size {
                    BatchSize::AsTheyCome => String::new(),
                    BatchSize::Rows(n) => format!(", batch_size => {n}"),
                    BatchSize::WholeBlock => ", batch_size => 'block'".to_owned(),
                };
                ("map_batches", function, size)
            }
            MapOperator::Groups(function, keys, most_rows) => {
                let size = most_rows.map_or_else(String::new, |rows| format!(", batch_size => {rows}"));
                ("map_groups", function, format!(", keys => {}{size}", quoted_list(keys)))
            }
            other => {
                return not_impl_err!(
                    "SQL for {}: only map_batches and map_groups with a registered function have a form",
                    other.name()
                );
            }
        };
        let exact = map.compute().memory.map_or(0, |memory| memory.0);
        let quoted = |(argument, value): (&str, String)| match argument {
            // Sizes are rounded where people read them.
            "memory" => format!(", memory => {exact}"),
            "compute" | "resources" | "on_error" | "divert_to" | "max_errors" => {
                format!(", {argument} => '{}'", value.replace('\'', "''"))
            }
            _ => format!(", {argument} => {value}"),
        };
        let compute: String =
            map.compute().arguments().into_iter().chain(map.failures().arguments()).map(quoted).collect();
        let name = function.name().replace('\'', "''");
        let table = match (map.operator(), map.input()) {
            // The call brings groups together itself.
            (MapOperator::Groups(..), LogicalPlan::Extension(grouped)) => {
                format!("({})", unparser.plan_to_sql(grouped.node.inputs()[0])?)
            }
            (MapOperator::Groups(..), LogicalPlan::Sort(sorted)) => {
                format!("({})", unparser.plan_to_sql(&sorted.input)?)
            }
            _ => table(0)?,
        };
        format!("{call}({table}, '{name}'{batches}{compute})")
    } else if let Some(shuffle) = node.downcast_ref::<RandomShuffleNode>() {
        let blocks = shuffle.num_blocks().map_or(String::new(), |n| format!(", num_blocks => {n}"));
        format!("random_shuffle({}, seed => {}{blocks})", table(0)?, shuffle.seed().value())
    } else if let Some(repartition) = node.downcast_ref::<RepartitionNode>() {
        let arguments = match repartition.into() {
            Repartitioning::Blocks { num_blocks, shuffle } => {
                format!("num_blocks => {num_blocks}, shuffle => {shuffle}")
            }
            Repartitioning::Rows { target_num_rows_per_block, strict } => {
                format!("target_num_rows_per_block => {target_num_rows_per_block}, strict => {strict}")
            }
            Repartitioning::Bytes { target_bytes_per_block } => {
                format!("target_bytes_per_block => {target_bytes_per_block}")
            }
            Repartitioning::Keys { keys, num_blocks, sort } => {
                let blocks = num_blocks.map_or(String::new(), |n| format!("num_blocks => {n}, "));
                format!("{blocks}keys => {}, sort => {sort}", quoted_list(keys))
            }
            Repartitioning::Ranges { keys, boundaries } => {
                let text = |value: &ScalarValue| value.try_as_str().flatten().map_or(value.to_string(), str::to_owned);
                let boundaries: Vec<_> = boundaries.iter().map(text).collect();
                format!("keys => {}, boundaries => {}", quoted_list(keys), quoted_list(&boundaries))
            }
        };
        format!("repartition({}, {arguments})", table(0)?)
    } else if let Some(randomize) = node.downcast_ref::<RandomizeBlocksNode>() {
        let window = randomize.window().map_or(String::new(), |n| format!(", window => {n}"));
        format!("randomize_block_order({}, seed => {}{window})", table(0)?, randomize.seed().value())
    } else if let Some(scan) = node.downcast_ref::<ScanCall>() {
        scan.call.clone()
    } else if node.is::<ZipNode>() {
        let tables = (0..inputs.len()).map(table).collect::<Result<Vec<_>>>()?;
        format!("zip({})", tables.join(", "))
    } else if let Some(mix) = node.downcast_ref::<MixNode>() {
        let tables = (0..inputs.len()).map(table).collect::<Result<Vec<_>>>()?;
        let MixOptions { weights, stopping_condition } = mix.options();
        let weights: Vec<_> = weights.iter().map(ToString::to_string).collect();
        let weights = weights.join(", ");
        format!("mix({}, weights => [{weights}], stopping_condition => '{stopping_condition}')", tables.join(", "))
    } else {
        return Ok(None);
    };
    Ok(Some(call))
}

/// A list of strings, as SQL writes it.
fn quoted_list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
    format!("[{}]", quoted.join(", "))
}

fn relation_of(
    node: &dyn UserDefinedLogicalNode,
    unparser: &Unparser,
) -> Result<Option<datafusion::sql::unparser::ast::TableRelationBuilder>> {
    use datafusion::sql::sqlparser::ast::{SetExpr, TableFactor};
    let Some(call) = call_of(node, unparser)? else {
        return Ok(None);
    };
    let Statement::Query(query) = parse(&format!("SELECT * FROM {call}"))? else {
        return Ok(None);
    };
    let SetExpr::Select(select) = *query.body else {
        return Ok(None);
    };
    let Some(TableFactor::Table { name, args: Some(args), .. }) = select.from.into_iter().next().map(|t| t.relation)
    else {
        return Ok(None);
    };
    let mut builder = datafusion::sql::unparser::ast::TableRelationBuilder::default();
    builder.name(name).args(Some(args.args));
    Ok(Some(builder))
}

fn parse(sql: &str) -> Result<Statement> {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;
    let mut statements = Parser::parse_sql(&GenericDialect {}, sql)
        .map_err(|e| datafusion::common::internal_datafusion_err!("unparsed SQL does not parse: {e}"))?;
    match statements.pop() {
        Some(statement) => Ok(statement),
        None => datafusion::common::internal_err!("unparsed SQL is empty"),
    }
}
