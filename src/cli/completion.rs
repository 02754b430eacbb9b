//! What Tab completes at the prompt: keywords, functions, options, tables.

use rustyline::completion::{Completer, Pair};
use rustyline::{Context, Helper, Highlighter, Hinter, Validator};

use super::session::Session;

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
    "INSERT INTO",
    "DELETE FROM",
    "UPDATE",
    "TRUNCATE TABLE",
    "EXPLAIN",
    "EXPLAIN ANALYZE",
    "SET blockyard.",
    "SHOW",
    "RESET",
    "TABLESAMPLE BERNOULLI",
];

/// Everything that Tab completes.
pub(super) fn words(session: &Session) -> Vec<String> {
    let mut words: Vec<String> = WORDS.iter().map(|w| (*w).to_owned()).collect();
    let state = session.context().session().state();
    words.extend(state.scalar_functions().keys().cloned());
    words.extend(state.aggregate_functions().keys().cloned());
    words.extend(session.context().table_functions().names().into_iter().map(|name| format!("{name}(")));
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

/// Completes words at the prompt.
#[derive(Helper, Highlighter, Hinter, Validator)]
pub(super) struct Prompt {
    words: Vec<String>,
}

impl Prompt {
    pub(super) fn new(words: Vec<String>) -> Self {
        Self { words }
    }
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
