//! Work of a join that is prepared once, and whose units the streams of all partitions pull.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

use datafusion::common::{DataFusionError, Result, internal_err};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use crate::runtime::Drivers;

/// One execution. When the last of the streams drops, what was prepared goes.
pub(super) struct Units<W> {
    work: Shared<BoxFuture<'static, Result<Arc<W>, Arc<DataFusionError>>>>,
    next: AtomicUsize,
}

impl<W> fmt::Debug for Units<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Units(next={})", self.next.load(Relaxed))
    }
}

impl<W: Send + Sync + 'static> Units<W> {
    /// The units of what `prepare` makes, which is started by the first who asks, on the threads of whoever asks.
    pub(super) fn of(prepare: impl Future<Output = Result<W>> + Send + 'static) -> Arc<Self> {
        let work = async move {
            match Drivers::start([prepare]).next().await {
                Some(result) => result.map(Arc::new).map_err(Arc::new),
                None => internal_err!("the sides of a join vanished").map_err(Arc::new),
            }
        };
        Arc::new(Self { work: work.boxed().shared(), next: AtomicUsize::new(0) })
    }

    /// What was prepared.
    pub(super) async fn work(&self) -> Result<Arc<W>> {
        self.work.clone().await.map_err(DataFusionError::Shared)
    }

    /// The number of a unit that nobody else has.
    pub(super) fn next(&self) -> usize {
        self.next.fetch_add(1, AcqRel)
    }
}
