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

/// Whether every value of one type is a value of the other.
pub(crate) fn fits(from: &DataType, to: &DataType) -> bool {
    use DataType::{Binary, BinaryView, Date32, Date64, Dictionary, Float32, LargeBinary, Null};
    let bytes = |to: &DataType| matches!(to, Binary | LargeBinary | BinaryView);
    match (from, to) {
        (Dictionary(_, from), to) => fits(from, to),
        (from, Dictionary(_, to)) => fits(from, to),
        (from, to) if from == to || from.is_nested() && to.is_nested() => true,
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
        match (known.data_type(), field.data_type()) {
            (known, new) if fits(new, known) => {}
            (known_type, new) if fits(known_type, new) => *known = Arc::clone(field),
            (known_type, new) => match common(known_type, new).or_else(|| wider(known_type, new)) {
                Some(common) => *known = Arc::new(known.as_ref().clone().with_data_type(common)),
                None => {
                    return plan_err!(
                        "column '{}' is {new} here and {known_type} in files before it, and no type has room for both",
                        field.name()
                    );
                }
            },
        }
    }
    Ok(Schema::new_with_metadata(fields, all.metadata().clone()))
}
