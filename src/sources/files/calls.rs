//! `read_parquet`, `read_csv` and the like: the table function of a format, and the options that all formats have.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::LogicalPlan;

use super::table::FileTable;
use crate::call::{AnyTableFunction, Arguments, Field, Parameter, Planning, TableFunction, Values};
use crate::runtime::block_on_io;
use crate::sources::formats::ReadFormat;

/// Makes the options of a format: those of all formats, and its own; and its table function.
macro_rules! read_options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $sql:literal, $about:literal {
            $( $(#[doc = $doc:literal])* pub $field:ident : $type:ty $(= $default:ident)? ),* $(,)?
        }
    ) => {
        $crate::arguments! {
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
                /// `first`: the columns of the first file; others are left out, and missing ones are null. `union`:
                /// those of all files, by name, with types that have room for all values; each file is looked at.
                pub schema: $crate::FileSchema = default,
                /// `hive`: `key=value` directories are columns. `none`: they are not. A list of names: the directories
                /// below the path are values of these columns.
                pub partitioning: $crate::PathPartitioning = default,
                /// Only files of which this condition is true, on columns that paths give: `year > 2020 AND month = 5`.
                pub partition_filter: Option<String>,
                /// Adds a column `row_number`: which row of its file each is, from 0 on.
                pub include_row_numbers: bool = default,
                /// Adds a column `row_hash`, a number that follows from the path and the number of the row.
                pub include_row_hash: bool = default,
                /// How names of files end that directories are searched for, in place of those of the format. An empty
                /// list takes all files.
                pub file_extensions: Option<Vec<String>>,
                /// Paths that are not there are left out, as long as one is.
                pub ignore_missing_paths: bool = default,
                /// `files`: these come in a random order, each with its rows in their order.
                pub shuffle: Option<$crate::FileShuffle>,
                /// About this part of the files, drawn at random; at least one.
                pub sample_files: Option<f64>,
                /// What `shuffle` and `sample_files` follow from: the same seed and files give the same. Drawn if not
                /// said.
                pub seed: Option<u64>,
                /// Another order of `shuffle` for each number, with the same seed.
                pub epoch: Option<u64>,
            }
        }

        impl $crate::sources::FormatOptions for $name {
            const NAME: &'static str = $sql;
            const ABOUT: &'static str = $about;
        }

        impl From<$name> for $crate::FileRead {
            fn from(options: $name) -> Self {
                Self::new(options)
            }
        }

        impl $name {
            /// What is said of a read of any format.
            fn read_options(&self) -> $crate::sources::ReadOptions {
                let (shuffle, sample) = (self.shuffle, self.sample_files);
                $crate::sources::ReadOptions {
                    columns: self.columns.clone(),
                    override_num_blocks: self.override_num_blocks,
                    include_paths: self.include_paths,
                    include_row_numbers: self.include_row_numbers,
                    include_row_hash: self.include_row_hash,
                    schema: self.schema,
                    partitioning: self.partitioning.clone(),
                    partition_filter: self.partition_filter.clone(),
                    file_extensions: self.file_extensions.clone(),
                    ignore_missing_paths: self.ignore_missing_paths,
                    choice: $crate::sources::FileChoice { shuffle, seed: self.seed, epoch: self.epoch, sample },
                }
            }
        }
    };
}
pub(crate) use read_options;

/// The options of a format that a table function takes.
pub(crate) trait FormatOptions: ReadFormat + Arguments + Field + Clone + Default {
    /// The table function.
    const NAME: &'static str;
    /// What that does.
    const ABOUT: &'static str;
}

/// A format of files with what is said of a read of it: what `ReadCsvOptions` and the like become.
#[derive(Debug, Clone)]
pub struct FileRead(pub(crate) Arc<dyn ReadFormat>);

impl FileRead {
    pub(crate) fn new(format: impl ReadFormat) -> Self {
        Self(Arc::new(format))
    }
}

/// A format in the list of all.
pub(crate) struct Format {
    /// With the options that it has where nothing is said.
    pub(crate) as_it_is: Arc<dyn ReadFormat>,
    /// Its table function.
    pub(crate) function: Arc<dyn AnyTableFunction>,
    /// The format with options that are said.
    pub(crate) from_values: fn(&Values) -> Result<Arc<dyn ReadFormat>>,
}

impl Format {
    /// The format whose options are an `O`.
    pub(crate) fn of<O: FormatOptions>() -> Self {
        Self {
            as_it_is: Arc::new(O::default()),
            function: Arc::new(ReadFunction::<O>::new()),
            from_values: |values| Ok(Arc::new(O::from_values(values)?)),
        }
    }

    /// The names that it has behind STORED AS: that of the function, and the endings of files.
    pub(crate) fn stored_as(&self) -> impl Iterator<Item = &'static str> + use<> {
        let name = self.function.name().trim_start_matches("read_");
        std::iter::once(name).chain(self.as_it_is.extensions().iter().copied())
    }
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
pub(crate) struct ReadFunction<O>(PhantomData<O>);

impl<O> ReadFunction<O> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<O: FormatOptions> TableFunction for ReadFunction<O> {
    type Arguments = ReadArguments<O>;

    fn name(&self) -> &'static str {
        O::NAME
    }

    fn about(&self) -> &'static str {
        O::ABOUT
    }

    fn plan(&self, arguments: ReadArguments<O>, planning: Planning<'_>) -> Result<LogicalPlan> {
        let (session, ReadArguments { paths, options }) = (planning.session.clone(), arguments);
        let table = block_on_io(async move { FileTable::open(&session, Arc::new(options), paths).await })?;
        planning.scan(Arc::new(table))
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, ReadArguments<O>)>> {
        let LogicalPlan::TableScan(scan) = plan else {
            return Ok(None);
        };
        let Ok(provider) = source_as_provider(&scan.source) else {
            return Ok(None);
        };
        let read = provider.downcast_ref::<FileTable>().and_then(FileTable::read_as::<O>);
        Ok(read.map(|(paths, options)| (Vec::new(), ReadArguments { paths, options })))
    }
}
