//! Object stores by their addresses: `s3://bucket/..`, `gs://`, `az://`, `abfss://`, `http://` and `https://` work at
//! first use.
//!
//! ```text
//! 's3://bucket/dir/' ──> CloudStores ──> kind by scheme, options of the environment, then of the longest secret
//!                             └── object_store's client ──> Requests: threads of their own, a limit, counts, timeouts
//! ```
//!
//! What is retried, and how often, is decided by object_store's client, in one place; a body that breaks off goes on
//! where it was.

#[cfg(feature = "cloud")]
mod kinds;
#[cfg(not(feature = "cloud"))]
#[path = "no_kinds.rs"]
mod kinds;
mod opening;
#[cfg(feature = "cloud")]
mod requests;
mod secrets;
mod stores;
mod traffic;

pub(crate) use secrets::SecretStatus;
pub use secrets::{StoreEnvironment, StoreOptions};
pub(crate) use stores::{CloudStores, StoreStatus};
