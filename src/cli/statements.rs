//! Text that is typed or read, before anything runs: which file it is from, and whether a statement is complete.

use std::io::Read;
use std::path::Path;

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::failure::Failure;

/// Statements and where they are from.
#[derive(Debug, Clone)]
pub(super) struct Script {
    /// What messages call the source, unless there is only one place that it can be.
    pub(super) source: Option<String>,
    pub(super) text: String,
}

impl Script {
    /// Statements of the command line or the prompt.
    pub(super) fn typed(text: &str) -> Self {
        Self { source: None, text: text.to_owned() }
    }

    /// The statements in a file; `-` is standard input.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let failed = |e| Failure::Usage(format!("cannot read '{}': {e}", file.display()));
        if file.as_os_str() != "-" {
            let source = Some(format!("'{}'", file.display()));
            return Ok(Self { source, text: std::fs::read_to_string(file).map_err(failed)? });
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(failed)?;
        Ok(Self { source: Some("standard input".to_owned()), text })
    }
}

/// Whether a text ends with a `;`, comments aside, or says nothing at all.
pub(super) fn is_complete(text: &str) -> bool {
    match Tokenizer::new(&GenericDialect {}, text).tokenize() {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|token| !matches!(token, Token::Whitespace(_) | Token::EOF));
            last.is_none_or(|token| *token == Token::SemiColon)
        }
        // A text or a comment in several lines has not ended.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_with_a_semicolon() {
        for (text, complete) in [
            ("", true),
            ("SELECT 1;", true),
            ("SELECT 1; -- one", true),
            ("SELECT 1; /* one\n two */  \n", true),
            ("-- nothing", true),
            ("SELECT 1", false),
            ("SELECT ';", false),
            ("SELECT ';'", false),
            ("SELECT 1; /* one", false),
            ("SELECT 1 -- ;", false),
            ("SELECT 1; SELECT 2", false),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
    }
}
