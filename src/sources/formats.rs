//! The formats of files that can be read, and how they are read.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::config::CsvOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::logical_expr::{cast, lit};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::unparser::Unparser;

use crate::sinks::extensions_of;

/// A format that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values, with a header line unless said otherwise.
    Csv,
    /// One JSON object per line, or an array of them.
    Json,
}

impl FileKind {
    /// Ray's name of the read.
    pub(super) fn read_name(self) -> &'static str {
        match self {
            Self::Parquet => "ReadParquet",
            Self::Csv => "ReadCSV",
            Self::Json => "ReadJSON",
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.extensions()[0]
    }

    /// What a path names, by how it or the files in the directory end, or in `key=value` directories below it.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let all = [Self::Parquet, Self::Csv, Self::Json];
        let of_name = |name: &str| {
            let name = name.to_lowercase();
            let ends = |e: &str| name.split('.').skip(1).any(|part| part == e);
            all.into_iter().find(|kind| kind.extensions().iter().any(|e| ends(e)))
        };
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        of_name(last).or_else(|| {
            let mut names: Vec<String> = std::fs::read_dir(path)
                .ok()?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            let below = |name: &String| name.contains('=').then(|| Self::of_path(&format!("{path}/{name}/"))).flatten();
            names.iter().find_map(|name| of_name(name)).or_else(|| names.iter().find_map(below))
        })
    }

    /// How names of files end that a directory is searched for.
    pub(super) fn extensions(self) -> &'static [&'static str] {
        extensions_of(match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::Json => "json",
        })
    }

    /// DataFusion's format. JSON tells its columns by as many rows as `inferring` says.
    pub(super) fn format(
        self,
        session: &dyn Session,
        options: &ReadOptions,
        compression: FileCompressionType,
        is_array: bool,
        inferring: Option<usize>,
    ) -> Arc<dyn FileFormat> {
        match self {
            Self::Parquet => Arc::new(ParquetFormat::default().with_options(session.default_table_options().parquet)),
            Self::Csv => Arc::new(csv_format(session, options, compression)),
            Self::Json => {
                let mut defaults = session.default_table_options().json;
                defaults.schema_infer_max_rec = defaults.schema_infer_max_rec.or(inferring);
                let format = JsonFormat::default().with_options(defaults).with_file_compression_type(compression);
                Arc::new(format.with_newline_delimited(!is_array))
            }
        }
    }
}

/// DataFusion's format of CSV.
pub(super) fn csv_format(session: &dyn Session, options: &ReadOptions, compression: FileCompressionType) -> CsvFormat {
    let defaults: CsvOptions = session.default_table_options().csv;
    let format = CsvFormat::default().with_options(defaults).with_file_compression_type(compression);
    let format = format.with_has_header(options.has_header.unwrap_or(true));
    let format = format.with_newlines_in_values(options.newlines_in_values);
    match options.delimiter {
        Some(delimiter) => format.with_delimiter(delimiter),
        None => format,
    }
}

/// How files are read. Start from the default and set what differs.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Only these columns, in this order. Others are not read.
    pub columns: Option<Vec<String>>,
    /// This many read tasks, as far as files and row groups allow, instead of as many as the size asks for.
    pub override_num_blocks: Option<usize>,
    /// Adds a column `path` with the path of each row's file.
    pub include_paths: bool,
    /// CSV: whether the first line has the names of the columns. Default: true.
    pub has_header: Option<bool>,
    /// CSV: what separates values. Default: a comma.
    pub delimiter: Option<u8>,
    /// CSV: values in quotes may have line breaks. A file is then read by one task. Default: false, which reads such
    /// values wrongly when a file is cut into tasks.
    pub newlines_in_values: bool,
    /// CSV and JSON: types of columns, in place of those that the first rows seem to have. A key of JSON need not be in
    /// any of them.
    pub types: Vec<(String, DataType)>,
}

impl ReadOptions {
    /// The table function that reads `paths` so in SQL.
    pub(super) fn sql_call(&self, kind: FileKind, paths: &[String]) -> Result<String> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let list = |texts: &[String]| {
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            format!("[{}]", texts.join(", "))
        };
        let Self { columns, override_num_blocks, include_paths, has_header, delimiter, newlines_in_values, types } =
            self;
        let mut call = format!("read_{}({}", kind.name(), list(paths));
        call.extend(columns.as_ref().map(|c| format!(", columns => {}", list(c))));
        call.extend(override_num_blocks.map(|n| format!(", override_num_blocks => {n}")));
        call.extend(include_paths.then(|| ", include_paths => true".to_owned()));
        call.extend(has_header.map(|h| format!(", has_header => {h}")));
        call.extend(delimiter.map(|d| format!(", delimiter => '{}'", char::from(d))));
        call.extend(newlines_in_values.then(|| ", newlines_in_values => true".to_owned()));
        if !types.is_empty() {
            let types: Vec<String> = types
                .iter()
                .map(|(name, kind)| Ok(format!("{} {}", quoted_name(name), sql_type(kind)?)))
                .collect::<Result<_>>()?;
            call.push_str(&format!(", types => {}", quoted(&types.join(", "))));
        }
        Ok(call + ")")
    }
}

fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A type as SQL writes it.
fn sql_type(kind: &DataType) -> Result<String> {
    match Unparser::default().expr_to_sql(&cast(lit(ScalarValue::Null), kind.clone()))? {
        ast::Expr::Cast { data_type, .. } => Ok(data_type.to_string()),
        other => Ok(other.to_string()),
    }
}
