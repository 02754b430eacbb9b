//! Decimals of text with more digits than their type has are rounded, as a cast does.
//!
//! Arrow's decoders leave out digits. With one digit more than the type has, what they leave out decides nothing.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType,
    FieldRef, Schema, SchemaRef,
};
use datafusion::common::Result;

/// A decimal of some width, by its precision and scale.
type Decimal = fn(u8, i8) -> DataType;

/// The decimal that a decoder is asked for in place of one.
pub(super) fn decoded_decimal(kind: &DataType) -> Option<DataType> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    let (Decimal32(precision, scale)
    | Decimal64(precision, scale)
    | Decimal128(precision, scale)
    | Decimal256(precision, scale)) = *kind
    else {
        return None;
    };
    let (precision, scale) = (precision + 1, scale + 1);
    let widths: [(u8, Decimal); 4] = [
        (DECIMAL32_MAX_PRECISION, Decimal32),
        (DECIMAL64_MAX_PRECISION, Decimal64),
        (DECIMAL128_MAX_PRECISION, Decimal128),
        (DECIMAL256_MAX_PRECISION, Decimal256),
    ];
    let width = widths.iter().position(|(_, decimal)| decimal(1, 0).primitive_width() == kind.primitive_width())?;
    let (_, decimal) = widths[width..].iter().find(|(most, _)| precision <= *most)?;
    Some(decimal(precision, scale))
}

/// The columns that a decoder is asked for.
pub(super) fn with_decoded_decimals(columns: &SchemaRef) -> SchemaRef {
    let decoded = |field: &FieldRef| match decoded_decimal(field.data_type()) {
        Some(kind) => Arc::new(field.as_ref().clone().with_data_type(kind)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = columns.fields().iter().map(decoded).collect();
    Arc::new(Schema::new_with_metadata(fields, columns.metadata().clone()))
}

/// The decimals of a column that was decoded. Fails where one has too many digits before the point.
pub(super) fn rounded(column: &ArrayRef, kind: &DataType) -> Result<ArrayRef> {
    Ok(cast_with_options(column, kind, &CastOptions { safe: false, ..CastOptions::default() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_more_digit() {
        use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
        let decoded = [Decimal32(5, 2), Decimal32(9, 0), Decimal64(18, 3), Decimal128(38, 10), Decimal256(10, 2)];
        let expected = [Decimal32(6, 3), Decimal64(10, 1), Decimal128(19, 4), Decimal256(39, 11), Decimal256(11, 3)];
        assert_eq!(decoded.map(|kind| decoded_decimal(&kind)), expected.map(Some));
        assert_eq!([Decimal256(76, 0), DataType::Int64].map(|kind| decoded_decimal(&kind)), [None, None]);
    }
}
