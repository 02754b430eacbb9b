//! Files as a table with read tasks.
//!
//! The columns come from the first file and stay those of the table. Which files there are, how large, and what their
//! footers say is found out anew for each scan: a table may be a view that lives for long. Only what was listed in a
//! far store since a statement began is good for its first scan.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, Result, Statistics, not_impl_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::physical_plan::FileScanConfigBuilder;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use object_store::ObjectMeta;
use parking_lot::Mutex;

use super::choice::FileSchema;
use super::columns::nullable;
use super::directories::DirectoryFilters;
use super::hive::{partition_columns, with_values};
use super::listing::{Listing, Lookup, Missing, full_path};
use super::path_filters::{is_of_paths, with_true_paths};
use super::pinned::{Bodies, PinnedStore};
use super::tasks::{Packed, detect_parallelism, pack};
use super::told::{columns_of_all, first_columns, telling};
use crate::boxed::scan_by;
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::error::{ErrorContext, unknown_name};
use crate::physical::{FileCounts, IntoPlan, ReadExec, ReadMemory, RowColumn, RowColumns};
use crate::sources::formats::{Files, ReadFormat, ReadOptions, Scan};
use crate::store::{BlockStore, Owner};
use futures::FutureExt;
use futures::future::BoxFuture;

/// What a read has asked for ahead takes at most this part of the memory limit.
const READ_AHEAD_PART: usize = 16;

/// Files as a table.
pub(crate) struct FileTable {
    format: Arc<dyn ReadFormat>,
    paths: Vec<String>,
    options: ReadOptions,
    table_schema: TableSchema,
    /// All columns: those of the files, of their paths, and of the numbers of rows.
    full: SchemaRef,
    /// Which of them the table has, where these are not all.
    columns: Option<Vec<usize>>,
    schema: SchemaRef,
    /// The file that told the columns, as it was; none where they were said.
    telling: Option<ObjectMeta>,
    /// What was read of small files, and is not needed yet.
    bodies: Bodies,
    /// The files that the columns were found by, and when these were listed, until the first scan.
    listed: Mutex<Option<(SystemTime, Listing)>>,
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.format.read_name(), self.paths.join(", "))
    }
}

impl FileTable {
    /// Lists the files and opens the first one, or all where the columns are those of all.
    pub(crate) async fn open(session: &dyn Session, format: Arc<dyn ReadFormat>, paths: Vec<String>) -> Result<Self> {
        let options = checked_options(format.as_ref())?;
        let (bodies, now) = (Bodies::default(), SystemTime::now());
        let lookup = lookup(format.as_ref(), &options, &bodies);
        let listing = lookup.files(session.runtime_env(), &paths).await?;
        let (telling, file_schema) = match options.schema {
            FileSchema::First => first_columns(session, format.as_ref(), &listing).await?,
            FileSchema::Union => {
                let telling = telling(format.as_ref(), &listing).meta.clone();
                (telling, columns_of_all(session, format.as_ref(), &listing).await?)
            }
        };
        format.check_columns(&file_schema)?;
        // Another file may lack a column, or have nulls where the first has none.
        let may_lack = listing.may_grow || options.schema == FileSchema::Union;
        let file_schema = if may_lack { nullable(&file_schema) } else { file_schema };
        let of_paths = partition_columns(&listing)?;
        let table = Self::with_columns(session, format, paths, options, file_schema, of_paths)?;
        // Another listing of a local directory is not worth to miss what was written meanwhile.
        let listed = Mutex::new(listing.pinned.is_some().then_some((now, listing)));
        Ok(Self { telling: Some(telling), bodies, listed, ..table })
    }

    /// Files with these columns, and others that directories give: none of them has to be there yet.
    pub(super) fn declared(
        session: &dyn Session,
        format: Arc<dyn ReadFormat>,
        paths: Vec<String>,
        columns: Schema,
        of_paths: Vec<FieldRef>,
    ) -> Result<Self> {
        let mut options = checked_options(format.as_ref())?;
        // Who says the columns of a place means all that is there.
        options.file_extensions.get_or_insert_default();
        format.check_columns(&columns)?;
        Self::with_columns(session, format, paths, options, nullable(&columns), of_paths)
    }

    fn with_columns(
        session: &dyn Session,
        format: Arc<dyn ReadFormat>,
        paths: Vec<String>,
        options: ReadOptions,
        file_schema: Schema,
        mut of_paths: Vec<FieldRef>,
    ) -> Result<Self> {
        if options.include_paths {
            of_paths.push(Arc::new(Field::new("path", DataType::Utf8, false)));
        }
        let rows = options.row_columns();
        for field in of_paths.iter().chain(rows.iter().map(|(field, _)| field)) {
            if file_schema.field_with_name(field.name()).is_ok() {
                return plan_err!("column '{}' is both in the files and in what is added to them", field.name());
            }
        }
        let table_schema = TableSchema::builder(Arc::new(file_schema)).with_table_partition_cols(of_paths).build();
        let full = table_schema.table_schema().fields().iter().cloned();
        let full = full.chain(rows.into_iter().map(|(field, _)| field)).collect::<Vec<FieldRef>>();
        let full = Arc::new(Schema::new_with_metadata(full, table_schema.table_schema().metadata().clone()));
        let columns = options.columns.as_ref().map(|names| resolve_columns(&full, names, format.read_name()));
        // The path was asked for, too, and so were the numbers of rows.
        let columns = columns.transpose()?.map(|mut columns| {
            let added = options.added_columns();
            let added = (0..full.fields().len()).filter(|place| added.contains(&full.field(*place).name().as_str()));
            added.for_each(|place| {
                if !columns.contains(&place) {
                    columns.push(place)
                }
            });
            columns
        });
        let schema = match &columns {
            Some(columns) => Arc::new(full.project(columns)?),
            None => Arc::clone(&full),
        };
        let (telling, bodies, listed) = (None, Bodies::default(), Mutex::new(None));
        let table = Self { format, paths, options, table_schema, full, columns, schema, telling, bodies, listed };
        table.partition_filter(session)?;
        Ok(table)
    }

    /// The columns that directories give, from the outermost on.
    pub(super) fn directory_columns(&self) -> &[FieldRef] {
        let columns = self.table_schema.table_partition_cols();
        &columns[..columns.len() - usize::from(self.options.include_paths)]
    }

    /// Whether the columns are those of the files and their directories, and no others.
    pub(super) fn has_all_columns(&self) -> bool {
        self.columns.is_none() && self.options.added_columns().is_empty()
    }

    /// The condition that files have to fulfil by their paths.
    fn partition_filter(&self, session: &dyn Session) -> Result<Option<Expr>> {
        let Some(text) = &self.options.partition_filter else { return Ok(None) };
        let columns = self.table_schema.table_partition_cols();
        let schema = DFSchema::try_from(Schema::new(columns.clone()))?;
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return not_impl_err!("partition_filter in a session that is not DataFusion's own");
        };
        let filter = state.create_logical_expr(text, &schema);
        let filter = filter.while_doing(|| format!("reading partition_filter '{text}'"))?;
        match is_of_paths(&filter, columns) && !filter.column_refs().is_empty() {
            true => Ok(Some(filter)),
            false => plan_err!("partition_filter '{text}' must be a condition on columns that paths give"),
        }
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
        let (paths, format, options) = (self.paths.clone(), Arc::clone(&self.format), self.options.clone());
        let missing = self.missing();
        async move {
            let bodies = Bodies::default();
            let lookup = Lookup { missing, ..lookup(format.as_ref(), &options, &bodies) };
            let listing = lookup.files(&runtime, &paths).await?;
            Ok(listing.files.iter().map(|f| full_path(&listing.url, &f.meta.location)).collect())
        }
    }

    /// The columns that are read of all.
    fn read_columns(&self, projection: Option<&Vec<usize>>) -> Vec<usize> {
        let columns: Option<Vec<usize>> = match (&self.columns, projection) {
            (Some(columns), Some(projection)) => Some(projection.iter().map(|i| columns[*i]).collect()),
            (columns, projection) => columns.as_ref().or(projection).cloned(),
        };
        columns.unwrap_or_else(|| (0..self.full.fields().len()).collect())
    }

    /// How columns of the table come about: those that the read adds, if there are any, and those of its scan.
    fn split(&self, columns: &[usize]) -> Result<(Option<RowColumns>, Vec<usize>)> {
        let of_files = self.table_schema.table_schema().fields().len();
        let added = self.options.row_columns();
        let mut of_scan = Vec::new();
        let mut kind = |place: &usize| match place.checked_sub(of_files) {
            Some(number) => added[number].1,
            None => {
                of_scan.push(*place);
                RowColumn::OfScan(of_scan.len() - 1)
            }
        };
        let kinds: Vec<RowColumn> = columns.iter().map(&mut kind).collect();
        let schema = Arc::new(self.full.project(columns)?);
        let adds = columns.iter().any(|place| *place >= of_files);
        Ok((adds.then_some(RowColumns { columns: kinds, schema }), of_scan))
    }

    /// Rows by the footers, where the format has footers.
    pub(crate) async fn count_by_metadata(&self, session: &dyn Session) -> Result<Option<usize>> {
        if !self.format.knows_rows() {
            return Ok(None);
        }
        let FilesNow { files, .. } = self.files_now(session, &[]).await?;
        if files.files.is_empty() {
            return Ok(Some(0));
        }
        let scan = Scan { columns: Vec::new(), filters: &[], limit: None, numbers_rows: false };
        let layout = self.format.lay_out(session, &files, &scan).await?;
        Ok(match layout.rows {
            Precision::Exact(rows) => Some(rows),
            Precision::Inexact(_) | Precision::Absent => None,
        })
    }

    /// Whether paths may mean no files.
    fn missing(&self) -> Missing {
        match self.telling {
            None => Missing::IsEmpty,
            Some(_) if self.options.ignore_missing_paths => Missing::IsPassedOver,
            Some(_) => Missing::Fails,
        }
    }

    /// What was listed since the statement of this session began.
    fn listed_since(&self, session: &dyn Session) -> Option<Listing> {
        let began: SystemTime = session.execution_props().query_execution_start_time?.into();
        // Once: the same statement may run again.
        self.listed.lock().take().filter(|(listed, _)| began <= *listed).map(|(_, listing)| listing)
    }

    /// The files as they are now, for which these conditions are true. Fails where they no longer have the columns of
    /// the table.
    async fn files_now(&self, session: &dyn Session, filters: &[Expr]) -> Result<FilesNow> {
        let (runtime, options) = (session.runtime_env(), &self.options);
        let columns = self.table_schema.table_partition_cols();
        let required: Vec<Expr> = self.partition_filter(session)?.into_iter().collect();
        let listing = match self.listed_since(session) {
            Some(listing) => listing,
            None => {
                let filters = [required.as_slice(), filters].concat();
                let (columns, partitioning) = (self.directory_columns(), &options.partitioning);
                let directories = DirectoryFilters { session, columns, partitioning, filters: &filters };
                // What is drawn is drawn of all.
                let directories = Some(directories).filter(|_| options.choice.sample.is_none());
                let lookup = lookup(self.format.as_ref(), options, &self.bodies);
                Lookup { directories, missing: self.missing(), ..lookup }.files(runtime, &self.paths).await?
            }
        };
        let first = || &telling(self.format.as_ref(), &listing).meta;
        if let Some(told) = self.telling.as_ref().filter(|_| listing.skipped == 0)
            && first() != told
            && options.schema == FileSchema::First
            && let (first, found) = first_columns(session, self.format.as_ref(), &listing).await?
            && first != *told
        {
            let checked = self.format.check_same_columns(self.table_schema.file_schema(), &found);
            checked.while_doing(|| format!("reading '{}' again", full_path(&listing.url, &first.location)))?;
        }
        let files = with_values(&listing, columns, options.include_paths, self.telling.is_none())?;
        let all = files.len();
        let files = with_true_paths(session, files, columns, &required)?;
        let files = options.choice.of(files, |file| file.object_meta.location.to_string());
        let files = with_true_paths(session, files, columns, filters)?;
        let files = Files {
            files,
            compression: listing.compression(),
            columns: Arc::clone(self.table_schema.file_schema()),
            is_declared: self.telling.is_none(),
            url: listing.url,
            store: listing.store,
            pinned: listing.pinned,
        };
        Ok(FilesNow { files, all, skipped: listing.skipped })
    }
}

/// The files of a scan.
struct FilesNow {
    files: Files,
    /// How many were listed.
    all: usize,
    /// Directories that were not listed.
    skipped: usize,
}

/// What is said of a read of any format, if it makes sense.
fn checked_options(format: &dyn ReadFormat) -> Result<ReadOptions> {
    let mut options = format.options();
    options.override_num_blocks.map_or(Ok(()), |n| check_num_blocks("override_num_blocks", n))?;
    options.choice = options.choice.with_seed()?;
    format.check()?;
    Ok(options)
}

/// What files are looked for.
fn lookup<'a>(format: &dyn ReadFormat, options: &'a ReadOptions, bodies: &'a Bodies) -> Lookup<'a> {
    Lookup {
        extensions: options.file_extensions.as_deref(),
        of_format: format.extensions(),
        partitioning: &options.partitioning,
        missing: if options.ignore_missing_paths { Missing::IsPassedOver } else { Missing::Fails },
        bodies,
        directories: None,
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

fn resolve_columns(schema: &Schema, names: &[String], read_name: &str) -> Result<Vec<usize>> {
    let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    let find = |name: &String| {
        let index = known.iter().position(|k| k == name);
        index.ok_or_else(|| unknown_name("column", name, read_name, &known))
    };
    names.iter().map(find).collect()
}

impl FileTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        session: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            let options = BlockyardOptions::from_config(session.config_options());
            let path_columns = self.table_schema.table_partition_cols();
            let (of_paths, of_rows) = filters.iter().cloned().partition::<Vec<_>, _>(|f| is_of_paths(f, path_columns));
            let FilesNow { files, all, skipped } = self.files_now(session, &of_paths).await?;
            let full = &self.full;
            let read = self.read_columns(projection);
            if files.files.is_empty() {
                return Ok(Arc::new(EmptyExec::new(Arc::new(full.project(&read)?))) as Arc<dyn ExecutionPlan>);
            }
            let (rows, of_scan) = self.split(&read)?;
            let names = of_scan.iter().map(|i| full.field(*i).name().as_str()).collect();
            let scan = Scan { columns: names, filters: &of_rows, limit, numbers_rows: rows.is_some() };
            let layout = self.format.lay_out(session, &files, &scan).await?;
            let counts = FileCounts { skipped, ..layout.counts(files.files.len(), all) };
            let of_files = self.table_schema.table_schema().fields().len();
            let mut statistics = Statistics::new_unknown(self.table_schema.table_schema());
            statistics.num_rows = layout.rows;
            statistics.total_byte_size = layout.bytes;
            let bytes = layout.units.iter().map(|u| u.bytes).sum();
            let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(bytes, &options));
            let Packed { groups, held_bytes, bytes } = pack(&files.files, layout.units, tasks);
            let memory = ReadMemory { row_bytes: layout.row_bytes, task_bytes: held_bytes, rows_bytes: bytes };
            // Declaring the partitioning keeps DataFusion from splitting the groups again and from stealing between
            // them.
            let pinned = Partitioning::UnknownPartitioning(groups.len());
            let source = layout.format.file_source(self.table_schema.clone());
            let config = FileScanConfigBuilder::new(files.url.object_store(), source)
                .with_file_groups(groups)
                .with_statistics(statistics)
                .with_projection_indices(Some(of_scan).filter(|columns| !columns.iter().copied().eq(0..of_files)))?
                .with_limit(limit)
                .with_output_partitioning(Some(pinned))
                .build();
            let scan = layout.format.create_physical_plan(session, config).await?;
            let pinned = match limit {
                // Of a few rows nobody knows how many files they are in.
                Some(_) => files.pinned.clone(),
                None => reading_ahead(session, &files, &options)?,
            };
            let scan = (layout.finish)(scan, pinned);
            let read = ReadExec::new(self.format.read_name(), scan, session.config().target_partitions());
            let call = (!self.format.tolerates()).then(|| format!("{:?}", self.format));
            let read = read.with_memory(memory).with_ranges(layout.ranges).with_files(counts).with_call(call);
            let read = read.with_chosen_number(self.options.override_num_blocks.is_some());
            Ok(match rows {
                Some(rows) => read.with_row_columns(rows).into_plan(),
                None => read.into_plan(),
            })
        }
        .boxed()
    }
}

impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    scan_by!(Self::scan_rows);

    /// Paths say whether what is asked of them is true: nothing has to be asked again. Statistics say what cannot be.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let columns = self.table_schema.table_partition_cols();
        let answer = |filter: &&Expr| match is_of_paths(filter, columns) {
            true => TableProviderFilterPushDown::Exact,
            false if self.format.has_statistics() && !filter.is_volatile() => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(answer).collect())
    }
}
