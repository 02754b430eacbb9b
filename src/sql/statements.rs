//! Statements: what DataFusion runs, and what is intercepted.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::{Result, config_err, exec_err, not_impl_err};
use datafusion::config::ExtensionOptions;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan, Statement};
use datafusion::sql::parser::{DFParserBuilder, Statement as DFStatement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::dialect::dialect_from_str;

use super::create_function::create_function;
use super::normalise::normalise;
use crate::config::{BlockyardOptions, ByteSize, MemoryLimit};
use crate::context::DataContext;
use crate::dataset::Dataset;

/// One parsed statement.
#[derive(Debug, Clone)]
pub struct SqlStatement(DFStatement);

impl fmt::Display for SqlStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl DataContext {
    /// Parses statements separated by `;`, in the dialect that the session is set to.
    pub fn parse(&self, statements: &str) -> Result<Vec<SqlStatement>> {
        let name = self.state().config_options().sql_parser.dialect.to_string();
        let generic = GenericDialect {};
        let dialect = dialect_from_str(name);
        let dialect = dialect.as_deref().unwrap_or(&generic);
        let mut parser = DFParserBuilder::new(statements).with_dialect(dialect).build()?;
        let mut parsed: Vec<_> = parser.parse_statements()?.into();
        for statement in &mut parsed {
            normalise(statement)?;
        }
        Ok(parsed.into_iter().map(SqlStatement).collect())
    }

    /// Runs a statement: definitions and settings take effect, a query comes back as a lazy dataset.
    pub async fn run(&self, statement: SqlStatement) -> Result<Dataset> {
        if create_function(&statement.0, self.functions())? {
            return self.nothing();
        }
        let state = self.state();
        let plan = state.statement_to_plan(statement.0).await?;
        match plan {
            LogicalPlan::Statement(Statement::SetVariable(set)) => {
                self.set_option(&set.variable, &set.value).await?;
                self.nothing()
            }
            LogicalPlan::Statement(Statement::ResetVariable(reset)) => {
                self.reset_option(&reset.variable).await?;
                self.nothing()
            }
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) if has_rows(&create.input) => {
                self.create_table_as(create).await?;
                self.nothing()
            }
            plan => {
                let verbose = matches!(&plan, LogicalPlan::Explain(explain) if explain.verbose);
                let frame = self.session().execute_logical_plan(plan).await?;
                let dataset = self.from_dataframe(frame);
                if verbose { self.with_memory(dataset).await } else { Ok(dataset) }
            }
        }
    }

    /// EXPLAIN VERBOSE with one more row: the least memory in which the plan can run.
    async fn with_memory(&self, explain: Dataset) -> Result<Dataset> {
        let mut batches = explain.take_all().await?;
        let texts = [vec!["least_memory".to_owned()], vec![explain.explain_memory().await?]];
        let columns = texts.map(|text| Arc::new(StringArray::from(text)) as ArrayRef).to_vec();
        batches.push(RecordBatch::try_new(explain.schema(), columns)?);
        self.from_batches(batches)
    }

    async fn set_option(&self, name: &str, value: &str) -> Result<()> {
        let value = value.trim_matches('\'');
        if let Some(key) = name.strip_prefix("blockyard.") {
            if key == "spill_directory" {
                return config_err!(
                    "blockyard.spill_directory is fixed when a session starts; the tool has --spill-dir for it"
                );
            }
            let mut options = self.config();
            ExtensionOptions::set(&mut options, key, value)?;
            return self.configure(|current| *current = options);
        }
        match name.strip_prefix("datafusion.runtime.") {
            // DataFusion would replace the pool that blocks and operators share.
            Some("memory_limit") => {
                let limit = MemoryLimit::from_str(value)?;
                self.configure(|options| options.memory_limit = limit)
            }
            Some("temp_directory") => {
                config_err!(
                    "datafusion.runtime.temp_directory is fixed when a session starts; see blockyard.spill_directory"
                )
            }
            Some("max_temp_directory_size") => {
                let quota = value.parse::<ByteSize>()?;
                self.configure(|options| options.spill_quota = quota)
            }
            _ => {
                let quoted = value.replace('\'', "''");
                self.session().sql(&format!("SET {name} = '{quoted}'")).await?;
                Ok(())
            }
        }
    }

    async fn reset_option(&self, name: &str) -> Result<()> {
        let defaults = BlockyardOptions::default();
        if name.starts_with("blockyard.") {
            let default = defaults.entries().into_iter().find(|entry| entry.key == name).and_then(|entry| entry.value);
            return self.set_option(name, &default.unwrap_or_default()).await;
        }
        match name.strip_prefix("datafusion.runtime.") {
            Some("memory_limit") => self.configure(|options| options.memory_limit = defaults.memory_limit),
            Some("max_temp_directory_size") => self.configure(|options| options.spill_quota = defaults.spill_quota),
            Some("temp_directory") => config_err!("{name} cannot be reset"),
            _ => {
                self.session().sql(&format!("RESET {name}")).await?;
                Ok(())
            }
        }
    }

    /// `CREATE TABLE x AS query`: the rows go into the block store.
    async fn create_table_as(&self, create: CreateMemoryTable) -> Result<()> {
        let CreateMemoryTable { name, input, if_not_exists, or_replace, constraints, column_defaults, .. } = create;
        if constraints.iter().next().is_some() || !column_defaults.is_empty() {
            return not_impl_err!("constraints and defaults in CREATE TABLE AS");
        }
        let exists = self.session().table_exist(name.clone())?;
        match (exists, if_not_exists, or_replace) {
            (true, true, false) => return Ok(()),
            (true, false, false) => return exec_err!("table '{name}' already exists"),
            (_, true, true) => return exec_err!("IF NOT EXISTS and OR REPLACE exclude each other"),
            _ => {}
        }
        let blocks = self.dataset(Arc::unwrap_or_clone(input)).materialize().await?;
        if exists {
            self.session().deregister_table(name.clone())?;
        }
        self.session().register_table(name, blocks.table()?)?;
        Ok(())
    }

    fn nothing(&self) -> Result<Dataset> {
        Ok(self.dataset(LogicalPlan::EmptyRelation(datafusion::logical_expr::EmptyRelation {
            produce_one_row: false,
            schema: Arc::new(datafusion::common::DFSchema::empty()),
        })))
    }
}

/// Runs all statements; what is not the last runs to its end.
pub(crate) async fn run_statements(context: &DataContext, text: &str) -> Result<Dataset> {
    let mut statements = context.parse(text)?;
    let Some(last) = statements.pop() else {
        return exec_err!("there is no statement in the text");
    };
    for statement in statements {
        context.run(statement).await?.take_all().await?;
    }
    context.run(last).await
}

/// A table without a query is DataFusion's own, which can be inserted into.
fn has_rows(input: &LogicalPlan) -> bool {
    !matches!(input, LogicalPlan::EmptyRelation(_))
}
