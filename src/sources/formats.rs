//! The formats of files that can be read, and how they are read.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::{Result, plan_err};
use datafusion::config::CsvOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;

use crate::call::Argument;
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
    match options.delimiter().unwrap_or_default() {
        Some(delimiter) => format.with_delimiter(delimiter),
        None => format,
    }
}

/// What is said of a read of files: what all formats take, and what some do.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadOptions {
    pub(super) columns: Option<Vec<String>>,
    pub(super) override_num_blocks: Option<usize>,
    pub(super) include_paths: bool,
    pub(super) has_header: Option<bool>,
    pub(super) delimiter: Option<char>,
    pub(super) newlines_in_values: bool,
    pub(super) types: Vec<(String, DataType)>,
}

impl ReadOptions {
    /// The byte that separates the values of CSV. Fails where that would be several.
    pub(super) fn delimiter(&self) -> Result<Option<u8>> {
        match self.delimiter {
            Some(delimiter) if !delimiter.is_ascii() => {
                plan_err!("delimiter must be {}, got '{delimiter}'", char::WHAT)
            }
            delimiter => Ok(delimiter.map(|delimiter| delimiter as u8)),
        }
    }
}
