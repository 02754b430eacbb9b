//! The dealer: runs the dataset for each epoch and puts the parts of turns where consumers find them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use futures::FutureExt;

use super::shared::{Shared, Standing};
use crate::block::{Block, copied, sliced_bytes};
use crate::dataset::Dataset;
use crate::dataset::iterate::{Apart, IterOptions};
use crate::error::panic_text;
use crate::functions::Turns;
use crate::store::NextUse;
use crate::token::ResumeToken;

/// What is dealt, and how.
#[derive(Debug)]
pub(super) struct Dealer {
    pub(super) dataset: Dataset,
    pub(super) turns: Turns,
    /// What one epoch of the split is: the whole dataset, or a part of a pipeline.
    pub(super) apart: Apart,
    pub(super) resume: Option<ResumeToken>,
}

impl Dealer {
    /// Deals epoch after epoch until there are no more, or nobody is left. What goes wrong is said to all consumers.
    pub(super) async fn deal(self, shared: Arc<Shared>) -> Result<()> {
        let deals = async {
            match self.apart {
                Apart::Nothing => self.deal_again_and_again(&shared).await,
                _ => self.deal_parts_of_pipeline(&shared).await,
            }
        };
        // Of a panic all who wait have to hear, too.
        let dealt = AssertUnwindSafe(deals).catch_unwind().await;
        let dealt = dealt.unwrap_or_else(|panic| exec_err!("dealing rows panicked: {}", panic_text(panic.as_ref())));
        if let Err(e) = dealt {
            shared.change(|table| table.stop(e.to_string()));
        }
        Ok(())
    }

    fn options(&self, epoch: u64, resume: Option<ResumeToken>) -> IterOptions {
        IterOptions { batch_size: self.turns.rows, epoch: Some(epoch), resume, ..IterOptions::default() }
    }

    async fn deal_again_and_again(&self, shared: &Shared) -> Result<()> {
        let mut epoch = self.resume.as_ref().map_or(0, ResumeToken::epoch);
        let mut resume = self.resume.clone();
        while shared.until(|table| table.may_begin()).await {
            let mut turns = self.dataset.batches(self.options(epoch, resume.take()), Apart::Nothing).await?;
            let origin = Arc::clone(turns.origin());
            let standing = |position| Standing { origin: Arc::clone(&origin), position };
            shared.change(|table| table.begin(epoch, standing(None)));
            let mut turn = 0;
            while let Some((rows, position)) = turns.next_positioned().await? {
                if !self.deal_turn(shared, turn, rows, standing(Some(position))).await? {
                    return Ok(());
                }
                turn += 1;
                if shared.look(|table| table.all_gave_up()) {
                    break;
                }
            }
            shared.change(|table| table.epoch_dealt(false));
            epoch += 1;
        }
        Ok(())
    }

    async fn deal_parts_of_pipeline(&self, shared: &Shared) -> Result<()> {
        let mut turns = self.dataset.batches(self.options(0, self.resume.clone()), self.apart).await?;
        let origin = Arc::clone(turns.origin());
        let standing = |position| Standing { origin: Arc::clone(&origin), position };
        let mut next = turns.next_positioned().await?;
        let (mut before, mut windows) = (None, 0);
        while let Some((mut rows, mut position)) = next.take() {
            if !shared.until(|table| table.may_begin()).await {
                return Ok(());
            }
            let label = match self.apart {
                Apart::Epochs => origin.epoch_and_window(Some(&position)).0,
                _ => windows,
            };
            windows += 1;
            shared.change(|table| table.begin(label, standing(before.take())));
            let mut turn = 0;
            loop {
                if !self.deal_turn(shared, turn, rows, standing(Some(position.clone()))).await? {
                    return Ok(());
                }
                turn += 1;
                next = turns.next_positioned().await?;
                match next.take_if(|(_, behind)| !self.apart.parts_positions(&position, behind)) {
                    Some(more) => (rows, position) = more,
                    None => break,
                }
            }
            before = Some(position);
            shared.change(|table| table.epoch_dealt(next.is_none()));
        }
        shared.change(|table| table.finish());
        Ok(())
    }

    /// Deals the parts of a turn, behind which rows stand there. Whether there is anybody left.
    async fn deal_turn(&self, shared: &Shared, turn: u64, rows: RecordBatch, behind: Standing) -> Result<bool> {
        shared.change(|table| table.begin_turn(turn, behind));
        let parts = self.turns.parts(rows.num_rows());
        for (consumer, part) in parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            if !shared.until(|table| table.has_room(consumer)).await {
                return Ok(false);
            }
            let is_whole = part.len() == rows.num_rows();
            let rows = rows.slice(part.start, part.len());
            // A part that waits keeps no other one.
            let rows = if is_whole { rows } else { copied(&rows)? };
            let bytes = sliced_bytes(&rows);
            let block = Block::new(rows.schema(), vec![rows]);
            let handle = shared.store.put(block, NextUse::Soon, &shared.owner)?;
            shared.change(|table| table.deal(consumer, turn, bytes, handle));
        }
        Ok(true)
    }
}
