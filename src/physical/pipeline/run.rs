//! A pipeline that runs: begins one window after the other, two at most in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::cut::Cutter;
use super::plans::{Pass, PassEpochs, PassSource, WindowInput, WindowPlans};
use super::queue::{Shared, Window};
use super::start::Start;
use crate::physical::place::Place;
use crate::runtime::Drivers;

/// After so many passes without a row nobody waits for the next one.
const EMPTY_PASSES: u64 = 3;

/// The windows from a place on of a plan that is a pipeline itself.
pub(super) type WindowsOf =
    fn(&Arc<dyn ExecutionPlan>, &Place, &Arc<TaskContext>) -> Result<Option<BoxStream<'static, Result<Window>>>>;

/// Begins windows.
pub(super) struct Runner {
    pub(super) plans: Arc<dyn WindowPlans>,
    /// The first pass, which has begun already.
    pub(super) first_pass: Arc<dyn Pass>,
    pub(super) epochs: PassEpochs,
    pub(super) begin: Start,
    pub(super) in_flight: usize,
    pub(super) windows_of: WindowsOf,
    pub(super) shared: Shared,
}

impl Runner {
    /// The windows, each when it has begun.
    pub(super) fn windows(self) -> BoxStream<'static, Result<Window>> {
        // What has begun and waits here is in flight.
        let (send, receive) = mpsc::channel(1);
        let drivers = Drivers::start([async move { self.run(&send).await }]);
        let windows = stream::try_unfold((receive, drivers), |(mut receive, mut drivers)| async move {
            if let Some(window) = receive.recv().await {
                return Ok::<_, DataFusionError>(Some((window, (receive, drivers))));
            }
            while let Some(result) = drivers.next().await {
                result?;
            }
            Ok(None)
        });
        windows.boxed()
    }

    async fn run(self, send: &mpsc::Sender<Window>) -> Result<()> {
        let permits = Arc::new(Semaphore::new(self.in_flight));
        let mut next = Start { is_first: true, ..self.begin.clone() };
        let (mut rows, mut empty) = (0, 0);
        while let Some(epoch) = self.epochs.epoch_of(next.pass) {
            if self.epochs != PassEpochs::OfSource && u64::from(next.label.0) != epoch {
                next.label = (epoch as u32, 0);
            }
            let pass = match next.pass {
                0 => Arc::clone(&self.first_pass),
                number => self.plans.begin(number).await?,
            };
            if !self.pass(pass.as_ref(), &mut next, &permits, send).await? {
                return Ok(());
            }
            next = Start { pass: next.pass + 1, label: next.label, is_first: next.is_first, ..Start::default() };
            let given = self.shared.rows.load(Relaxed);
            empty = if given == rows { empty + 1 } else { 0 };
            rows = given;
            if empty > EMPTY_PASSES && self.epochs.is_endless() {
                return exec_err!(
                    "an endless pipeline gave no rows in {EMPTY_PASSES} passes over its source: nobody would ever get one"
                );
            }
        }
        Ok(())
    }

    /// The windows of a pass, from the next one on. Whether anybody wants more.
    async fn pass(
        &self,
        pass: &dyn Pass,
        next: &mut Start,
        permits: &Arc<Semaphore>,
        send: &mpsc::Sender<Window>,
    ) -> Result<bool> {
        match pass.source() {
            PassSource::Inputs(inputs) => {
                for number in next.number as usize..*inputs {
                    let permit = permit(permits).await?;
                    if !self.begin(pass, next, WindowInput::Source(number), permit, send).await? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            PassSource::Tasks(windows) => {
                for window in windows.iter().skip(next.number as usize) {
                    let permit = permit(permits).await?;
                    if !self.begin(pass, next, WindowInput::Tasks(window.tasks.clone()), permit, send).await? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            PassSource::Rows { plan, size, keeps_epochs } => {
                let place = next.source.clone().unwrap_or_default();
                let windows = (self.windows_of)(plan, &place, &self.shared.context)?;
                let mut cutter = Cutter::start(plan, windows, (*size, *keeps_epochs), next, &self.shared)?;
                loop {
                    let permit = permit(permits).await?;
                    let Some(cut) = cutter.next().await? else {
                        cutter.check()?;
                        return Ok(true);
                    };
                    // Where there are several passes, each is an epoch, whatever was one below.
                    let is_of_source = *keeps_epochs && self.epochs == PassEpochs::OfSource;
                    if is_of_source && cut.epoch != next.label.0 {
                        next.label = (cut.epoch, 0);
                    }
                    next.source = cut.place;
                    if !self.begin(pass, next, WindowInput::Blocks(cut.blocks), permit, send).await? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Begins a window, and says which is the next. Whether anybody wants more.
    async fn begin(
        &self,
        pass: &dyn Pass,
        next: &mut Start,
        input: WindowInput,
        permit: OwnedSemaphorePermit,
        send: &mpsc::Sender<Window>,
    ) -> Result<bool> {
        let holds_blocks = matches!(input, WindowInput::Blocks(_)) && pass.plans_hold_blocks();
        let plan = pass.plan(next.number, next.label, input).await?;
        let window = Window::start(next.clone(), plan, holds_blocks, &self.shared, permit)?;
        let label = (next.label.0, next.label.1 + 1);
        *next = Start { pass: next.pass, number: next.number + 1, label, ..Start::default() };
        Ok(send.send(window).await.is_ok())
    }
}

async fn permit(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    let permit = Arc::clone(permits).acquire_owned().await;
    permit.map_err(|e| exec_datafusion_err!("a pipeline was closed: {e}"))
}
