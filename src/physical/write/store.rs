//! The stores that files are written to.

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::object_store::ObjectStoreUrl;

use crate::cloud::CloudStores;
use crate::sinks::WrittenStore;

/// The store at an address.
pub(super) fn written_store(context: &TaskContext, url: ObjectStoreUrl) -> Result<WrittenStore> {
    let store = context.runtime_env().object_store(&url)?;
    let stores = context.session_config().get_extension::<CloudStores>();
    Ok(WrittenStore { store, uploads: stores.and_then(|stores| stores.uploads_to(url.as_ref())) })
}
