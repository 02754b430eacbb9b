//! `blockyard.stores`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, number, text};
use super::table::{Sources, Table};
use crate::cloud::StoreStatus;

/// Object stores.
pub(super) struct Stores;

impl Table for Stores {
    const NAME: &'static str = "stores";
    const ABOUT: &'static str = "Every object store that was opened by its address, and the requests to it.";
    type Row = StoreStatus;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<StoreStatus>> {
        Ok(sources.stores.stores())
    }

    fn columns() -> Vec<Column<StoreStatus>> {
        vec![
            text("store", "How its addresses begin.", |row| row.store.clone()),
            text("type", "`s3`, `gcs`, `azure` or `http`.", |row| row.kind.to_owned()),
            text("secret", "The secret that it was opened with, if there is one.", |row| row.secret.clone()),
            number("concurrency", "Requests that it gets at once.", |row| Some(row.limit as u64)),
            number("under_way", "Requests that are under way.", |row| Some(row.under_way as u64)),
            number("requests", "Requests that it got, those that were made again too.", |row| Some(row.requests)),
            number("received_bytes", "Bytes that came from it.", |row| Some(row.received_bytes)),
            number("sent_bytes", "Bytes that it was sent.", |row| Some(row.sent_bytes)),
            number("retries", "Requests that failed and were made again, or given up.", |row| Some(row.retries)),
            number("refused", "Requests that it refused for their number.", |row| Some(row.refused)),
            number("throttled_ms", "For how long requests waited since it had refused some, in milliseconds.", |row| {
                Some(row.held_back_ms)
            }),
        ]
    }
}
