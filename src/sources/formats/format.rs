//! What a format of files is to a read.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use object_store::{ObjectMeta, ObjectStore};

use crate::physical::{FileCounts, RowColumn, ValueRanges};
use crate::sources::files::{FileChoice, FileSchema, Listing, PathPartitioning, PinnedStore, Unit};
use futures::future::BoxFuture;

/// A format of files with what its users say of a read: how the columns are found, how files become tasks, and how a
/// task reads them.
#[async_trait]
pub(crate) trait ReadFormat: Any + Debug + Send + Sync {
    /// Ray's name of the read, as plans show it: `ReadCSV`.
    fn read_name(&self) -> &'static str;

    /// How names of files end that a directory is searched for.
    fn extensions(&self) -> &'static [&'static str];

    /// What is said of the read, as of a read of any format.
    fn options(&self) -> ReadOptions;

    /// Fails where what is said of the read makes no sense.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether rows that cannot be read are tolerated: they are counted, and kept, in one process.
    fn tolerates(&self) -> bool {
        false
    }

    /// Whether a file without a byte is a file without rows, which tells no columns.
    fn may_be_empty(&self) -> bool {
        true
    }

    /// Whether values are told apart by names, so that files may have different columns.
    fn has_names(&self) -> bool {
        true
    }

    /// The type that has room for values of two columns of one name, where neither type has room for the other's.
    fn common_type(&self, _one: &DataType, _other: &DataType) -> Option<DataType> {
        None
    }

    /// Fails where columns are spoken of that no file has.
    fn check_columns(&self, _columns: &Schema) -> Result<()> {
        Ok(())
    }

    /// Whether conditions can tell that parts of files are not needed.
    fn has_statistics(&self) -> bool {
        false
    }

    /// Whether the number of rows is known without reading them.
    fn knows_rows(&self) -> bool {
        false
    }

    /// The columns, as the file `telling` has them.
    async fn columns(&self, session: &dyn Session, listing: &Listing, telling: &ObjectMeta) -> Result<Schema>;

    /// Fails where a file with the columns `found` has come in the place of the one that told those of the table, and
    /// lacks one of them.
    fn check_same_columns(&self, told: &Schema, found: &Schema) -> Result<()>;

    /// How the files are read for a scan. Fails where one of them does not have the columns of the table.
    fn lay_out<'a>(
        &'a self,
        session: &'a dyn Session,
        files: &'a Files,
        scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>>;
}

/// What is said of a read of files of any format.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadOptions {
    /// Only these columns, in this order.
    pub(crate) columns: Option<Vec<String>>,
    /// So many read tasks, as far as the files allow.
    pub(crate) override_num_blocks: Option<usize>,
    /// Whether a column `path` has the path of each row's file.
    pub(crate) include_paths: bool,
    /// Whether columns `row_number` and `row_hash` say which row of its file each is.
    pub(crate) include_row_numbers: bool,
    pub(crate) include_row_hash: bool,
    /// Whose columns the read has.
    pub(crate) schema: FileSchema,
    pub(crate) partitioning: PathPartitioning,
    /// A condition on columns that paths give, which read files fulfil.
    pub(crate) partition_filter: Option<String>,
    /// How names of files end that a directory is searched for, if not as those of the format.
    pub(crate) file_extensions: Option<Vec<String>>,
    pub(crate) ignore_missing_paths: bool,
    pub(crate) choice: FileChoice,
}

impl ReadOptions {
    /// The columns that say which row of its file a row is.
    pub(crate) fn row_columns(&self) -> Vec<(FieldRef, RowColumn)> {
        let number = (self.include_row_numbers, "row_number", RowColumn::Number);
        let hash = (self.include_row_hash, "row_hash", RowColumn::Hash);
        let wanted = [number, hash].into_iter().filter(|(is_wanted, ..)| *is_wanted);
        wanted.map(|(_, name, column)| (Arc::new(Field::new(name, DataType::UInt64, false)), column)).collect()
    }

    /// Names of the columns that are asked for by options of their own.
    pub(crate) fn added_columns(&self) -> Vec<&'static str> {
        let path = self.include_paths.then_some("path");
        let number = self.include_row_numbers.then_some("row_number");
        path.into_iter().chain(number).chain(self.include_row_hash.then_some("row_hash")).collect()
    }
}

/// The files of a table as they are at one moment.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) url: ListingTableUrl,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// With the values of their directories.
    pub(crate) files: Vec<PartitionedFile>,
    pub(crate) compression: FileCompressionType,
    /// The columns that the table found in the files, or that were said.
    pub(crate) columns: SchemaRef,
    pub(crate) is_declared: bool,
    /// The same store, where it answers only for files that are as they were listed.
    pub(crate) pinned: Option<Arc<PinnedStore>>,
}

/// What is asked of a read.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    /// Names of the columns that are read.
    pub(crate) columns: Vec<&'a str>,
    /// What rows that are needed fulfil.
    pub(crate) filters: &'a [Expr],
    /// No more rows are needed.
    pub(crate) limit: Option<usize>,
    /// Whether the number of the first row of each part has to be known.
    pub(crate) numbers_rows: bool,
}

/// How files are read.
pub(crate) struct Layout {
    /// Parts of files that cannot be cut further.
    pub(crate) units: Vec<Unit>,
    /// Rows of all of them, as far as that is known.
    pub(crate) rows: Precision<usize>,
    /// Bytes of their rows.
    pub(crate) bytes: Precision<usize>,
    /// Bytes of a row; 0 where that is not known.
    pub(crate) row_bytes: usize,
    /// What the files say of the values of the columns.
    pub(crate) ranges: ValueRanges,
    /// DataFusion's format, which makes the scan.
    pub(crate) format: Arc<dyn FileFormat>,
    /// How many files were opened, where these are not all.
    pub(crate) opened: Option<usize>,
    /// Row groups that are read, and all; and columns that the table does not have.
    pub(crate) row_groups: (usize, usize),
    pub(crate) left_out: Vec<String>,
    /// What is done to the scan.
    pub(crate) finish: Finish,
}

impl Layout {
    /// What plans show of it: it is of `kept` files of `all`.
    pub(crate) fn counts(&self, kept: usize, all: usize) -> FileCounts {
        let (opened, row_groups, left_out) = (self.opened, self.row_groups, self.left_out.as_slice().into());
        FileCounts { kept, all, opened, row_groups, left_out, ..FileCounts::default() }
    }
}

/// What is done to a scan, which is to read from a store of its own where there is one.
pub(crate) type Finish =
    Box<dyn FnOnce(Arc<dyn ExecutionPlan>, Option<Arc<PinnedStore>>) -> Arc<dyn ExecutionPlan> + Send>;
