//! Names of the files of a write: `part-000000.parquet`, or what `file_name` says.
//!
//! A name is told apart from others by a number, and by the write where several may write to a place at once or again.
//! Names are read, too: an append goes on behind the numbers that are there, an overwrite removes no file that no write
//! has made.

use std::fmt::Write as _;

use datafusion::common::{Result, plan_err};
use object_store::path::{Path, PathPart};
use serde::{Deserialize, Serialize};

use super::endings::without_compression;
use super::write_id::WriteId;

/// Digits of the number in a name if not said otherwise.
const DIGITS: usize = 6;
/// The most that may be asked for.
const MAX_DIGITS: usize = 18;
/// Letters of a template.
const MAX_LENGTH: usize = 128;

/// Whether no part of a path below `directory` begins with a dot or an underscore.
pub(crate) fn is_visible(directory: &Path, path: &Path) -> bool {
    let mut below = path.prefix_match(directory).into_iter().flatten();
    !below.any(|part| is_hidden(part.as_ref()))
}

/// Whether readers pass over what is called so.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// How the files of a write are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileNames(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Piece {
    Text(String),
    /// The number of a file, with at least so many digits.
    Number(usize),
    /// The name of the write.
    Write,
    /// A short stand-in for it.
    WriteDigits,
}

/// What is read in a name.
#[derive(Debug, Clone, Copy, Default)]
struct Found<'a> {
    number: usize,
    /// What tells the write.
    write: Option<&'a str>,
    /// Behind the dot.
    extension: &'a str,
}

impl FileNames {
    /// `part-000000`, and what tells the write apart where that is needed.
    pub(super) fn of_parts(tells_writes_apart: bool) -> Self {
        let mut pieces = vec![Piece::Text("part-".to_owned()), Piece::Number(DIGITS)];
        if tells_writes_apart {
            pieces.extend([Piece::Text(".".to_owned()), Piece::WriteDigits]);
        }
        Self(pieces)
    }

    /// Those of a write. Fails where they would be those of files that are there, or nobody would read them.
    pub(crate) fn of_write(
        template: Option<&str>,
        write: Option<&WriteId>,
        extension: &str,
        is_local: bool,
    ) -> Result<Self> {
        let Some(template) = template else { return Ok(Self::of_parts(write.is_some() || !is_local)) };
        let names = Self::parse(template)?.without_extension(extension);
        let first = names.name(&[0], write.unwrap_or(&WriteId::drawn()), extension);
        if first.starts_with(['.', '_']) {
            return plan_err!(
                "file_name gives '{first}', and files whose names begin with a dot or underscore are not read"
            );
        }
        let tells_apart = names.0.iter().any(|piece| matches!(piece, Piece::Write | Piece::WriteDigits));
        if write.is_some() && !tells_apart {
            return plan_err!(
                "file_name of a write with a write_id has {{write_id}} in it, by which its files are known"
            );
        }
        if !is_local && !tells_apart {
            return plan_err!(
                "files of two writes to an object store could have one name: have {{write_id}} in file_name"
            );
        }
        Ok(names)
    }

    /// Those of a template like `{write_id}-{number:04}`.
    fn parse(template: &str) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some((text, behind)) = rest.split_once('{') {
            let Some((name, behind)) = behind.split_once('}') else {
                return plan_err!("a brace of file_name '{template}' is not closed");
            };
            pieces.extend((!text.is_empty()).then(|| Piece::Text(text.to_owned())));
            pieces.push(match name.split_once(":0").unwrap_or((name, "")) {
                ("write_id", _) if name == "write_id" => Piece::Write,
                ("number", _) if name == "number" => Piece::Number(DIGITS),
                ("number", digits) if digits.parse().is_ok_and(|digits| (1..=MAX_DIGITS).contains(&digits)) => {
                    Piece::Number(digits.parse().unwrap_or(DIGITS))
                }
                _ => {
                    return plan_err!(
                        "file_name knows {{number}}, {{number:06}} and {{write_id}}, not {{{name}}}, in '{template}'"
                    );
                }
            });
            rest = behind;
        }
        pieces.extend((!rest.is_empty()).then(|| Piece::Text(rest.to_owned())));
        // What stores would write in another way is not known again.
        let is_plain = |text: &str| !text.contains('}') && PathPart::from(text).as_ref() == text;
        let is_other = |piece: &Piece| matches!(piece, Piece::Text(text) if !is_plain(text));
        if template.len() > MAX_LENGTH || pieces.iter().any(is_other) {
            return plan_err!(
                "file_name is up to {MAX_LENGTH} plain letters, and names no directory: slashes, brackets and the like are \
                 not among them; got '{template}'"
            );
        }
        if pieces.iter().filter(|piece| matches!(piece, Piece::Number(_))).count() != 1 {
            return plan_err!("all files of a write would be called '{template}'; file_name has one {{number}} in it");
        }
        Ok(Self(pieces))
    }

    /// Without the ending that each name gets.
    fn without_extension(mut self, extension: &str) -> Self {
        if let Some(Piece::Text(last)) = self.0.last_mut()
            && let Some(before) = last.strip_suffix(extension).and_then(|before| before.strip_suffix('.'))
        {
            *last = before.to_owned();
        }
        self
    }

    /// The name of a file. A number of several parts is one of a block in a task.
    pub(super) fn name(&self, number: &[usize], write: &WriteId, extension: &str) -> String {
        let mut name = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Write => name.push_str(write.name()),
                Piece::WriteDigits => name.push_str(write.digits()),
                Piece::Number(digits) => {
                    for (place, part) in number.iter().enumerate() {
                        let before = if place == 0 { "" } else { "_" };
                        // Nothing fails that is written to a string.
                        let _written = write!(name, "{before}{part:0digits$}");
                    }
                }
            }
        }
        name + "." + extension
    }

    /// The number in a name, if it is one of these.
    pub(super) fn number_in(&self, name: &str) -> Option<usize> {
        self.read(name, |_| true).map(|found| found.number)
    }

    /// Whether it is one of these, of any write, and of files that end so.
    pub(super) fn has(&self, name: &str, format: &str) -> bool {
        self.read(name, |found| without_compression(found.extension).0 == format).is_some()
    }

    /// Whether it is one of a write.
    pub(super) fn is_of(&self, name: &str, write: &WriteId) -> bool {
        let is_own = |found: &Found<'_>| found.write.is_some_and(|own| own == write.name() || own == write.digits());
        self.read(name, is_own).is_some()
    }

    fn read<'a>(&self, name: &'a str, accepts: impl Fn(&Found<'a>) -> bool) -> Option<Found<'a>> {
        read(&self.0, name, Found::default(), &accepts)
    }
}

/// What is in a name that is made of these pieces behind what is `found`, so that it is accepted.
fn read<'a>(
    pieces: &[Piece],
    name: &'a str,
    found: Found<'a>,
    accepts: &dyn Fn(&Found<'a>) -> bool,
) -> Option<Found<'a>> {
    let Some((first, rest)) = pieces.split_first() else {
        let found = Found { extension: name.strip_prefix('.')?, ..found };
        return accepts(&found).then_some(found);
    };
    let leading = |is_part: fn(char) -> bool| name.find(|c| !is_part(c)).unwrap_or(name.len());
    // What is behind a piece may begin with what that may have, too.
    let of_write = |least: usize, most: usize| {
        let with = |end| read(rest, &name[end..], Found { write: Some(&name[..end]), ..found }, accepts);
        (least..=most).rev().find_map(with)
    };
    match first {
        Piece::Text(text) => read(rest, name.strip_prefix(text.as_str())?, found, accepts),
        Piece::Number(digits) => {
            let with = |end| {
                let mut parts = name[..end].split('_');
                // As long as it is said, and longer only where it has to be.
                let is_number = |part: &str| part.len() == *digits || part.len() > *digits && !part.starts_with('0');
                let number = parts.next().filter(|part| is_number(part))?.parse().ok()?;
                let found = Found { number, ..found };
                parts.all(is_number).then(|| read(rest, &name[end..], found, accepts)).flatten()
            };
            (1..=leading(|c| c.is_ascii_digit() || c == '_')).rev().find_map(with)
        }
        Piece::Write => of_write(1, leading(WriteId::may_have)),
        Piece::WriteDigits => of_write(WriteId::DRAWN_DIGITS, leading(|c| c.is_ascii_hexdigit())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(template: &str) -> FileNames {
        FileNames::parse(template).unwrap()
    }

    #[test]
    fn names_are_written_and_read() {
        let write = WriteId::new("night-2").unwrap();
        for (names, number, expected) in [
            (FileNames::of_parts(false), &[7][..], "part-000007.csv.gz".to_owned()),
            (FileNames::of_parts(true), &[7, 1], format!("part-000007_000001.{}.csv.gz", write.digits())),
            (names("{write_id}-{number:03}"), &[1234], "night-2-1234.csv.gz".to_owned()),
            (names("a_{number}_{write_id}.csv.gz").without_extension("csv.gz"), &[7], "a_000007_night-2.csv.gz".into()),
            (names("{number:01}_7"), &[10, 3], "10_3_7.csv.gz".to_owned()),
            (names("{write_id}{number}"), &[7], "night-2000007.csv.gz".to_owned()),
            (names("{write_id}_{number}"), &[7, 1], "night-2_000007_000001.csv.gz".to_owned()),
        ] {
            assert_eq!(names.name(number, &write, "csv.gz"), expected);
            if !expected.contains("night-2000007") && !expected.contains("2_000007_") {
                assert_eq!(names.number_in(&expected), Some(number[0]), "{expected}");
            }
            assert!(names.has(&expected, "csv") && !names.has(&expected, "json"), "{expected}");
            let tells_apart = expected.contains("night-2") || expected.contains(write.digits());
            assert_eq!(names.is_of(&expected, &write), tells_apart, "{expected}");
            assert!(!names.is_of(&expected, &WriteId::new("night-3").unwrap()), "{expected}");
        }
        for other in ["part-1", "part-.csv", "part-x.csv", "apart-000001.csv", "part-000001", ""] {
            assert_eq!(FileNames::of_parts(false).number_in(other), None, "{other}");
        }
        for (template, other) in
            [("{number}", "7.csv"), ("{number:01}", "07.csv"), ("{write_id}-{number}", "a-2023.csv")]
        {
            assert!(!names(template).has(other, "csv"), "{other} is of somebody else");
        }
        let write = WriteId::new("2024").unwrap();
        assert!(names("{number}{write_id}").is_of("0000072024.csv", &write));
    }

    #[test]
    fn templates_that_make_no_names_are_errors() {
        for (template, expected) in [
            ("a", "all files of a write would be called 'a'"),
            ("{number}{number}", "has one {number} in it"),
            ("{number", "is not closed"),
            ("{number}}", "plain letters"),
            ("é{number}", "plain letters"),
            ("{nummer}", "not {nummer}, in '{nummer}'"),
            ("{number:0}", "not {number:0}"),
            ("{number:099}", "not {number:099}"),
            ("{write_id:02}-{number}", "not {write_id:02}"),
            ("a/{number}", "plain letters"),
            (&"a".repeat(129), "up to 128 plain letters"),
        ] {
            let error = FileNames::parse(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
        let write = WriteId::new("_a").unwrap();
        for (template, write, is_local, expected) in [
            ("_{number}", None, true, "gives '_000000.csv', and files"),
            ("{write_id}-{number}", Some(&write), true, "gives '_a-000000.csv', and files"),
            ("{number}", Some(&write), true, "has {write_id} in it"),
            ("{number}", None, false, "files of two writes to an object store"),
        ] {
            let names = FileNames::of_write(Some(template), write, "csv", is_local);
            let error = names.unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
        assert!(FileNames::of_write(Some("{number}"), None, "csv", true).is_ok());
    }
}
