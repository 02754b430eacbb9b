//! Which numbers have a place in another type.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;

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

/// How many bits the whole numbers of a type have beside their sign: none of them is further from 0 than 2 to that.
pub(crate) fn bits_of_type(kind: &DataType) -> Option<u32> {
    let (bits, has_sign) = Digits::of(kind)?.bits?;
    Some(bits - u32::from(has_sign))
}

/// How many bits a whole number has beside its sign.
pub(crate) fn bits_of_value(value: &ScalarValue) -> Option<u32> {
    let number: i128 = match value {
        ScalarValue::Int8(number) => (*number)?.into(),
        ScalarValue::Int16(number) => (*number)?.into(),
        ScalarValue::Int32(number) => (*number)?.into(),
        ScalarValue::Int64(number) => (*number)?.into(),
        ScalarValue::UInt8(number) => (*number)?.into(),
        ScalarValue::UInt16(number) => (*number)?.into(),
        ScalarValue::UInt32(number) => (*number)?.into(),
        ScalarValue::UInt64(number) => (*number)?.into(),
        _ => return None,
    };
    Some(u128::BITS - number.unsigned_abs().leading_zeros())
}

/// How many bits there can be in what an operator makes of whole numbers with so many bits; none where it is not known.
pub(crate) fn bits_of_result(op: Operator, left: u32, right: u32) -> Option<u32> {
    match op {
        Operator::Plus | Operator::Minus => Some(left.max(right) + 1),
        Operator::Multiply => Some(left + right),
        _ => None,
    }
}

/// Whether whole numbers of a type always have room for results with so many bits.
pub(crate) fn always_fits(bits: u32, op: Operator, kind: &DataType) -> bool {
    let goes_below = op == Operator::Minus && kind.is_unsigned_integer();
    !goes_below && bits_of_type(kind).is_some_and(|room| bits < room)
}
