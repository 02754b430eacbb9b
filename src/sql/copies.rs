//! `COPY .. TO 'x.csv.gz'` is compressed as the name says, as it is read.

use std::path::Path;

use datafusion::common::GetExt;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::sql::parser::CopyToStatement;
use datafusion::sql::sqlparser::ast::Value;

/// Says the format and the compression that follow from the name of a file, where they are not said.
pub(super) fn name_compression(copy: &mut CopyToStatement) {
    let known =
        [FileCompressionType::GZIP, FileCompressionType::BZIP2, FileCompressionType::XZ, FileCompressionType::ZSTD];
    let found = known.into_iter().find_map(|known| Some((copy.target.strip_suffix(&known.get_ext())?, known)));
    let Some((name, compression)) = found else { return };
    if copy.stored_as.is_none() {
        copy.stored_as = Path::new(name).extension().and_then(|format| format.to_str()).map(str::to_owned);
    }
    // The compression of Parquet is one of its pages.
    let is_parquet = copy.stored_as.as_ref().is_none_or(|format| format.eq_ignore_ascii_case("parquet"));
    let is_said = |key: &str| key.rsplit('.').next().is_some_and(|key| key.eq_ignore_ascii_case("compression"));
    if !is_parquet && !copy.options.iter().any(|(key, _)| is_said(key)) {
        let compression = Value::SingleQuotedString(compression.get_variant().to_string());
        copy.options.push(("format.compression".to_owned(), compression));
    }
}
