//! Numbers that would be read as less than what is written.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Refuses `1_000` where the dialect reads it as `1 AS _000`.
pub(super) fn check_numbers(tokens: &[TokenWithSpan]) -> Result<()> {
    for pair in tokens.windows(2) {
        if let [number, word] = pair
            && let (Token::Number(digits, _), Token::Word(rest)) = (&number.token, &word.token)
            && number.span.end == word.span.start
            && rest.quote_style.is_none()
            && rest.value.starts_with('_')
        {
            let (line, column) = (number.span.start.line, number.span.start.column);
            let whole = format!("{digits}{}", rest.value);
            return plan_err!("numbers have no underscores: {whole} at line {line}, column {column}");
        }
    }
    Ok(())
}
