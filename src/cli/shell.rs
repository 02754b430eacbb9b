//! The prompt: history, several lines up to a `;`, completion of tables, functions and keywords.

use std::path::PathBuf;

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper, Highlighter, Hinter};

use super::session::{Failure, Session};

const HELP: &str = "Statements end with ';'. Ctrl-C cancels a query, Ctrl-D or \\q leaves.
\\d  tables    \\f  functions for map_batches    \\h  this help
Try: SELECT l_returnflag, count(*) FROM tpch('lineitem', 0.01) GROUP BY 1;";

const WORDS: &[&str] = &[
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "ORDER BY",
    "LIMIT",
    "JOIN",
    "COPY",
    "STORED AS",
    "CREATE TABLE",
    "CREATE VIEW",
    "EXPLAIN",
    "EXPLAIN ANALYZE",
    "SET blockyard.",
    "SHOW",
    "RESET",
    "TABLESAMPLE BERNOULLI",
    "read_parquet(",
    "read_csv(",
    "read_json(",
    "range(",
    "tpch(",
    "map_batches(",
    "random_shuffle(",
    "repartition(",
    "randomize_block_order(",
    "zip(",
];

/// Reads and runs statements until the input ends.
pub(super) fn run(session: &mut Session) -> Result<(), Failure> {
    let failed = |e: ReadlineError| Failure::Usage(format!("the terminal cannot be used: {e}"));
    let config = Config::builder().auto_add_history(true).history_ignore_space(true).build();
    let mut editor: Editor<Prompt, DefaultHistory> = Editor::with_config(config).map_err(failed)?;
    let history = std::env::home_dir().map(|home| home.join(".blockyard_history"));
    load(&mut editor, history.as_ref());
    if !session.is_quiet() {
        eprintln!("blockyard {}; \\h for help", env!("CARGO_PKG_VERSION"));
    }
    loop {
        editor.set_helper(Some(Prompt { words: words(session) }));
        let text = match editor.readline("blockyard> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(failed(e)),
        };
        let outcome = match text.trim().trim_end_matches(';') {
            "" => Ok(()),
            "\\q" | "quit" | "exit" => break,
            "\\h" | "\\?" | "help" => {
                eprintln!("{HELP}");
                Ok(())
            }
            "\\d" => session.run_text("SHOW TABLES"),
            "\\f" => {
                eprintln!("{}", session.context().functions().names().join("\n"));
                Ok(())
            }
            _ => session.run_text(&text),
        };
        if let Err(failure) = outcome {
            eprintln!("error: {failure}");
        }
    }
    if let Some(path) = history
        && let Err(e) = editor.save_history(&path)
    {
        eprintln!("the history was not saved to '{}': {e}", path.display());
    }
    Ok(())
}

fn load(editor: &mut Editor<Prompt, DefaultHistory>, path: Option<&PathBuf>) {
    if let Some(path) = path.filter(|p| p.exists())
        && let Err(e) = editor.load_history(path)
    {
        eprintln!("the history in '{}' cannot be read: {e}", path.display());
    }
}

/// Everything that Tab completes.
fn words(session: &Session) -> Vec<String> {
    let mut words: Vec<String> = WORDS.iter().map(|w| (*w).to_owned()).collect();
    let state = session.context().session().state();
    words.extend(state.scalar_functions().keys().cloned());
    words.extend(state.aggregate_functions().keys().cloned());
    words.extend(session.context().functions().names());
    words.extend(crate::BlockyardOptions::keys());
    for catalog in session.context().session().catalog_names() {
        let Some(catalog) = session.context().session().catalog(&catalog) else { continue };
        let schemas = catalog.schema_names().into_iter().filter(|s| s != "information_schema");
        words.extend(schemas.filter_map(|s| catalog.schema(&s)).flat_map(|s| s.table_names()));
    }
    words.sort();
    words.dedup();
    words
}

#[derive(Helper, Highlighter, Hinter)]
struct Prompt {
    words: Vec<String>,
}

impl Completer for Prompt {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let start = line[..position].rfind([' ', '(', ',', '\n', '=']).map_or(0, |i| i + 1);
        let typed = line[start..position].to_lowercase();
        if typed.is_empty() {
            return Ok((start, Vec::new()));
        }
        let matching = self.words.iter().filter(|word| word.to_lowercase().starts_with(&typed));
        Ok((start, matching.map(|w| Pair { display: w.clone(), replacement: w.clone() }).collect()))
    }
}

impl Validator for Prompt {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input().trim();
        let complete = text.is_empty()
            || text.ends_with(';')
            || text.starts_with('\\')
            || matches!(text, "quit" | "exit" | "help");
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}
