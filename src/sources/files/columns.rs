//! The columns of files.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, FieldRef, Fields, Schema, TimeUnit,
};
use datafusion::catalog::Session;
use datafusion::common::{Result, plan_err};

use crate::block::with_plain_types;

/// The columns without views of strings, unless the session wants those, and without dictionaries: see T10 in
/// docs/decisions/datafusion-55.md.
pub(crate) fn plain_unless_asked(session: &dyn Session, schema: Schema) -> Schema {
    match session.config_options().execution.parquet.schema_force_view_types {
        true => schema,
        false => with_plain_types(&schema),
    }
}

/// The names that are there more than once.
pub(crate) fn twice<'a>(names: &[&'a str]) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    names.iter().copied().filter(|name| !seen.insert(*name)).collect()
}

/// The fields with another name for each that has the name of one before it: `a`, `a_1`, `a_2`.
pub(crate) fn distinct_names(fields: &Fields) -> Fields {
    let given: HashSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let mut taken = HashSet::new();
    let distinct = |field: &FieldRef| {
        let name = field.name();
        if taken.insert(name.clone()) {
            return Arc::clone(field);
        }
        let mut number = 1;
        let mut other = format!("{name}_{number}");
        while given.contains(other.as_str()) || taken.contains(&other) {
            number += 1;
            other = format!("{name}_{number}");
        }
        taken.insert(other.clone());
        Arc::new(field.as_ref().clone().with_name(other))
    };
    fields.iter().map(distinct).collect()
}

/// All columns may have nulls.
pub(crate) fn nullable(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// Whether every value of one type is a value of the other, but for fields that only one of them has.
pub(crate) fn fits(from: &DataType, to: &DataType) -> bool {
    use DataType::{Binary, BinaryView, Date32, Date64, Dictionary, Float32, LargeBinary, Null};
    let bytes = |to: &DataType| matches!(to, Binary | LargeBinary | BinaryView);
    match (from, to) {
        (Dictionary(_, from), to) => fits(from, to),
        (from, Dictionary(_, to)) => fits(from, to),
        (from, to) if from == to => true,
        (DataType::Struct(from), DataType::Struct(to)) => {
            let fits = |field: &FieldRef, (_, to): (usize, &FieldRef)| fits(field.data_type(), to.data_type());
            from.iter().all(|field| to.find(field.name()).is_none_or(|to| fits(field, to)))
        }
        (from, to) if from.is_nested() && to.is_nested() => match (items_of(from), items_of(to)) {
            (Some((size, from)), Some((other, to))) => {
                (other.is_none() || size == other) && fits(from.data_type(), to.data_type())
            }
            _ => false,
        },
        (from, to) if from.is_string() && to.is_string() || (from.is_string() || from.is_binary()) && bytes(to) => true,
        (Null, _) | (Float32, DataType::Float64) | (Date32, Date64) => true,
        (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) => per_second(*from) <= per_second(*to),
        (from, to) if to.is_decimal() => match (Digits::of(from), Digits::of(to)) {
            (Some(from), Some(to)) => from.whole <= to.whole && from.behind <= to.behind,
            _ => false,
        },
        (from, to) if from.is_signed_integer() && to.is_signed_integer() => {
            from.primitive_width() <= to.primitive_width()
        }
        (from, to) if from.is_unsigned_integer() && to.is_integer() => from.primitive_width() < to.primitive_width(),
        (from, DataType::Float64) if from.is_integer() => from.primitive_width() < Some(8),
        _ => false,
    }
}

/// What the lists of a type have in them, and how many of it if that is always as many.
fn items_of(list: &DataType) -> Option<(Option<i32>, &FieldRef)> {
    match list {
        DataType::List(item) | DataType::LargeList(item) => Some((None, item)),
        DataType::ListView(item) | DataType::LargeListView(item) | DataType::Map(item, _) => Some((None, item)),
        DataType::FixedSizeList(item, size) => Some((Some(*size), item)),
        _ => None,
    }
}

/// The fields of a file that a table does not have, also within others, by their names.
pub(crate) fn missing_fields(table: &Fields, file: &Fields) -> Vec<String> {
    let missing = |field: &FieldRef| match table.find(field.name()) {
        None => vec![field.name().clone()],
        Some((_, known)) => {
            let within = missing_within(known.data_type(), field.data_type());
            within.into_iter().map(|name| format!("{}.{name}", field.name())).collect()
        }
    };
    file.iter().flat_map(missing).collect()
}

fn missing_within(table: &DataType, file: &DataType) -> Vec<String> {
    match (table, file) {
        (DataType::Struct(table), DataType::Struct(file)) => missing_fields(table, file),
        (table, file) => match (items_of(table), items_of(file)) {
            (Some((_, table)), Some((_, file))) => missing_within(table.data_type(), file.data_type()),
            _ => Vec::new(),
        },
    }
}

fn per_second(unit: TimeUnit) -> u64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The decimal digits that values of a type may have.
#[derive(Clone, Copy)]
struct Digits {
    whole: i16,
    behind: i16,
}

impl Digits {
    /// Of an integer or a decimal.
    fn of(data_type: &DataType) -> Option<Self> {
        use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
        let (precision, scale) = match *data_type {
            Decimal32(precision, scale)
            | Decimal64(precision, scale)
            | Decimal128(precision, scale)
            | Decimal256(precision, scale) => (precision, scale),
            DataType::Int8 | DataType::UInt8 => (3, 0),
            DataType::Int16 | DataType::UInt16 => (5, 0),
            DataType::Int32 | DataType::UInt32 => (10, 0),
            DataType::Int64 => (19, 0),
            DataType::UInt64 => (20, 0),
            _ => return None,
        };
        Some(Self { whole: i16::from(precision) - i16::from(scale), behind: scale.into() })
    }

    /// The narrowest decimal that has room for them.
    fn decimal(self) -> Option<DataType> {
        let (precision, scale) = (u8::try_from(self.whole + self.behind).ok()?, i8::try_from(self.behind).ok()?);
        let fits = |most: u8, decimal: fn(u8, i8) -> DataType| (precision <= most).then(|| decimal(precision, scale));
        fits(DECIMAL128_MAX_PRECISION, DataType::Decimal128).or(fits(DECIMAL256_MAX_PRECISION, DataType::Decimal256))
    }
}

/// The type that has room for two of which neither has room for the other: of integers with a sign and without, and of
/// decimals.
fn wider(one: &DataType, other: &DataType) -> Option<DataType> {
    if one.is_decimal() || other.is_decimal() {
        let (one, other) = (Digits::of(one)?, Digits::of(other)?);
        return Digits { whole: one.whole.max(other.whole), behind: one.behind.max(other.behind) }.decimal();
    }
    let signed = [DataType::Int16, DataType::Int32, DataType::Int64];
    signed.into_iter().find(|wide| fits(one, wide) && fits(other, wide))
}

/// The columns of several files together, by name: those of the first, and then what the next ones have beside them.
/// `common` is what has room for two types that do not fit each other, where the format says so.
pub(crate) fn union_of(
    all: &Schema,
    next: &Schema,
    common: impl Fn(&DataType, &DataType) -> Option<DataType>,
) -> Result<Schema> {
    let mut fields: Vec<FieldRef> = all.fields().iter().cloned().collect();
    for field in next.fields() {
        let Some(known) = fields.iter_mut().find(|known| known.name() == field.name()) else {
            fields.push(Arc::clone(field));
            continue;
        };
        let (known_type, new) = (known.data_type(), field.data_type());
        if !new.is_nested() && fits(known_type, new) && !fits(new, known_type) {
            *known = Arc::clone(field);
            continue;
        }
        match room_for(known_type, new, &common) {
            Some(both) if both == *known_type => {}
            Some(both) => *known = Arc::new(known.as_ref().clone().with_data_type(both)),
            None => {
                return plan_err!(
                    "column '{}' is {new} here and {known_type} in files before it, and no type has room for both",
                    field.name()
                );
            }
        }
    }
    Ok(Schema::new_with_metadata(fields, all.metadata().clone()))
}

/// The type that has room for the values of both, with the fields of both.
fn room_for(
    known: &DataType,
    new: &DataType,
    common: &impl Fn(&DataType, &DataType) -> Option<DataType>,
) -> Option<DataType> {
    let of_items = |known: &FieldRef, new: &FieldRef| {
        let item = room_for(known.data_type(), new.data_type(), common)?;
        let nullable = known.is_nullable() || new.is_nullable();
        Some(Arc::new(known.as_ref().clone().with_data_type(item).with_nullable(nullable)))
    };
    match (known, new) {
        (DataType::Struct(fields), DataType::Struct(others)) => {
            let alone = |field: &FieldRef| Some(Arc::new(field.as_ref().clone().with_nullable(true)));
            let known = fields.iter().map(|field| match others.find(field.name()) {
                Some((_, other)) => of_items(field, other),
                None => alone(field),
            });
            let more = others.iter().filter(|field| fields.find(field.name()).is_none()).map(alone);
            known.chain(more).collect::<Option<Fields>>().map(DataType::Struct)
        }
        (known, new) if known.is_nested() && new.is_nested() => {
            let ((size, item), (other, new_item)) = (items_of(known)?, items_of(new)?);
            let item = of_items(item, new_item)?;
            match (known, new) {
                (DataType::Map(_, sorted), DataType::Map(..)) => Some(DataType::Map(item, *sorted)),
                (DataType::Map(..), _) | (_, DataType::Map(..)) => None,
                (DataType::FixedSizeList(..), DataType::FixedSizeList(..)) if size == other => {
                    Some(DataType::FixedSizeList(item, size?))
                }
                (DataType::LargeList(_) | DataType::LargeListView(_), _) => Some(DataType::LargeList(item)),
                (_, DataType::LargeList(_) | DataType::LargeListView(_)) => Some(DataType::LargeList(item)),
                _ => Some(DataType::List(item)),
            }
        }
        (known, new) if fits(new, known) => Some(known.clone()),
        (known, new) if fits(known, new) => Some(new.clone()),
        (known, new) => common(known, new).or_else(|| wider(known, new)),
    }
}
