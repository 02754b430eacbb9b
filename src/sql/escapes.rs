//! `LIKE .. ESCAPE '!'` becomes one whose escape letter is the backslash, the only one that DataFusion has.
//!
//! ```text
//! a LIKE '50!%' ESCAPE '!'    a LIKE '50\%'
//! ```

use datafusion::sql::sqlparser::ast::{Expr, Value};

/// Writes out an expression. A pattern that is not known yet stays, and fails when it runs.
pub(super) fn write_out(expr: &mut Expr) -> Result<(), String> {
    let (Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. }) = expr else {
        return Ok(());
    };
    let Some(given) = escape_char.as_ref().map(|value| value.value.clone().into_string()) else { return Ok(()) };
    let escape = match given {
        Some(letters) if letters.chars().count() <= 1 => letters.chars().next(),
        _ => return Err("ESCAPE other than one letter".to_owned()),
    };
    let Expr::Value(value) = pattern.as_mut() else { return Ok(()) };
    if let Some(literal) = value.value.clone().into_string() {
        value.value = Value::SingleQuotedString(with_backslashes(&literal, escape)?);
        *escape_char = None;
    }
    Ok(())
}

/// The same pattern with backslashes as escape letters.
fn with_backslashes(pattern: &str, escape: Option<char>) -> Result<String, String> {
    let mut written = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        let (is_escaped, letter) = match Some(letter) == escape {
            false => (letter == '\\', letter),
            true => match letters.next() {
                Some(escaped) => (matches!(escaped, '%' | '_' | '\\'), escaped),
                None => return Err(format!("the pattern '{pattern}', which ends with its escape letter")),
            },
        };
        written.extend(is_escaped.then_some('\\'));
        written.push(letter);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_escaped_stays_so() {
        for (pattern, escape, expected) in [
            ("50!%%", Some('!'), "50\\%%"),
            ("a!!_!_", Some('!'), "a!_\\_"),
            ("a\\b!\\", Some('!'), "a\\\\b\\\\"),
            ("a\\%", None, "a\\\\%"),
            ("a\\%b", Some('\\'), "a\\%b"),
            ("a!b", Some('!'), "ab"),
        ] {
            assert_eq!(with_backslashes(pattern, escape).as_deref(), Ok(expected), "{pattern}");
        }
        assert!(with_backslashes("a!", Some('!')).is_err());
    }
}
