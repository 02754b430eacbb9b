//! How names of files end.

use datafusion::common::GetExt;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

/// A name without what says at its end that the file is compressed, and how it is.
pub(crate) fn without_compression(name: &str) -> (&str, FileCompressionType) {
    let known =
        [FileCompressionType::GZIP, FileCompressionType::BZIP2, FileCompressionType::XZ, FileCompressionType::ZSTD];
    let stripped =
        known.into_iter().find_map(|compression| Some((without(name, &compression.get_ext())?, compression)));
    stripped.unwrap_or((name, FileCompressionType::UNCOMPRESSED))
}

/// Whether a name ends as those of a format, compressed or not. `x.csv.bak` is none of CSV: nobody has written it to be
/// read.
pub(crate) fn ends_as(name: &str, format: &str) -> bool {
    let ends = |name: &str| without(name, format).is_some_and(|rest| rest.ends_with('.'));
    ends(name) || ends(without_compression(name).0)
}

fn without<'a>(name: &'a str, ending: &str) -> Option<&'a str> {
    let (rest, last) = name.split_at_checked(name.len().checked_sub(ending.len())?)?;
    last.eq_ignore_ascii_case(ending).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_ending_makes_another_file() {
        for name in ["a.csv", "a.b.CSV", "a.csv.gz", "a.csv.zst", "é.csv", ".csv"] {
            assert!(ends_as(name, "csv"), "{name}");
        }
        for name in ["a.csv.bak", "a.csv.tmp", "a.csv.gz.tmp", "a.csv~", "csv", "acsv", "a.csv.gz2", "a.gz", "", "é"] {
            assert!(!ends_as(name, "csv"), "{name}");
        }
        assert!(ends_as("a.csv.gz", "gz") && ends_as("a.tar.gz", "tar.gz"));
        assert_eq!(without_compression("a.csv.xz"), ("a.csv", FileCompressionType::XZ));
        assert_eq!(without_compression("a.csv"), ("a.csv", FileCompressionType::UNCOMPRESSED));
    }
}
