//! Files as a table with read tasks.
//!
//! The columns come from the first file and stay those of the table. Which files there are, how large, and what their
//! footers say is found out anew for each scan: a table may be a view that lives for long.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::physical_plan::FileScanConfigBuilder;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use object_store::ObjectMeta;

use super::columns::nullable;
use super::hive::{partition_columns, with_values};
use super::listing::{ListedFile, Listing, full_path, list_files};
use super::path_filters::{is_of_paths, with_true_paths};
use super::pinned::{Bodies, PinnedStore};
use super::tasks::{Packed, detect_parallelism, pack};
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::error::{ErrorContext, unknown_name};
use crate::physical::{FileCounts, IntoPlan, ReadExec, ReadMemory};
use crate::sources::formats::{Files, ReadFormat, ReadOptions, Scan};
use crate::store::{BlockStore, Owner};

/// What a read has asked for ahead takes at most this part of the memory limit.
const READ_AHEAD_PART: usize = 16;

/// Files as a table.
pub(crate) struct FileTable {
    format: Arc<dyn ReadFormat>,
    paths: Vec<String>,
    options: ReadOptions,
    table_schema: TableSchema,
    columns: Option<Vec<usize>>,
    schema: SchemaRef,
    /// The file that told the columns, as it was.
    telling: ObjectMeta,
    /// What was read of small files, and is not needed yet.
    bodies: Bodies,
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.format.read_name(), self.paths.join(", "))
    }
}

impl FileTable {
    /// Lists the files and opens the first one.
    pub(crate) async fn open(session: &dyn Session, format: Arc<dyn ReadFormat>, paths: Vec<String>) -> Result<Self> {
        let options = format.options();
        options.override_num_blocks.map_or(Ok(()), |n| check_num_blocks("override_num_blocks", n))?;
        format.check()?;
        let bodies = Bodies::default();
        let listing = list_files(session.runtime_env(), &paths, format.extensions(), &bodies).await?;
        let telling = telling(format.as_ref(), &listing).meta.clone();
        let file_schema = format.columns(session, &listing, &telling).await?;
        // Another file may lack a column, or have nulls where the first has none.
        let file_schema = if listing.may_grow { nullable(&file_schema) } else { file_schema };
        let hive = partition_columns(&listing, options.include_paths)?;
        for field in &hive {
            if file_schema.field_with_name(field.name()).is_ok() {
                return plan_err!("column '{}' is both in the files and in their paths", field.name());
            }
        }
        let table_schema = TableSchema::builder(Arc::new(file_schema)).with_table_partition_cols(hive).build();
        let full = Arc::clone(table_schema.table_schema());
        let resolve = |names: &Vec<String>| resolve_columns(&full, names, format.read_name());
        let columns = options.columns.as_ref().map(resolve).transpose()?;
        // The path was asked for, too.
        let columns = columns.map(|mut columns| {
            let path = full.fields().len().saturating_sub(1);
            if options.include_paths && !columns.contains(&path) {
                columns.push(path);
            }
            columns
        });
        let schema = match &columns {
            Some(columns) => Arc::new(full.project(columns)?),
            None => full,
        };
        Ok(Self { format, paths, options, table_schema, columns, schema, telling, bodies })
    }

    /// The paths, and how they are read, where that is in the format `F`.
    pub(super) fn read_as<F: ReadFormat + Clone>(&self) -> Option<(Vec<String>, F)> {
        let format: &dyn Any = self.format.as_ref();
        format.downcast_ref::<F>().map(|format| (self.paths.clone(), format.clone()))
    }

    /// Paths of the files that are there now.
    pub(crate) fn input_files(
        &self,
        runtime: Arc<RuntimeEnv>,
    ) -> impl Future<Output = Result<Vec<String>>> + Send + 'static {
        let (paths, format) = (self.paths.clone(), Arc::clone(&self.format));
        async move {
            let listing = list_files(&runtime, &paths, format.extensions(), &Bodies::default()).await?;
            Ok(listing.files.iter().map(|f| full_path(&listing.url, &f.meta.location)).collect())
        }
    }

    /// Rows by the footers, where the format has footers.
    pub(crate) async fn count_by_metadata(&self, session: &dyn Session) -> Result<Option<usize>> {
        if !self.format.knows_rows() {
            return Ok(None);
        }
        let files = self.files_now(session).await?;
        let layout = self.format.lay_out(session, &files, &Scan { columns: Vec::new(), limit: None }).await?;
        Ok(match layout.rows {
            Precision::Exact(rows) => Some(rows),
            Precision::Inexact(_) | Precision::Absent => None,
        })
    }

    /// The files as they are now. Fails where they no longer have the columns of the table.
    async fn files_now(&self, session: &dyn Session) -> Result<Files> {
        let listing = list_files(session.runtime_env(), &self.paths, self.format.extensions(), &self.bodies).await?;
        let first = &telling(self.format.as_ref(), &listing).meta;
        if *first != self.telling {
            let found = self.format.columns(session, &listing, first).await?;
            let checked = self.format.check_same_columns(self.table_schema.file_schema(), &found);
            checked.while_doing(|| format!("reading '{}' again", full_path(&listing.url, &first.location)))?;
        }
        Ok(Files {
            files: with_values(&listing, self.table_schema.table_partition_cols(), self.options.include_paths)?,
            compression: listing.compression(),
            columns: Arc::clone(self.table_schema.file_schema()),
            url: listing.url,
            store: listing.store,
            pinned: listing.pinned,
        })
    }
}

/// The store of the files for who reads them all, where a request to it takes long.
fn reading_ahead(session: &dyn Session, files: &Files, options: &BlockyardOptions) -> Result<Option<Arc<PinnedStore>>> {
    let store = session.config().get_extension::<BlockStore>();
    let (Some(pinned), Some(store)) = (&files.pinned, store) else {
        return Ok(files.pinned.clone());
    };
    let owner = Arc::new(Owner::default());
    let max_bytes = options.read_ahead_bytes.bound().min(options.memory_limit.bytes() / READ_AHEAD_PART);
    let metas = files.files.iter().map(|file| file.object_meta.clone());
    Ok(Some(Arc::new(pinned.reading_ahead(metas, store.working_set(&owner, 0)?, max_bytes))))
}

/// The file that tells the columns: one without bytes has none to tell, if the format has such files.
fn telling<'a>(format: &dyn ReadFormat, listing: &'a Listing) -> &'a ListedFile {
    let telling = listing.files.iter().find(|file| file.meta.size > 0 || !format.may_be_empty());
    telling.unwrap_or(&listing.files[0])
}

fn resolve_columns(schema: &Schema, names: &[String], read_name: &str) -> Result<Vec<usize>> {
    let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    let find = |name: &String| {
        let index = known.iter().position(|k| k == name);
        index.ok_or_else(|| unknown_name("column", name, read_name, &known))
    };
    names.iter().map(find).collect()
}

#[async_trait]
impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(session.config_options());
        let mut files = self.files_now(session).await?;
        let all = files.files.len();
        files.files = with_true_paths(session, files.files, self.table_schema.table_partition_cols(), filters)?;
        let columns: Option<Vec<usize>> = match (&self.columns, projection) {
            (Some(columns), Some(projection)) => Some(projection.iter().map(|i| columns[*i]).collect()),
            (columns, projection) => columns.as_ref().or(projection).cloned(),
        };
        let full = self.table_schema.table_schema();
        let read = columns.clone().unwrap_or_else(|| (0..full.fields().len()).collect());
        let names = read.iter().map(|i| full.field(*i).name().as_str()).collect();
        if files.files.is_empty() {
            return Ok(Arc::new(EmptyExec::new(Arc::new(full.project(&read)?))));
        }
        let layout = self.format.lay_out(session, &files, &Scan { columns: names, limit }).await?;
        let mut statistics = Statistics::new_unknown(full);
        statistics.num_rows = layout.rows;
        statistics.total_byte_size = layout.bytes;
        let bytes = layout.units.iter().map(|u| u.bytes).sum();
        let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(bytes, &options));
        let Packed { groups, held_bytes, bytes } = pack(&files.files, layout.units, tasks);
        let memory = ReadMemory { row_bytes: layout.row_bytes, task_bytes: held_bytes, rows_bytes: bytes };
        // Declaring the partitioning keeps DataFusion from splitting the groups again and from stealing between them.
        let pinned = Partitioning::UnknownPartitioning(groups.len());
        let source = layout.format.file_source(self.table_schema.clone());
        let config = FileScanConfigBuilder::new(files.url.object_store(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(columns)?
            .with_limit(limit)
            .with_output_partitioning(Some(pinned))
            .build();
        let scan = layout.format.create_physical_plan(session, config).await?;
        let pinned = match limit {
            // Of a few rows nobody knows how many files they are in.
            Some(_) => files.pinned.clone(),
            None => reading_ahead(session, &files, &options)?,
        };
        let counts = FileCounts { kept: files.files.len(), all, opened: layout.opened };
        let scan = (layout.finish)(scan, pinned);
        let read = ReadExec::new(self.format.read_name(), scan, session.config().target_partitions());
        Ok(read.with_memory(memory).with_ranges(layout.ranges).with_files(counts).into_plan())
    }

    /// Paths say whether what is asked of them is true: nothing has to be asked again.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let columns = self.table_schema.table_partition_cols();
        let answer = |filter: &&Expr| match is_of_paths(filter, columns) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(answer).collect())
    }
}
