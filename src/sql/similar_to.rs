//! `SIMILAR TO` becomes a regular expression of all of the text: DataFusion takes its pattern for one of any part, in
//! which `%` and `_` are letters.
//!
//! ```text
//! a SIMILAR TO 'x%(b|c)_'    a ~ '^(?s:x.*(b|c).)$'
//! ```

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value};

/// Writes out an expression. Fails where the pattern is not known yet.
pub(super) fn write_out(expr: &mut Expr) -> Result<(), String> {
    let Expr::SimilarTo { negated, expr: text, pattern, escape_char } = expr else { return Ok(()) };
    let escape = match escape_char.as_ref().map(|value| value.value.clone().into_string()) {
        None => Some('\\'),
        Some(Some(letters)) if letters.chars().count() <= 1 => letters.chars().next(),
        Some(_) => return Err("ESCAPE other than one letter".to_owned()),
    };
    let literal = match pattern.as_ref() {
        Expr::Value(value) => value.value.clone().into_string(),
        _ => None,
    };
    let Some(literal) = literal else {
        return Err("SIMILAR TO a pattern that is no literal; use regexp_like(text, pattern)".to_owned());
    };
    let pattern = Expr::Value(Value::SingleQuotedString(regular(&literal, escape)?).into());
    let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
    let text = Box::new(Expr::Nested(text.clone()));
    *expr = Expr::Nested(Box::new(Expr::BinaryOp { left: text, op, right: Box::new(pattern) }));
    Ok(())
}

/// The regular expression of a pattern.
fn regular(pattern: &str, escape: Option<char>) -> Result<String, String> {
    let mut regular = String::from("^(?s:");
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if Some(letter) == escape => match letters.next() {
                Some(escaped) => add_letter(&mut regular, escaped),
                None => return Err(format!("the pattern '{pattern}', which ends with its escape letter")),
            },
            '%' => regular.push_str(".*"),
            '_' => regular.push('.'),
            '|' | '*' | '+' | '?' | '(' | ')' | '{' | '}' => regular.push(letter),
            '[' => add_set(&mut regular, &mut letters, escape),
            letter => add_letter(&mut regular, letter),
        }
    }
    regular.push_str(")$");
    Ok(regular)
}

/// The rest of a set of letters, as `[^a-c[:digit:]]`.
fn add_set(regular: &mut String, letters: &mut std::str::Chars<'_>, escape: Option<char>) {
    regular.push('[');
    if letters.as_str().starts_with('^') {
        letters.next();
        regular.push('^');
    }
    // One that stands first is a letter.
    if letters.as_str().starts_with(']') {
        letters.next();
        regular.push_str("\\]");
    }
    while let Some(letter) = letters.next() {
        match letter {
            ']' => break,
            letter if Some(letter) == escape => {
                if let Some(escaped) = letters.next() {
                    add_letter(regular, escaped);
                }
            }
            '[' if letters.as_str().starts_with(':') => {
                let class = letters.as_str().find(":]").map_or(0, |end| end + 2);
                regular.push('[');
                regular.extend(letters.by_ref().take(class));
            }
            '-' => regular.push('-'),
            letter => add_letter(regular, letter),
        }
    }
    regular.push(']');
}

/// A letter that stands for itself.
fn add_letter(regular: &mut String, letter: char) {
    // A backslash before letters and digits means something else.
    if letter.is_ascii_punctuation() {
        regular.push('\\');
    }
    regular.push(letter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_the_whole_text() {
        for (pattern, escape, expected) in [
            ("a%", Some('\\'), "^(?s:a.*)$"),
            ("(b|c)_{2}", Some('\\'), "^(?s:(b|c).{2})$"),
            ("1.5^$", Some('\\'), "^(?s:1\\.5\\^\\$)$"),
            ("50\\%\\d", Some('\\'), "^(?s:50\\%d)$"),
            ("50#%\\", Some('#'), "^(?s:50\\%\\\\)$"),
            ("[^a-c_[:digit:]]+", None, "^(?s:[^a-c\\_[:digit:]]+)$"),
            ("[]%]", None, "^(?s:[\\]\\%])$"),
        ] {
            assert_eq!(regular(pattern, escape).as_deref(), Ok(expected), "{pattern}");
        }
        assert!(regular("a\\", Some('\\')).is_err());
    }
}
