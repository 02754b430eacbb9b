//! How deep a statement nests: chains like `a OR b OR c ..` become trees as deep as they are long, and all that walks
//! through a tree needs a stack as deep as that.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// Operators of one chain, and what encloses it. The stacks of the tool are made for this.
const MAX_DEPTH: usize = 4_000;

/// An error for a statement that nests deeper than planning can go.
pub(super) fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut levels = vec![Level::default()];
    for token in tokens {
        match &token.token {
            Token::SemiColon => levels = vec![Level::default()],
            Token::LParen | Token::LBracket => levels.push(Level { nested: 1, ..Level::default() }),
            Token::RParen | Token::RBracket if levels.len() > 1 => {
                levels.pop();
            }
            other => {
                if let Some(level) = levels.last_mut() {
                    level.add(other);
                }
            }
        }
        let depth: usize = match token.token {
            Token::Whitespace(_) => continue,
            _ => levels.iter().map(Level::depth).sum(),
        };
        if depth > MAX_DEPTH {
            let line = token.span.start.line;
            return plan_err!(
                "the statement has a chain of more than {MAX_DEPTH} operators (line {line}); write a list, like x IN (1, 2, 3), \
                 or a join with a table of values"
            );
        }
    }
    Ok(())
}

/// What stands between two parentheses.
#[derive(Debug, Default)]
struct Level {
    /// 1 between parentheses.
    nested: usize,
    /// Queries and tables that are put together.
    relations: usize,
    /// OR since the last comma, AND since the last of those, and other operators since the last comparison or one of
    /// those.
    or: usize,
    and: usize,
    operators: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.nested + self.relations + self.or + self.and + self.operators
    }

    fn add(&mut self, token: &Token) {
        match token {
            Token::Comma => (self.or, self.and, self.operators) = (0, 0, 0),
            Token::Eq | Token::Neq | Token::Lt | Token::Gt | Token::LtEq | Token::GtEq => self.operators = 1,
            Token::Word(Word { value, quote_style: None, .. }) => {
                match value.to_ascii_uppercase().as_str() {
                    "OR" => (self.or, self.and, self.operators) = (self.or + 1, 0, 0),
                    "AND" => (self.and, self.operators) = (self.and + 1, 0),
                    "NOT" | "LIKE" | "ILIKE" | "IS" | "DIV" => self.operators += 1,
                    "UNION" | "EXCEPT" | "INTERSECT" | "JOIN" => self.relations += 1,
                    _ => {}
                };
            }
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::Mod
            | Token::StringConcat
            | Token::Pipe
            | Token::Ampersand
            | Token::Caret
            | Token::DoubleColon
            | Token::Arrow
            | Token::LongArrow => self.operators += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    fn is_too_deep(text: &str) -> bool {
        check_depth(&Tokenizer::new(&GenericDialect {}, text).tokenize_with_location().unwrap()).is_err()
    }

    #[test]
    fn long_chains_are_refused_and_long_lists_are_not() {
        let times = |text: &str| text.repeat(MAX_DEPTH + 1);
        assert!(is_too_deep(&format!("SELECT 1{}", times(" + 1"))));
        assert!(is_too_deep(&format!("SELECT * FROM t WHERE a = 1{}", times(" OR a = 2"))));
        assert!(is_too_deep(&format!("SELECT * FROM t WHERE a = 1{}", times(" AND a + 1 = 2"))));
        assert!(!is_too_deep(&format!("SELECT a = 1{}", " OR a + 1 - 2 = 2 * 3 AND b = 2".repeat(MAX_DEPTH / 2))));
        assert!(is_too_deep(&format!("SELECT 1{}", times(" UNION ALL SELECT 1, 2"))));
        assert!(is_too_deep(&format!("SELECT {}1", times("f("))));
        assert!(!is_too_deep(&format!("SELECT 1 IN (0{})", times(", 1 + 1"))));
        assert!(!is_too_deep(&format!("INSERT INTO t VALUES (0){}", times(", (-1)"))));
        assert!(!is_too_deep(&times("SELECT 1 + 1;")));
        assert!(!is_too_deep(&format!("SELECT '{}'", times(" + 1"))));
    }
}
