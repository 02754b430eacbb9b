//! `to_timestamp` and its like in the time zone that they promise. DataFusion's forget it of columns of texts.

use std::sync::Arc;

use datafusion::arrow::array::{Array, make_array};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// Those that they are.
pub(super) const NAMES: [&str; 5] =
    ["to_timestamp", "to_timestamp_seconds", "to_timestamp_millis", "to_timestamp_micros", "to_timestamp_nanos"];

/// Of one of DataFusion's one that does as it promises.
pub(super) fn with_its_zone(without_zone: Arc<ScalarUDF>) -> ScalarUDF {
    ToTimestamp { without_zone }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToTimestamp {
    /// DataFusion's.
    without_zone: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ToTimestamp {
    fn name(&self) -> &str {
        self.without_zone.name()
    }

    fn signature(&self) -> &Signature {
        self.without_zone.signature()
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.without_zone.return_type(given)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.without_zone.return_field_from_args(args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let updated = self.without_zone.inner().with_updated_config(config)?;
        Some(with_its_zone(Arc::new(updated)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let promised = args.return_type().clone();
        // Without the check that it gives what it promises.
        match self.without_zone.inner().invoke_with_args(args)? {
            // A cast would take the numbers, which are those of UTC, for a time in the zone.
            ColumnarValue::Array(found) if *found.data_type() != promised => {
                let found = found.to_data().into_builder().data_type(promised).build()?;
                Ok(ColumnarValue::Array(make_array(found)))
            }
            found => Ok(found),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.without_zone.documentation()
    }
}
