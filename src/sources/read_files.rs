//! `read_parquet`, `read_csv`, `read_json`: what each format can be told, and the table functions.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::LogicalPlan;

use super::FileTable;
use super::formats::{FileKind, ReadOptions};
use crate::arguments;
use crate::call::{Arguments, Field, Parameter, Planning, TableFunction, Values};
use crate::runtime::block_on_io;

/// Makes the options of a format: those of all formats, and its own.
macro_rules! read_options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $kind:ident, $sql:literal, $about:literal {
            $( $(#[doc = $doc:literal])* pub $field:ident : $type:ty $(= $default:ident)? ),* $(,)?
        }
    ) => {
        arguments! {
            $(#[$meta])*
            #[derive(Debug, Clone, Default)]
            pub struct $name {
                /// Only these columns, in this order. Others are not read.
                pub columns: Option<Vec<String>>,
                /// This many read tasks, as far as files and row groups allow, instead of as many as the size asks for.
                pub override_num_blocks: Option<usize>,
                /// Adds a column `path` with the path of each row's file.
                pub include_paths: bool = default,
                $( $(#[doc = $doc])* pub $field: $type $(= $default)?, )*
            }
        }

        impl From<$name> for ReadOptions {
            fn from(options: $name) -> Self {
                let $name { columns, override_num_blocks, include_paths, $( $field ),* } = options;
                let read = Self { columns, override_num_blocks, include_paths, ..Self::default() };
                $( let read = Self { $field, ..read }; )*
                read
            }
        }

        impl From<ReadOptions> for $name {
            fn from(options: ReadOptions) -> Self {
                let ReadOptions { columns, override_num_blocks, include_paths, $( $field, )* .. } = options;
                Self { columns, override_num_blocks, include_paths, $( $field ),* }
            }
        }

        impl FormatOptions for $name {
            const KIND: FileKind = FileKind::$kind;
            const NAME: &'static str = $sql;
            const ABOUT: &'static str = $about;
        }
    };
}

read_options! {
    /// How Parquet files are read. Start from the default and set what differs.
    pub struct ReadParquetOptions: Parquet, "read_parquet", "The rows of Parquet files." {}
}

read_options! {
    /// How CSV files are read. Start from the default and set what differs.
    pub struct ReadCsvOptions: Csv, "read_csv", "The rows of CSV files." {
        /// Whether the first line has the names of the columns; true if not said.
        pub has_header: Option<bool>,
        /// What separates values; a comma if not said.
        pub delimiter: Option<char>,
        /// Whether values in quotes may have line breaks. A file is then read by one task. Otherwise such values are
        /// read wrongly when a file is cut into tasks.
        pub newlines_in_values: bool = default,
        /// Types of columns, in place of those that the first rows seem to have.
        pub types: Vec<(String, DataType)> = default,
    }
}

read_options! {
    /// How JSON files are read: one object per line, or one array of objects per file. Start from the default and set
    /// what differs.
    pub struct ReadJsonOptions: Json, "read_json", "The rows of files of JSON objects, one per line or in an array." {
        /// Types of columns, in place of those that the first rows seem to have. A key need not be in any of them.
        pub types: Vec<(String, DataType)> = default,
    }
}

/// The options of a format.
pub(crate) trait FormatOptions:
    Arguments + Field + Into<ReadOptions> + From<ReadOptions> + Debug + Send + Sync + 'static
{
    /// The format.
    const KIND: FileKind;
    /// The table function.
    const NAME: &'static str;
    /// What that does.
    const ABOUT: &'static str;
}

/// The arguments of a table function that reads files.
#[derive(Debug)]
pub(crate) struct ReadArguments<O> {
    paths: Vec<String>,
    options: O,
}

impl<O: FormatOptions> Arguments for ReadArguments<O> {
    fn parameters() -> Vec<Parameter> {
        let paths = "Files, directories, globs or URLs.";
        [Vec::<String>::parameters("paths", paths).0, <O as Arguments>::parameters()].concat()
    }

    fn from_values(values: &Values) -> Result<Self> {
        Ok(Self { paths: Field::read("paths", values)?, options: O::from_values(values)? })
    }

    fn to_values(&self, values: &mut Values) -> Result<()> {
        self.paths.write("paths", values)?;
        self.options.to_values(values)
    }
}

/// `read_parquet(paths, ..)` and the like.
#[derive(Debug)]
pub(crate) struct ReadFiles<O>(PhantomData<O>);

impl<O> ReadFiles<O> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<O: FormatOptions> TableFunction for ReadFiles<O> {
    type Arguments = ReadArguments<O>;

    fn name(&self) -> &'static str {
        O::NAME
    }

    fn about(&self) -> &'static str {
        O::ABOUT
    }

    fn plan(&self, arguments: ReadArguments<O>, planning: Planning<'_>) -> Result<LogicalPlan> {
        let (session, options) = (planning.session.clone(), arguments.options.into());
        let table = block_on_io(async move { FileTable::open(&session, O::KIND, &arguments.paths, &options).await })?;
        planning.scan(Arc::new(table))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ReadArguments<O>)>> {
        let LogicalPlan::TableScan(scan) = plan else {
            return Ok(None);
        };
        let Ok(provider) = source_as_provider(&scan.source) else {
            return Ok(None);
        };
        let files = provider.downcast_ref::<FileTable>().and_then(|files| files.read_as(O::KIND));
        Ok(files.map(|(paths, options)| (Vec::new(), ReadArguments { paths, options: options.into() })))
    }
}
