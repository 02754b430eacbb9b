//! [`Taken`].

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{DataFusionError, exec_datafusion_err};
use parking_lot::Mutex;

use super::messages::Reply;
use crate::error::one_message;

/// The address of an executor that was noted first, and why.
type Noted = Mutex<Option<(String, String)>>;

/// What a part takes from exchanges.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// By the numbers of the exchanges the rows that they gave, once all were taken.
    rows: Mutex<BTreeMap<usize, Option<u64>>>,
    /// Who does not give what it keeps, and why.
    missing: Noted,
    /// Whom this one cannot ask, and why.
    barred: Noted,
    /// The same of exchanges that parts read together.
    shared: Mutex<Vec<Arc<Self>>>,
}

impl Taken {
    /// By the numbers of the exchanges the rows that they gave, where all were taken.
    pub(super) fn rows(&self) -> Vec<(usize, Option<u64>)> {
        self.rows.lock().iter().map(|(number, rows)| (*number, *rows)).collect()
    }

    /// What to say of an error of the part.
    pub(super) fn reply(&self, error: &DataFusionError) -> Reply {
        match (self.find(|taken| &taken.barred), self.find(|taken| &taken.missing)) {
            (Some((address, why)), _) => Reply::Barred(address, why),
            (None, Some((address, why))) => Reply::Missing(address, why),
            (None, None) => Reply::Failed(one_message(error)),
        }
    }

    /// The rows that an exchange has given, if all of them were taken.
    pub(super) fn note(&self, exchange: usize, rows: Option<u64>) {
        self.rows.lock().insert(exchange, rows);
    }

    /// Some of it is taken together with other parts.
    pub(super) fn share(&self, with: Arc<Self>) {
        self.shared.lock().push(with);
    }

    /// Notes that the executor at an address does not give what it keeps, and makes an error of it. What is noted first
    /// stays.
    pub(super) fn miss(&self, address: &str, why: &DataFusionError) -> DataFusionError {
        let why = one_message(why);
        self.missing.lock().get_or_insert_with(|| (address.to_owned(), why.clone()));
        exec_datafusion_err!("the rows that the executor at {address} keeps cannot be had: {why}")
    }

    /// The same where it is this one that cannot ask.
    pub(super) fn bar(&self, address: &str, why: &DataFusionError) -> DataFusionError {
        let why = one_message(why);
        self.barred.lock().get_or_insert_with(|| (address.to_owned(), why.clone()));
        exec_datafusion_err!("the executor at {address} cannot be asked: {why}")
    }

    /// What was noted first here, or where parts read together.
    fn find(&self, noted: fn(&Self) -> &Noted) -> Option<(String, String)> {
        let own = noted(self).lock().clone();
        own.or_else(|| self.shared.lock().iter().find_map(|shared| shared.find(noted)))
    }
}
