//! Which numbers have a place in another type.

use datafusion::arrow::datatypes::DataType;

/// Whether all numbers of an integer or decimal type have a place in another one, but for digits behind the point; none
/// where one of them is another type.
pub(crate) fn have_room(from: &DataType, to: &DataType) -> Option<bool> {
    Some(Digits::of(to)?.have_room_for(&Digits::of(from)?))
}

/// Whether numbers of an integer or decimal type keep all digits behind the point in another one.
pub(crate) fn keep_digits(from: &DataType, to: &DataType) -> Option<bool> {
    Some(Digits::of(to)?.behind >= Digits::of(from)?.behind)
}

/// What numbers of a type look like.
struct Digits {
    /// Bits of an integer, and whether it has a sign; none of decimals.
    bits: Option<(u32, bool)>,
    /// Digits that may stand before the point.
    before: i16,
    /// Digits before the point with which all numbers have a place.
    certain: i16,
    behind: i16,
}

impl Digits {
    fn of(kind: &DataType) -> Option<Self> {
        let integer = |bits, has_sign, before| {
            Some(Self { bits: Some((bits, has_sign)), before, certain: before - 1, behind: 0 })
        };
        match kind {
            DataType::Int8 => integer(8, true, 3),
            DataType::Int16 => integer(16, true, 5),
            DataType::Int32 => integer(32, true, 10),
            DataType::Int64 => integer(64, true, 19),
            DataType::UInt8 => integer(8, false, 3),
            DataType::UInt16 => integer(16, false, 5),
            DataType::UInt32 => integer(32, false, 10),
            DataType::UInt64 => integer(64, false, 20),
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale)
            | DataType::Decimal256(precision, scale) => {
                let (before, behind) = (i16::from(*precision) - i16::from(*scale), i16::from(*scale));
                Some(Self { bits: None, before, certain: before, behind })
            }
            _ => None,
        }
    }

    fn have_room_for(&self, other: &Self) -> bool {
        match (self.bits, other.bits) {
            (Some((bits, true)), Some((others, has_sign))) => bits > others || bits == others && has_sign,
            (Some((bits, false)), Some((others, has_sign))) => bits >= others && !has_sign,
            // A decimal has a sign.
            (Some((_, false)), None) => false,
            _ => self.certain >= other.before,
        }
    }
}
