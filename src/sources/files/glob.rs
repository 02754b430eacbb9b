//! Paths with wildcards, as a shell reads them.
//!
//! `*` and `?` mean characters of one name, `[a-c]` one of some characters, `{a,b}` one of some texts, and `**` any
//! number of directories.

use datafusion::common::{Result, plan_datafusion_err};
use glob::{MatchOptions, Pattern};

/// `*` ends at a slash.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// So many patterns may come out of the braces of one.
const MAX_PATTERNS: usize = 1024;

/// A pattern for paths below a directory.
#[derive(Debug)]
pub(super) struct Glob {
    /// One for each choice among the texts in braces.
    patterns: Vec<Pattern>,
    one_level: bool,
}

/// The directory above the first name with wildcards, and what follows it; nothing where there are none.
pub(super) fn split_glob(path: &str) -> Option<(&str, &str)> {
    // A `?` in a URL of the web begins its query.
    let wildcards: &[char] = if path.starts_with("http://") || path.starts_with("https://") {
        &['*', '[', '{']
    } else {
        &['*', '?', '[', '{']
    };
    let first = path.find(wildcards)?;
    Some(path.split_at(path[..first].rfind('/').map_or(0, |slash| slash + 1)))
}

impl Glob {
    /// The pattern `pattern` of the path `path`. One that ends in a slash means the directories of this name.
    pub(super) fn parse(path: &str, pattern: &str) -> Result<Self> {
        let pattern = pattern.trim_end_matches('/');
        let wrong = |e: &dyn std::fmt::Display| plan_datafusion_err!("'{path}' is not a pattern for paths: {e}");
        let expanded =
            without_braces(pattern).ok_or_else(|| wrong(&format!("it means more than {MAX_PATTERNS} others")))?;
        let patterns = expanded.iter().map(|one| Pattern::new(one)).collect::<Result<_, _>>().map_err(|e| wrong(&e))?;
        Ok(Self { patterns, one_level: !pattern.contains('/') && !pattern.contains("**") })
    }

    /// Whether only names right below the directory can match.
    pub(super) fn is_of_one_level(&self) -> bool {
        self.one_level
    }

    /// Whether the path of a file is meant.
    pub(super) fn matches(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches_with(path, OPTIONS))
    }

    /// Whether one of the directories above a file is meant.
    pub(super) fn matches_directory_of(&self, path: &str) -> bool {
        path.match_indices('/').any(|(end, _)| self.matches(&path[..end]))
    }
}

/// The patterns that one with `{a,b}` stands for. A brace without a partner or a comma is itself. `None` where they are
/// too many.
fn without_braces(pattern: &str) -> Option<Vec<String>> {
    let mut open = vec![pattern.to_owned()];
    let mut closed = Vec::new();
    while let Some(pattern) = open.pop() {
        match first_choice(&pattern) {
            Some((begin, end, choices)) => {
                let (before, after) = (&pattern[..begin], &pattern[end..]);
                open.extend(choices.iter().rev().map(|choice| format!("{before}{choice}{after}")));
            }
            None => closed.push(pattern),
        }
        if open.len() + closed.len() > MAX_PATTERNS {
            return None;
        }
    }
    Some(closed)
}

/// The first braces with a comma in them: where they begin and end, and what they choose among.
fn first_choice(pattern: &str) -> Option<(usize, usize, Vec<&str>)> {
    for (begin, _) in pattern.match_indices('{') {
        let (mut depth, mut commas) = (0, Vec::new());
        for (place, byte) in pattern.bytes().enumerate().skip(begin) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b',' if depth == 1 => commas.push(place),
                _ => {}
            }
            if depth == 0 {
                if commas.is_empty() {
                    break;
                }
                let ends = commas.iter().copied().chain([place]);
                let begins = [begin].into_iter().chain(commas.iter().copied());
                return Some((begin, place + 1, begins.zip(ends).map(|(b, e)| &pattern[b + 1..e]).collect()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_mean_what_they_mean_in_a_shell() {
        for (pattern, matched, others) in [
            ("*.parquet", &["a.parquet", "=.parquet"][..], &["a.csv", "sub/b.parquet", "a.parquet.tmp"][..]),
            ("?.csv", &["a.csv"], &["ab.csv", "/.csv", ".csv"]),
            ("[a-c][!x].csv", &["ay.csv"], &["ax.csv", "dy.csv"]),
            ("{a,b*}.csv", &["a.csv", "bcd.csv"], &["ab.csv", "c.csv"]),
            ("{a,b{1,2},}{x}.csv", &["a{x}.csv", "b2{x}.csv", "{x}.csv"], &["b.csv", "b3{x}.csv", "ax.csv"]),
            ("year=*/month=*/*.csv", &["year=1/month=2/f.csv"], &["year=1/f.csv", "year=1/day=2/f.csv"]),
            ("**/*.csv", &["a.csv", "x/a.csv", "x/y/a.csv"], &["x/a.parquet"]),
            ("x/**", &["x/a.csv", "x/y/a.csv"], &["y/a.csv"]),
        ] {
            let glob = Glob::parse(pattern, pattern).unwrap();
            matched.iter().for_each(|path| assert!(glob.matches(path), "{pattern} {path}"));
            others.iter().for_each(|path| assert!(!glob.matches(path), "{pattern} {path}"));
        }
        assert!(Glob::parse("x", "y=*/").unwrap().matches_directory_of("y=1/z/f.csv"));
        let error = Glob::parse("dir/[a.csv", "[a.csv").unwrap_err().to_string();
        assert!(error.contains("'dir/[a.csv' is not a pattern"), "{error}");
    }

    #[test]
    fn the_directory_above_the_first_wildcard_is_listed() {
        assert_eq!(split_glob("a/b/*.csv"), Some(("a/b/", "*.csv")));
        assert_eq!(split_glob("a*/b/c.csv"), Some(("", "a*/b/c.csv")));
        assert_eq!(split_glob("s3://bucket/y=?/f"), Some(("s3://bucket/", "y=?/f")));
        assert_eq!(split_glob("https://host/f.csv?key=1"), None);
    }
}
