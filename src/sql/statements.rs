//! Statements: what DataFusion runs, and what is intercepted.

use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::{DataFusionError, Result, config_err, exec_err};
use datafusion::config::ExtensionOptions;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, Statement};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::{DFParserBuilder, Statement as DFStatement};
use datafusion::sql::sqlparser::ast::Statement as AstStatement;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use super::ambiguous;
use super::create_function::{create_function, drop_function};
use super::create_table::{columns_without_nulls, create_table};
use super::cursors::{CursorStatement, cursor_statement};
use super::depth::check_depth;
use super::messages::with_advice;
use super::normalise::normalise;
use super::numbers::check_numbers;
use super::other_functions::other_functions;
use super::secrets::run_secret;
use super::statement::SqlStatement;
use super::views::{redefined, refresh_views};
use crate::config::{BlockyardOptions, ByteSize, MemoryLimit};
use crate::dataset::{DataContext, Dataset};
use crate::logical::check_plan_depth;
use crate::runtime::{DeepStack, on_deep_stack};

impl DataContext {
    /// Runs SQL statements separated by `;`. Definitions and settings take effect at once; the last query comes back as
    /// a lazy dataset.
    ///
    /// # Errors
    ///
    /// Where a statement does not parse, cannot be planned, or fails while it runs. Those before it have taken effect.
    pub async fn sql(&self, statements: &str) -> Result<Dataset> {
        run_statements(self, statements).await
    }

    /// Parses statements separated by `;`, in the dialect that the session is set to.
    ///
    /// # Errors
    ///
    /// Where the text is no SQL of that dialect.
    pub fn parse(&self, statements: &str) -> Result<Vec<SqlStatement>> {
        let name = self.state().config_options().sql_parser.dialect.to_string();
        let generic = GenericDialect {};
        let dialect = dialect_from_str(name);
        let dialect = dialect.as_deref().unwrap_or(&generic);
        // Some editors mark the beginning of a file so.
        let statements = statements.strip_prefix('\u{feff}').unwrap_or(statements);
        // What cannot be cut into tokens is an error of the parser.
        let tokens = Tokenizer::new(dialect, statements).tokenize_with_location().unwrap_or_default();
        check_depth(&tokens)?;
        check_numbers(&tokens)?;
        let parsed = on_deep_stack(|| {
            let mut parser = DFParserBuilder::new(statements).with_dialect(dialect).build()?;
            let mut parsed: Vec<_> = parser.parse_statements()?.into();
            let functions = self.table_functions();
            parsed.iter_mut().try_for_each(|statement| normalise(statement, functions))?;
            Ok::<_, DataFusionError>(parsed)
        })?;
        let parts = Some(parts(statements, &tokens)).filter(|parts| parts.len() == parsed.len());
        let mut parts = parts.into_iter().flatten();
        let of_part = |statement: DFStatement| match parts.next() {
            Some((line, text)) => SqlStatement { statement, line: Some(line), text: text.to_owned() },
            None => SqlStatement { text: statement.to_string(), statement, line: None },
        };
        Ok(parsed.into_iter().map(of_part).collect())
    }

    /// Calls of SQL functions, and names, that other engines have, and what they stand for here. A function of the
    /// session that has such a name comes first.
    pub fn other_functions(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        other_functions()
    }

    /// Runs a statement: definitions and settings take effect, a query comes back as a lazy dataset.
    ///
    /// # Errors
    ///
    /// Where it cannot be planned; and what takes effect at once may fail while it runs.
    pub async fn run(&self, statement: SqlStatement) -> Result<Dataset> {
        DeepStack::new(self.run_here(statement)).await
    }

    async fn run_here(&self, statement: SqlStatement) -> Result<Dataset> {
        let functions = self.functions();
        let text = statement.text.clone();
        if create_function(&statement.statement, functions)? || drop_function(&statement.statement, functions)? {
            self.defined_by(&text);
            return self.nothing();
        }
        if run_secret(self, &statement.statement)? {
            return self.nothing();
        }
        if let Some(cursor) = cursor_statement(&statement.statement)? {
            return self.run_cursor(cursor).await;
        }
        let not_null = columns_without_nulls(&statement.statement);
        let state = self.state();
        let planned = ambiguous::plan(&state, statement.statement).await;
        let plan = planned.map_err(|e| with_advice(e, &state))?;
        check_plan_depth(&plan)?;
        match plan {
            LogicalPlan::Statement(Statement::SetVariable(set)) => {
                self.set_option(&set.variable, &set.value).await?;
                self.nothing()
            }
            LogicalPlan::Statement(Statement::ResetVariable(reset)) => {
                self.reset_option(&reset.variable).await?;
                self.nothing()
            }
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                let name = create.name.clone();
                create_table(self, create, &not_null, &text).await?;
                refresh_views(self, name).await?;
                self.nothing()
            }
            plan => {
                let verbose = matches!(&plan, LogicalPlan::Explain(explain) if explain.verbose);
                let defines = defines(&plan);
                let changed = if let LogicalPlan::Ddl(ddl) = &plan { redefined(ddl) } else { None };
                let (_, plan) = self.session().execute_logical_plan(plan).await?.into_parts();
                if defines {
                    self.defined_by(&text);
                }
                if let Some(changed) = changed {
                    refresh_views(self, changed).await?;
                }
                let dataset = Dataset::new(self.clone(), state, plan).said_by(&text);
                if verbose { self.with_memory(dataset).await } else { Ok(dataset) }
            }
        }
    }

    /// Runs a statement that says what a name means.
    ///
    /// # Errors
    ///
    /// Where it cannot be planned, or is another statement.
    pub(crate) async fn defined(&self, definition: &str) -> Result<()> {
        for statement in self.parse(definition)? {
            if statement.is_query() {
                return exec_err!("it defines nothing: {definition}");
            }
            self.run(statement).await?;
        }
        Ok(())
    }

    /// What a statement means. Nothing runs.
    ///
    /// # Errors
    ///
    /// Where it cannot be planned.
    pub(super) async fn planned(&self, statement: SqlStatement) -> Result<LogicalPlan> {
        let state = self.state();
        let plan = DeepStack::new(ambiguous::plan(&state, statement.statement)).await?;
        check_plan_depth(&plan)?;
        Ok(plan)
    }

    /// The plan of what a statement reads, as it would run here. Nothing runs.
    ///
    /// # Errors
    ///
    /// Where it cannot be planned.
    pub(crate) async fn physical_plan_of(&self, statement: SqlStatement) -> Result<Arc<dyn ExecutionPlan>> {
        let state = self.state();
        let plan = match self.planned(statement).await? {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => Arc::unwrap_or_clone(create.input),
            plan => self.session().execute_logical_plan(plan).await?.into_parts().1,
        };
        DeepStack::new(state.create_physical_plan(&plan)).await
    }

    async fn run_cursor(&self, statement: CursorStatement) -> Result<Dataset> {
        match statement {
            CursorStatement::Declare(name, query) => {
                let state = self.state();
                let query = DFStatement::Statement(Box::new(AstStatement::Query(query)));
                let plan = ambiguous::plan(&state, query).await.map_err(|e| with_advice(e, &state))?;
                check_plan_depth(&plan)?;
                self.declare_cursor(&name, plan)?;
            }
            CursorStatement::Fetch(name, rows) => return self.fetch_cursor(&name, rows).await,
            CursorStatement::Close(name) => self.cursors().close(&name)?,
            CursorStatement::CloseAll => self.cursors().close_all(),
        }
        self.nothing()
    }

    /// EXPLAIN VERBOSE with more rows: the least memory in which the plan can run, and how an iterator over it goes on
    /// at a token.
    async fn with_memory(&self, explain: Dataset) -> Result<Dataset> {
        let mut batches = explain.take_all().await?;
        let mut texts = [vec!["min_memory".to_owned()], vec![explain.explain_memory().await?]];
        if let LogicalPlan::Explain(of) = explain.logical_plan() {
            let resumes = self.dataset(of.plan.as_ref().clone()).resumes().await?;
            texts[0].push("resumes".to_owned());
            texts[1].push(resumes.to_string());
        }
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
        if name == "datafusion.optimizer.prefer_hash_join" && value.eq_ignore_ascii_case("false") {
            return config_err!(
                "DataFusion's own sort-merge joins can give wrong rows where they have a condition; SET \
                 blockyard.prefer_spilling_joins = true has large joins spill"
            );
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

    fn nothing(&self) -> Result<Dataset> {
        Ok(self.dataset(LogicalPlan::EmptyRelation(datafusion::logical_expr::EmptyRelation {
            produce_one_row: false,
            schema: Arc::new(datafusion::common::DFSchema::empty()),
        })))
    }
}

/// The statements of a text, each with the line on which it begins, if there is a `;` between any two of them.
fn parts<'a>(text: &'a str, tokens: &[TokenWithSpan]) -> Vec<(u64, &'a str)> {
    // Tokens say lines and columns, and come in their order.
    let (mut chars, mut line, mut column) = (text.char_indices().peekable(), 1, 1);
    let mut place = |at: Location| loop {
        match chars.peek() {
            Some((_, c)) if (line, column) < (at.line, at.column) => {
                (line, column) = if *c == '\n' { (line + 1, 1) } else { (line, column + 1) };
                chars.next();
            }
            next => return next.map_or(text.len(), |(bytes, _)| *bytes),
        }
    };
    let (mut parts, mut begun) = (Vec::new(), None);
    for token in tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_) | Token::EOF)) {
        let start = token.span.start;
        match (&token.token, begun) {
            (Token::SemiColon, Some((line, from))) => {
                parts.push((line, &text[from..place(start)]));
                begun = None;
            }
            (Token::SemiColon, None) | (_, Some(_)) => {}
            (_, None) => begun = Some((start.line, place(start))),
        }
    }
    parts.extend(begun.map(|(line, from)| (line, &text[from..])));
    parts
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

/// Whether names mean something else behind a statement.
fn defines(plan: &LogicalPlan) -> bool {
    use Statement::{Deallocate, Prepare};
    matches!(plan, LogicalPlan::Ddl(_) | LogicalPlan::Statement(Prepare(_) | Deallocate(_)))
}
