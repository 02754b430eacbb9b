//! Filters of one column, asked of the values of dictionaries instead of those of rows.
//!
//! A Parquet file has most columns as codes into a dictionary of their values. Whether a filter holds is found out once
//! for each value, and of the rows only the codes are looked at:
//!
//! ```text
//! ship_mode IN ('AIR', 'SHIP')     7 values  -> 2 pass      1,000,000 codes -> 285,000 rows
//! key among those of the join      a value for every fourth row: a fourth of the look-ups
//! ```
//!
//! Of the rows that pass, the columns that have codes are looked up too: first those that filters of several columns
//! need, which leave fewer rows, then the others. The decoder gives what has no codes. A filter that was asked of all
//! row groups of a task is not evaluated by the decoder again. Where a row group has no codes, or not for all of its
//! pages, or a filter fails for one of the values, it is.

mod chunk;
mod codes;
mod column;
mod conditions;
mod supply;
mod values;

use std::collections::HashMap;
use std::ops::BitAnd;
use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, BooleanBufferBuilder};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetFileReaderFactory, ParquetSource};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::parquet::arrow::arrow_reader::RowSelection;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::conjunction;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};

use self::chunk::{CodedChunk, CodedRows, FileReader};
use self::column::FileColumns;
use self::conditions::{Conditions, over_outputs};
pub(super) use self::supply::Refusals;
use self::supply::Supply;
use super::files::rows_of_files;
use super::footer::{open, with_pages};
use super::pruning::{Left, LeftFile};

/// Those rows of a task that pass what its dictionaries could be asked.
pub(super) struct Narrowed {
    pub(super) batches: SendableRecordBatchStream,
    /// The rows of its row groups, whether any of them pass or none.
    pub(super) rows: usize,
}

/// What is left of a task of a scan whose decoder evaluates filters.
pub(super) struct LateTask<'a> {
    /// What the scan says of itself, without its files.
    pub(super) config: &'a FileScanConfig,
    pub(super) source: &'a ParquetSource,
    pub(super) schema: SchemaRef,
    pub(super) partition: usize,
    pub(super) left: &'a Left,
}

impl LateTask<'_> {
    /// Its rows, where dictionaries can be asked before. At most `max_bytes` of columns are taken from dictionaries.
    pub(super) async fn narrowed(
        &self,
        refusals: &Refusals,
        max_bytes: usize,
        context: Arc<TaskContext>,
    ) -> Result<Option<Narrowed>> {
        let (Some(readers), Some(filter), Some(projection)) =
            (self.source.parquet_file_reader_factory(), self.source.filter(), self.source.projection())
        else {
            return Ok(None);
        };
        let table = Arc::clone(self.source.table_schema().table_schema());
        let conditions = Conditions::of(&filter, &table)?;
        if conditions.columns.is_empty() {
            return Ok(None);
        }
        let supply = Supply::of(projection, refusals, max_bytes).filter(|_| self.config.limit.is_none());
        let mut asked = Asked { table, conditions, supply, groups: 0, rows: 0, pruned: 0, bytes: 0 };
        let mut files = Vec::with_capacity(self.left.files.len());
        for file in &self.left.files {
            files.push(asked.narrow(file, self.partition, readers).await);
        }
        if asked.groups == 0 {
            return Ok(None);
        }
        asked.tell(self.source.metrics(), self.partition);
        let (rows, filters) = (asked.rows, asked.conditions.left());
        let batches = match asked.supply.filter(|supply| supply.fits(filters.is_empty(), &self.schema)) {
            None => rows_of_files(self.config, Arc::new(self.filtered(filters)), files, 0, context)?,
            Some(supply) => {
                let supplied = supply.finish(&self.schema);
                match supplied.missing() {
                    missing if missing.is_empty() => {
                        let filter = over_outputs(filters, projection)?;
                        supplied.alone(filter, context.session_config().batch_size())
                    }
                    missing => supplied.beside(rows_of_files(self.config, self.columns(&missing)?, files, 0, context)?),
                }
            }
        };
        Ok(Some(Narrowed { batches, rows }))
    }

    /// The source of its rows whose decoder evaluates these filters.
    fn filtered(&self, filters: Vec<Arc<dyn PhysicalExpr>>) -> ParquetSource {
        match (filters.is_empty(), self.left.is_known) {
            (false, _) => self.source.with_predicate(conjunction(filters)),
            (true, true) => without_pushdown(self.source.with_predicate(lit(true))),
            // The filter tells which row groups to leave out, still.
            (true, false) => without_pushdown(self.source.clone()),
        }
    }

    /// The source of some of the columns that it gives, of exactly the rows that were chosen: nobody leaves out others.
    fn columns(&self, columns: &[usize]) -> Result<Arc<dyn FileSource>> {
        let columns = ProjectionExprs::from_indices(columns, &self.schema);
        let source = without_pushdown(self.source.with_predicate(lit(true)));
        match source.try_pushdown_projection(&columns)? {
            Some(source) => Ok(source),
            None => internal_err!("a scan of Parquet files cannot give fewer columns"),
        }
    }
}

fn without_pushdown(source: ParquetSource) -> ParquetSource {
    let mut options = source.table_parquet_options().clone();
    options.global.pushdown_filters = false;
    source.with_table_parquet_options(options)
}

/// What asking has found out.
struct Asked<'a> {
    table: SchemaRef,
    conditions: Conditions,
    supply: Option<Supply<'a>>,
    /// Row groups of which something is known.
    groups: usize,
    rows: usize,
    pruned: usize,
    bytes: usize,
}

impl Asked<'_> {
    /// The file with the rows that pass, or as it is where nothing could be asked.
    async fn narrow(
        &mut self,
        left: &LeftFile,
        partition: usize,
        readers: &Arc<dyn ParquetFileReaderFactory>,
    ) -> PartitionedFile {
        let file = left.file();
        let access = match file.extension::<ParquetAccessPlan>() {
            // A piece of a row group.
            Some(_) => None,
            // Where it fails the decoder does so too, and tells what happened.
            None => self.access(left, partition, readers).await.ok(),
        };
        match access {
            Some(access) => file.clone().with_extension(access),
            None => {
                self.conditions.are_left();
                self.supply = None;
                left.to_file()
            }
        }
    }

    async fn access(
        &mut self,
        left: &LeftFile,
        partition: usize,
        readers: &Arc<dyn ParquetFileReaderFactory>,
    ) -> Result<ParquetAccessPlan> {
        let (mut reader, metadata) = open(readers, partition, left.file()).await?;
        // Kept, and so also there for the decoder.
        let metadata = with_pages(reader.as_mut(), metadata).await?;
        let of_conditions = self.conditions.columns.iter().map(|condition| condition.column);
        let of_wide = self.conditions.wide.iter().flat_map(|condition| condition.columns.iter().copied());
        let wanted = of_conditions.chain(of_wide).chain(self.supply.iter().flat_map(Supply::table_columns));
        let columns = FileColumns::of(&metadata)?.get_all(&self.table, wanted);
        let mut file_reader = FileReader { reader: reader.as_mut(), metadata: &metadata, columns };
        let mut access = ParquetAccessPlan::new_none(metadata.num_row_groups());
        for (number, group) in metadata.row_groups().iter().enumerate().filter(|(n, group)| left.has(*n, group)) {
            access.set(number, self.row_group(&mut file_reader, number, group.num_rows().max(0) as usize).await);
        }
        Ok(access)
    }

    /// How a row group is read.
    async fn row_group(&mut self, file: &mut FileReader<'_>, number: usize, rows: usize) -> RowGroupAccess {
        let mut opened = HashMap::new();
        let passing = self.passing_rows(file, number, &mut opened).await;
        self.rows += rows;
        let Some(passing) = passing else {
            self.supply = None;
            self.conditions.wide.iter_mut().for_each(|condition| condition.is_complete = false);
            return RowGroupAccess::Scan;
        };
        let mut looked_up = HashMap::new();
        let passing = self.passing_together(file, number, passing, &mut opened, &mut looked_up).await;
        let passed = passing.count_set_bits();
        self.groups += 1;
        self.pruned += rows - passed;
        if passed == 0 {
            return RowGroupAccess::Skip;
        }
        if let Some(supply) = self.supply.take() {
            self.supply = supply.take_in(file, number, opened, looked_up, &passing).await;
        }
        match passed == rows {
            true => RowGroupAccess::Scan,
            false => RowGroupAccess::Selection(RowSelection::from_filters(&[BooleanArray::new(passing, None)])),
        }
    }

    /// The rows of a row group for which all conditions hold that could be asked; `None` if none could. Chunks that are
    /// looked into again are in `opened`.
    async fn passing_rows(
        &mut self,
        file: &mut FileReader<'_>,
        group: usize,
        opened: &mut HashMap<usize, CodedChunk>,
    ) -> Option<BooleanBuffer> {
        let (mut passing, mut kept_bytes): (Option<BooleanBuffer>, usize) = (None, 0);
        for condition in &mut self.conditions.columns {
            if passing.as_ref().is_some_and(|passing| passing.count_set_bits() == 0) {
                break;
            }
            let column = condition.column;
            let chunk = file.open(group, column).await;
            let pages_bytes = chunk.as_ref().map_or(0, |chunk| chunk.pages_bytes);
            let is_kept = self.supply.as_ref().is_some_and(|supply| supply.keeps(column, kept_bytes + pages_bytes));
            self.bytes += chunk.as_ref().map_or(0, |chunk| chunk.bytes);
            let asked = chunk.and_then(|mut chunk| {
                let passing = condition.passing(&chunk.values, chunk.is_nullable)?;
                let rows = chunk.passing(&passing, is_kept)?;
                Some((chunk, rows))
            });
            let Some((chunk, rows)) = asked else {
                condition.is_complete = false;
                continue;
            };
            if is_kept {
                opened.insert(column, chunk);
                kept_bytes += pages_bytes;
            }
            passing = Some(passing.map_or(rows.clone(), |passing| passing.bitand(&rows)));
        }
        passing
    }

    /// Those of some rows of a row group for which the conditions of several columns hold too, as far as these can be
    /// looked up, which stay in `looked_up`. Without a supply the decoder evaluates them.
    async fn passing_together(
        &mut self,
        file: &mut FileReader<'_>,
        group: usize,
        mut passing: BooleanBuffer,
        opened: &mut HashMap<usize, CodedChunk>,
        looked_up: &mut HashMap<usize, CodedRows>,
    ) -> BooleanBuffer {
        for condition in &mut self.conditions.wide {
            if passing.count_set_bits() == 0 {
                break;
            }
            let (rows, columns) = (passing.count_set_bits(), looked_up.len() + condition.columns.len());
            let may_look_up = self.supply.as_ref().is_some_and(|supply| supply.may_look_up(rows, columns));
            for column in &condition.columns {
                if may_look_up
                    && !looked_up.contains_key(column)
                    && let Some(rows) = file.rows(group, *column, opened, &passing).await
                {
                    looked_up.insert(*column, rows);
                }
            }
            let columns = condition.columns.iter().map(|column| looked_up.get(column)).collect::<Option<Vec<_>>>();
            let Some(holds) = columns.and_then(|columns| condition.holds(&columns)) else {
                condition.is_complete = false;
                continue;
            };
            let kept = BooleanArray::new(holds.clone(), None);
            let left = std::mem::take(looked_up).into_iter();
            looked_up.extend(left.filter_map(|(column, rows)| Some((column, rows.only(&kept)?))));
            passing = only(&passing, &holds);
        }
        passing
    }

    fn tell(&self, metrics: &ExecutionPlanMetricsSet, partition: usize) {
        MetricBuilder::new(metrics).counter("rows_pruned_by_dictionary", partition).add(self.pruned);
        MetricBuilder::new(metrics).counter("dictionary_bytes_scanned", partition).add(self.bytes);
    }
}

/// Of the rows that are set, those for which `holds` is set too, which has a value for each of them.
fn only(rows: &BooleanBuffer, holds: &BooleanBuffer) -> BooleanBuffer {
    let mut left = BooleanBufferBuilder::new(rows.len());
    left.append_n(rows.len(), false);
    rows.set_indices().zip(holds).filter(|(_, holds)| *holds).for_each(|(row, _)| left.set_bit(row, true));
    left.finish()
}
