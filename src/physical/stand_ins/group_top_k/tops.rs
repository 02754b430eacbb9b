//! Where the first k rows of each group are in its order.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::row::{RowConverter, Rows};
use datafusion::common::Result;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::top::TopOfGroups;
use crate::physical::stand_ins::cumulative_windows::Ranking;

/// The place of a row in the order of its group: the first bytes of its keys, as they are sorted.
type Code = u128;

/// The code of what is not before any row.
const BEHIND_ALL: Code = Code::MAX;

/// A row that was among the first of its group when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) row: u32,
    group: u32,
    code: Code,
}

/// The groups that were seen.
pub(super) struct Tops {
    top: TopOfGroups,
    codes: Codes,
    key_schema: SchemaRef,
    groups: Box<dyn GroupValues>,
    /// The groups of the rows of a batch.
    group_of: Vec<usize>,
    /// The code of the last of the first k rows of each group; [`BEHIND_ALL`] of one that has fewer.
    last: Vec<Code>,
    /// The codes of the first k rows of each group, in order; nothing where k is 1.
    first: Vec<Vec<Code>>,
    first_bytes: usize,
}

impl Tops {
    pub(super) fn new(top: &TopOfGroups, schema: &Schema) -> Result<Self> {
        let key = |(place, key): (usize, &Arc<dyn PhysicalExpr>)| {
            Ok(Field::new(place.to_string(), key.data_type(schema)?, key.nullable(schema)?))
        };
        let keys = top.partition_by.iter().enumerate().map(key).collect::<Result<Vec<_>>>()?;
        let key_schema = Arc::new(Schema::new(keys));
        Ok(Self {
            codes: Codes::new(top, schema)?,
            groups: new_group_values(Arc::clone(&key_schema), &GroupOrdering::None)?,
            top: top.clone(),
            key_schema,
            group_of: Vec::new(),
            last: Vec::new(),
            first: Vec::new(),
            first_bytes: 0,
        })
    }

    /// Knows no groups any more.
    pub(super) fn forget(&mut self) -> Result<()> {
        self.groups = new_group_values(Arc::clone(&self.key_schema), &GroupOrdering::None)?;
        (self.last, self.first, self.first_bytes) = (Vec::new(), Vec::new(), 0);
        Ok(())
    }

    /// Bytes of what is known of groups.
    pub(super) fn bytes(&self) -> usize {
        self.groups.size()
            + self.last.capacity() * size_of::<Code>()
            + self.first.capacity() * size_of::<Vec<Code>>()
            + self.first_bytes
    }

    /// The rows of a batch that are among the first of their groups until then.
    pub(super) fn candidates(&mut self, batch: &RecordBatch) -> Result<Vec<Candidate>> {
        let keys = evaluated(&self.top.partition_by, batch)?;
        self.groups.intern(&keys, &mut self.group_of)?;
        self.last.resize(self.groups.len(), BEHIND_ALL);
        if self.top.k > 1 {
            self.first.resize(self.groups.len(), Vec::new());
        }
        self.codes.set(batch)?;
        let group_of = std::mem::take(&mut self.group_of);
        let mut candidates = Vec::new();
        for (row, group) in group_of.iter().enumerate() {
            let code = self.codes.of(row);
            if self.offer(*group, code) {
                candidates.push(Candidate { row: row as u32, group: *group as u32, code });
            }
        }
        self.group_of = group_of;
        Ok(candidates)
    }

    /// Whether a row is among the first of its group so far.
    fn offer(&mut self, group: usize, code: Code) -> bool {
        let last = self.last[group];
        // Of rows that are equal, the one that comes first is numbered first.
        let is_behind = match self.top.ranking {
            Ranking::Rows if self.codes.tell_all => code >= last,
            _ => code > last,
        };
        if is_behind && last != BEHIND_ALL {
            return false;
        }
        if self.top.k == 1 {
            self.last[group] = code.min(last);
            return true;
        }
        let first = &mut self.first[group];
        let place = first.partition_point(|known| *known <= code);
        let is_known = self.top.ranking == Ranking::DenseRanks && place > 0 && first[place - 1] == code;
        if !is_known && place < self.top.k {
            let before = first.capacity();
            first.truncate(self.top.k - 1);
            first.insert(place, code);
            self.first_bytes += (first.capacity() - before) * size_of::<Code>();
            if first.len() == self.top.k {
                self.last[group] = first[self.top.k - 1];
            }
        }
        true
    }

    /// Whether a row is still among the first. Nothing may have been forgotten since.
    pub(super) fn is_first(&self, candidate: &Candidate) -> bool {
        candidate.code <= self.last[candidate.group as usize]
    }
}

fn evaluated<'a>(
    exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>,
    batch: &RecordBatch,
) -> Result<Vec<ArrayRef>> {
    exprs.into_iter().map(|expr| expr.evaluate(batch)?.into_array(batch.num_rows())).collect()
}

/// Makes codes of rows.
struct Codes {
    order_by: Vec<PhysicalSortExpr>,
    /// Of the keys, if there are any.
    converter: Option<RowConverter>,
    rows: Option<Rows>,
    /// Whether rows that have the same code are equal.
    tell_all: bool,
}

impl Codes {
    fn new(top: &TopOfGroups, schema: &Schema) -> Result<Self> {
        let kinds = top.order_by.iter().map(|key| key.expr.data_type(schema)).collect::<Result<Vec<_>>>()?;
        let bytes: Option<usize> = kinds.iter().map(encoded_bytes).sum();
        let tell_all = bytes.is_some_and(|bytes| bytes <= size_of::<Code>());
        let fields = top.sort_fields(schema)?;
        let converter = (!fields.is_empty()).then(|| RowConverter::new(fields)).transpose()?;
        Ok(Self { order_by: top.order_by.clone(), converter, rows: None, tell_all })
    }

    /// Goes on with the rows of a batch.
    fn set(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(converter) = &mut self.converter else { return Ok(()) };
        let keys = evaluated(self.order_by.iter().map(|key| &key.expr), batch)?;
        let rows = self.rows.get_or_insert_with(|| converter.empty_rows(batch.num_rows(), 0));
        rows.clear();
        Ok(converter.append(rows, &keys)?)
    }

    /// The code of a row of the batch.
    fn of(&self, row: usize) -> Code {
        let Some(rows) = &self.rows else { return 0 };
        let row = rows.row(row);
        let key: &[u8] = row.as_ref();
        let mut bytes = [0; size_of::<Code>()];
        let length = key.len().min(bytes.len());
        bytes[..length].copy_from_slice(&key[..length]);
        Code::from_be_bytes(bytes)
    }
}

/// The bytes that a value has in the encoding of rows, where all values have as many.
fn encoded_bytes(kind: &DataType) -> Option<usize> {
    match kind {
        DataType::Boolean => Some(2),
        _ => kind.primitive_width().map(|bytes| bytes + 1),
    }
}
