//! What gives the iterators of a dataset.

use std::time::Instant;

use datafusion::common::Result;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::token::{Apart, Origin};
use super::{Batches, IterOptions};
use crate::config::BlockyardOptions;
use crate::dataset::Dataset;
use crate::dataset::repeatable::repeatable;
use crate::functions::{Row, rows_of_batch};
use crate::physical::Resumes;
use crate::seed::{RandomSeed, fresh_seed};

impl Dataset {
    /// Streams the rows in batches of a size, in order. Dropping the result stops the work behind it.
    ///
    /// # Errors
    ///
    /// Where options do not go together, a token is not of this dataset, it cannot be planned, or needs more memory
    /// than there is. What fails later is an error of the stream.
    pub async fn iter_batches(&self, options: IterOptions) -> Result<Batches> {
        Ok(self.batches(options, Apart::Nothing).await?.observed(&self.state))
    }

    /// The same, with no batch that has rows of two parts of the pipeline that the dataset is.
    pub(in crate::dataset) async fn batches(&self, options: IterOptions, apart: Apart) -> Result<Batches> {
        let began = Instant::now();
        options.check()?;
        let resume = options.resume.as_ref();
        let mut dataset = self.clone();
        let mut shuffle_seed = None;
        if let Some(rows) = options.local_shuffle_buffer_size {
            let of_token = resume.and_then(|token| token.shuffle_seed);
            let seed = options.local_shuffle_seed.or(of_token).unwrap_or_else(fresh_seed);
            shuffle_seed = Some(seed);
            dataset = dataset.local_shuffle(rows, RandomSeed::each_execution(seed))?;
            // What it did is told by the dataset that was asked.
            dataset.last = std::sync::Arc::clone(&self.last);
        }
        let epoch = match (resume, options.epoch) {
            (Some(token), _) => token.epoch(),
            (None, Some(epoch)) => epoch,
            (None, None) => self.next_epoch(),
        };
        let origin = Origin::of(&dataset, epoch, shuffle_seed, resume)?;
        let rows = dataset.marked_rows(epoch, &origin).await?;
        let origin = origin.with_plan(&dataset, &rows.plan)?;
        Ok(Batches::start(rows, origin, &options, apart, began))
    }

    /// Streams the rows, typed by serde, in order.
    ///
    /// # Errors
    ///
    /// As [`Dataset::iter_batches`]. That a row is no `T` is an error of the stream.
    pub async fn iter_rows<T: Row>(&self) -> Result<BoxStream<'static, Result<T>>> {
        let rows = self.stream().await?.map(|batch| rows_of_batch::<T>(&batch?));
        Ok(rows.map_ok(|rows| stream::iter(rows).map(Ok)).try_flatten().boxed())
    }

    /// How an iterator of this dataset goes on at a token.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned.
    pub async fn resumes(&self) -> Result<Resumes> {
        let state = repeatable(self.state.clone(), None);
        let plan = state.create_physical_plan(&self.plan).await?;
        Ok(Resumes::of(&BlockyardOptions::from_config(state.config_options()), &plan))
    }
}
