//! What a store is opened with.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use url::Url;

use super::traffic::Traffic;
use crate::config::BlockyardOptions;

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) concurrency: usize,
    pub(super) connect_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) max_retries: usize,
    pub(super) retry_timeout: Duration,
}

impl Settings {
    pub(super) fn of(options: &BlockyardOptions) -> Self {
        Self {
            concurrency: options.store_concurrency,
            connect_timeout: options.store_connect_timeout.0,
            read_timeout: options.store_read_timeout.0,
            max_retries: options.store_max_retries,
            retry_timeout: options.store_retry_timeout.0,
        }
    }
}

/// A store that was opened.
pub(super) struct KindStore {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// The same for uploads, if it takes such.
    pub(super) uploads: Option<Arc<dyn MultipartStore>>,
}

/// A store that is opened.
pub(super) struct Opening<'a> {
    pub(super) url: &'a Url,
    pub(super) options: &'a [(String, String)],
    pub(super) settings: Settings,
    pub(super) traffic: Arc<Traffic>,
}
