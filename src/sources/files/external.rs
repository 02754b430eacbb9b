//! `CREATE EXTERNAL TABLE`: the files of a place as a table, which INSERT adds files to.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{Constraints, Result, SchemaExt, not_impl_err, plan_datafusion_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileOutputMode, FileSinkConfig};
use datafusion::datasource::provider::DefaultTableFactory;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{CreateExternalTable, Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;

use super::calls::Format;
use super::table::FileTable;
use crate::boxed::{boxed, scan_by};
use crate::call::{Argument, Value, Values};
use crate::sources::formats::formats;
use futures::FutureExt;
use futures::future::BoxFuture;

/// Makes tables of the formats that can be read. Others, and those without an end, are DataFusion's.
#[derive(Debug)]
pub(crate) struct ExternalTables;

impl ExternalTables {
    /// By the names behind STORED AS.
    pub(crate) fn factories() -> impl Iterator<Item = (String, Arc<dyn TableProviderFactory>)> {
        let names = formats().into_iter().flat_map(|format| format.stored_as());
        names.map(|name| (name.to_uppercase(), Arc::new(Self) as _))
    }
}

impl ExternalTables {
    /// The table of a command.
    fn table<'a>(
        &'a self,
        session: &'a dyn Session,
        command: &'a CreateExternalTable,
    ) -> BoxFuture<'a, Result<Arc<dyn TableProvider>>> {
        async move {
            let name = command.file_type.to_lowercase();
            let read = formats().into_iter().find(|format| format.stored_as().any(|known| known == name));
            let Some(read) = read.filter(|_| !command.unbounded) else {
                return DefaultTableFactory::new().create(session, command).await;
            };
            let said = Said::of(session, command, &read)?;
            let format = (read.from_values)(&said.of_read)?;
            let paths: Vec<String> = command.locations.iter().map(|location| directory_of(location)).collect();
            let files = match command.schema.fields().is_empty() {
                true => FileTable::open(session, format, paths.clone()).await?,
                false => {
                    let (columns, of_paths) = declared_columns(command)?;
                    FileTable::declared(session, format, paths.clone(), columns, of_paths)?
                }
            };
            let keys: Vec<_> = files.directory_columns().iter().map(|field| field.name().clone()).collect();
            if !command.table_partition_cols.is_empty() && command.table_partition_cols != keys {
                return plan_err!(
                    "PARTITIONED BY ({}) does not fit the directories, which give ({})",
                    command.table_partition_cols.join(", "),
                    keys.join(", ")
                );
            }
            Ok(Arc::new(ExternalTable {
                files,
                written: said.written,
                only_read: said.only_read,
                file_type: command.file_type.clone(),
                paths,
                constraints: command.constraints.clone(),
                defaults: command.column_defaults.clone(),
                definition: command.definition.clone(),
            }) as Arc<dyn TableProvider>)
        }
        .boxed()
    }
}

impl TableProviderFactory for ExternalTables {
    boxed! {
        fn create<'b, 'c>(
            &self,
            session: &'b dyn Session,
            command: &'c CreateExternalTable,
        ) -> Result<Arc<dyn TableProvider>> = Self::table;
    }
}

/// Options of what is written that are none of the read, where it would then find other values, or other rows.
const NOT_READ: &[&str] = &[
    "date_format",
    "datetime_format",
    "double_quote",
    "null_regex",
    "null_value",
    "terminator",
    "time_format",
    "timestamp_format",
    "timestamp_tz_format",
];
/// Options of the read by which nothing is written.
const NOT_WRITTEN: &[&str] = &["comment", "escape"];

/// What OPTIONS say.
struct Said {
    /// Of the read.
    of_read: Values,
    /// Of what is written, in the format as it is written, if it can be.
    written: Option<Arc<dyn FileFormat>>,
    /// An option because of which nothing can be written.
    only_read: Option<&'static str>,
}

impl Said {
    /// Each option is one of the function that reads the format, or one of COPY, or both.
    fn of(session: &dyn Session, command: &CreateExternalTable, read: &Format) -> Result<Self> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return not_impl_err!("CREATE EXTERNAL TABLE in a session that is not DataFusion's own");
        };
        let main_name = read.as_it_is.extensions().first().copied().unwrap_or_default();
        let writer = state.get_file_format_factory(&command.file_type);
        let writer = writer.or_else(|| state.get_file_format_factory(main_name));
        let (parameters, mut of_read) = (read.function.parameters(), Values::new(read.function.name()));
        let mut of_write = HashMap::new();
        for (key, value) in &command.options {
            let name = key.strip_prefix("format.").unwrap_or(key);
            let parameter = parameters.iter().find(|parameter| parameter.name == name);
            if let Some(parameter) = parameter {
                of_read.put(parameter.name, value_of(parameter.what, value));
            }
            let option = HashMap::from([(key.clone(), value.clone())]);
            let writes = || writer.as_ref().is_some_and(|writer| writer.create(state, &option).is_ok());
            check_option(name)?;
            if parameter.is_none() && writer.is_none() {
                return plan_err!("{} has no option '{name}'", read.function.name());
            }
            if parameter.is_none() || writes() {
                of_write.extend(option);
            }
        }
        let written = writer.map(|writer| writer.create(state, &of_write)).transpose()?;
        let only_read = NOT_WRITTEN.iter().copied().find(|name| of_read.get(name).is_some());
        Ok(Self { of_read, written, only_read })
    }
}

/// Fails where an option makes no sense for a table that is written and read.
fn check_option(name: &str) -> Result<()> {
    if NOT_READ.contains(&name) {
        return plan_err!("what is written with the option '{name}' would not be read as it was; COPY takes it");
    }
    match name {
        "write_id" => plan_err!("write_id is the name of one write, and a table is written several times"),
        _ => Ok(()),
    }
}

/// The value of an argument that takes `what`, as OPTIONS have it: a string.
fn value_of(what: &str, value: &str) -> Value {
    let numbers = [u64::WHAT, f64::WHAT];
    match value.to_lowercase().as_str() {
        "true" if what == bool::WHAT => Value::Flag(true),
        "false" if what == bool::WHAT => Value::Flag(false),
        _ if numbers.contains(&what) => Value::Number(value.to_owned()),
        _ => Value::Text(value.to_owned()),
    }
}

/// A place that is not a file is a directory, unless its name has an ending.
fn directory_of(location: &str) -> String {
    let last = location.rsplit('/').next().unwrap_or(location);
    let is_directory =
        !last.is_empty() && !last.contains(['.', '*', '?', '[']) && !std::path::Path::new(location).is_file();
    if is_directory { format!("{location}/") } else { location.to_owned() }
}

/// The columns of the files, and those of their directories.
fn declared_columns(command: &CreateExternalTable) -> Result<(Schema, Vec<FieldRef>)> {
    let schema = command.schema.inner();
    let keys = &command.table_partition_cols;
    let key = |name: &String| match schema.fields().find(name) {
        Some((_, field)) => Ok(Arc::new(field.as_ref().clone().with_nullable(true))),
        None => Err(plan_datafusion_err!("PARTITIONED BY ({name}) is none of the columns that are declared")),
    };
    let of_paths = keys.iter().map(key).collect::<Result<_>>()?;
    let of_files: Vec<FieldRef> =
        schema.fields().iter().filter(|field| !keys.contains(field.name())).cloned().collect();
    Ok((Schema::new_with_metadata(of_files, schema.metadata().clone()), of_paths))
}

/// The table that a provider is, if that is one of files.
pub(crate) fn files_of(provider: &dyn TableProvider) -> Option<&FileTable> {
    let external = || provider.downcast_ref::<ExternalTable>().map(|table| &table.files);
    provider.downcast_ref::<FileTable>().or_else(external)
}

/// The files of a place.
#[derive(Debug)]
struct ExternalTable {
    files: FileTable,
    /// How files are added.
    written: Option<Arc<dyn FileFormat>>,
    only_read: Option<&'static str>,
    file_type: String,
    paths: Vec<String>,
    constraints: Constraints,
    defaults: HashMap<String, Expr>,
    definition: Option<String>,
}

impl ExternalTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        session: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        self.files.scan(session, projection, filters, limit)
    }

    /// The insertion of rows.
    fn insert_rows<'a>(
        &'a self,
        session: &'a dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            self.schema().logically_equivalent_names_and_types(&input.schema())?;
            let Some(written) = &self.written else {
                return not_impl_err!("INSERT into a table STORED AS {}, which is only read", self.file_type);
            };
            if let Some(name) = self.only_read {
                return not_impl_err!("INSERT into a table with the option '{name}', by which nothing is written");
            }
            let url = match self.paths.as_slice() {
                [path] => ListingTableUrl::parse(path)?,
                paths => return not_impl_err!("INSERT into a table of {} places", paths.len()),
            };
            if !url.is_collection() || url.get_glob().is_some() {
                return not_impl_err!(
                    "INSERT into '{}', which is not a directory; with a '/' at its end it is one",
                    self.paths[0]
                );
            }
            if !self.files.has_all_columns() {
                return not_impl_err!(
                    "INSERT into a table with other columns than its files and their directories have"
                );
            }
            let keys =
                self.files.directory_columns().iter().map(|field| (field.name().clone(), field.data_type().clone()));
            let conf = FileSinkConfig {
                original_url: self.paths[0].clone(),
                object_store_url: url.object_store(),
                table_paths: vec![url],
                file_group: Vec::new().into(),
                output_schema: self.schema(),
                table_partition_cols: keys.collect::<Vec<(String, DataType)>>(),
                insert_op,
                keep_partition_by_columns: session.config_options().execution.keep_partition_by_columns,
                file_extension: match written.compression_type() {
                    Some(compression) => written.get_ext_with_compression(&compression)?,
                    None => written.get_ext(),
                },
                file_output_mode: FileOutputMode::Directory,
            };
            written.create_writer_physical_plan(input, session, conf, None).await
        }
        .boxed()
    }
}

impl TableProvider for ExternalTable {
    fn schema(&self) -> SchemaRef {
        self.files.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.definition.as_deref()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.defaults.get(column)
    }

    scan_by!(Self::scan_rows);

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.files.supports_filters_pushdown(filters)
    }

    boxed! {
        fn insert_into<'b>(
            &self,
            session: &'b dyn Session,
            input: Arc<dyn ExecutionPlan>,
            insert_op: InsertOp,
        ) -> Result<Arc<dyn ExecutionPlan>> = Self::insert_rows;
    }
}
