//! The dealer: runs the dataset for each epoch and puts the parts of turns into queues.

use std::sync::Arc;

use datafusion::common::Result;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::options::Deal;
use super::table::{Part, Table};
use crate::block::{Block, copied, sliced_bytes};
use crate::dataset::Dataset;
use crate::dataset::iterate::{Batches, IterOptions, Origin, ResumeToken};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// What dealer and consumers share.
pub(super) struct Shared {
    pub(super) table: Mutex<Table<BlockHandle>>,
    /// Somebody has changed the table.
    pub(super) changed: Notify,
    /// Of which epoch positions are; the first one that was begun.
    pub(super) first_epoch: u64,
    /// What makes tokens of positions, for each epoch that was begun, the last two of them.
    pub(super) origins: Mutex<Vec<(u64, Arc<Origin>)>>,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
}

impl Shared {
    pub(super) fn new(table: Table<BlockHandle>, store: Arc<BlockStore>, first_epoch: u64) -> Self {
        let (table, origins) = (Mutex::new(table), Mutex::default());
        Self { table, changed: Notify::new(), first_epoch, origins, store, owner: Arc::default() }
    }

    /// Changes the table, and wakes whoever waits for that.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Table<BlockHandle>) -> T) -> T {
        let changed = change(&mut self.table.lock());
        self.changed.notify_waiters();
        changed
    }

    /// Waits until the table is as it has to be, or everything has stopped.
    async fn until(&self, is_so: impl Fn(&Table<BlockHandle>) -> bool) -> bool {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            {
                let table = self.table.lock();
                if table.stopped().is_some() || is_so(&table) {
                    return table.stopped().is_none();
                }
            }
            changed.await;
        }
    }
}

/// Deals epoch after epoch until nobody is left. What goes wrong is said to all consumers.
pub(super) async fn deal_epochs(
    shared: Arc<Shared>,
    dataset: Dataset,
    deal: Deal,
    resume: Option<ResumeToken>,
) -> Result<()> {
    let mut epoch = shared.first_epoch;
    let mut resume = resume;
    while shared.until(Table::may_begin).await {
        if let Err(e) = deal_epoch(&shared, &dataset, deal, epoch, resume.take()).await {
            shared.change(|table| table.stop(e.to_string()));
            return Ok(());
        }
        shared.change(Table::epoch_dealt);
        epoch += 1;
    }
    Ok(())
}

async fn deal_epoch(
    shared: &Shared,
    dataset: &Dataset,
    deal: Deal,
    epoch: u64,
    resume: Option<ResumeToken>,
) -> Result<()> {
    let options =
        IterOptions { batch_size: Some(deal.turn_rows), epoch: Some(epoch), resume, ..IterOptions::default() };
    let mut turns: Batches = dataset.iter_batches(options).await?;
    {
        let mut origins = shared.origins.lock();
        origins.push((epoch, Arc::clone(turns.origin())));
        let first = origins.len().saturating_sub(2);
        origins.drain(..first);
    }
    let mut turn = 0;
    while let Some((rows, position)) = turns.next_positioned().await? {
        shared.change(|table| table.begin_turn(turn, position));
        for (consumer, part) in deal.parts(rows.num_rows()).into_iter().enumerate().filter(|(_, part)| !part.is_empty())
        {
            if !shared.until(|table| table.has_room(consumer)).await {
                return Ok(());
            }
            let rows = rows.slice(part.start, part.len());
            // A part that waits keeps no other one.
            let rows = if deal.n > 1 { copied(&rows)? } else { rows };
            let bytes = sliced_bytes(&rows);
            let block = Block::new(rows.schema(), vec![rows]);
            let handle = shared.store.put(block, NextUse::Soon, &shared.owner)?;
            shared.change(|table| table.deal(consumer, Part { turn, bytes, rows: handle }));
        }
        turn += 1;
    }
    Ok(())
}
