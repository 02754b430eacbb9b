//! The decisions of the core for threads: workers wait here for their grants.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{Result, config_err, exec_err, plan_datafusion_err, plan_err};
use datafusion::execution::TaskContext;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::core::{Core, OpStatus, Ranking};
use super::op::{OpId, OpSpec, Ticket};
use super::policies::{BackpressurePolicy, policies_by_name};
use super::pool::PoolState;
use super::resources::Resources;
use crate::config::{BlockyardOptions, parse_resources};

/// Decides which operator may start work, for all queries of a session.
pub(crate) struct Scheduler {
    state: Mutex<Books>,
    started: Instant,
    /// Policies of the application, beside those that options name.
    policies: Vec<Arc<dyn BackpressurePolicy>>,
}

struct Books {
    core: Core,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

impl Scheduler {
    /// A scheduler as the options say, with `policies` beside those that they name.
    pub(crate) fn new(
        policies: Vec<Arc<dyn BackpressurePolicy>>,
        options: &BlockyardOptions,
        threads: usize,
    ) -> Result<Self> {
        let core = Core::new(Resources::default(), Vec::new(), Ranking::default());
        let state = Books { core, waiting: HashMap::new() };
        let scheduler = Self { state: Mutex::new(state), started: Instant::now(), policies };
        scheduler.configure(options, threads)?;
        Ok(scheduler)
    }

    /// Does as the options say from now on, for running queries too. `threads` run queries.
    pub(crate) fn configure(&self, options: &BlockyardOptions, threads: usize) -> Result<()> {
        let limit = options.memory_limit.bytes() as u64;
        if !(0.0..=1e6).contains(&options.num_gpus) {
            return config_err!("num_gpus must be a number from 0 to 1000000, got {}", options.num_gpus);
        }
        let thousandths = |amount: f64| (amount * 1000.0) as u64;
        let named = parse_resources(&options.resources)?;
        let total = Resources {
            milli_cpus: 1000 * threads.max(options.num_cpus) as u64,
            milli_gpus: thousandths(options.num_gpus),
            memory: limit,
            object_store_memory: limit,
            custom: named.into_iter().map(|(name, amount)| (name, thousandths(amount))).collect(),
        };
        let mut policies = policies_by_name(&options.backpressure_policies)?;
        policies.extend(self.policies.iter().cloned());
        let ranking = Ranking::by_name(&options.scheduler_ranking)?;
        self.tell(|core, _| core.configure(total, policies, ranking));
        Ok(())
    }

    /// The scheduler of the session that a task runs in.
    pub(crate) fn of_task(context: &TaskContext) -> Result<Arc<Self>> {
        context.session_config().get_extension::<Self>().ok_or_else(|| {
            plan_datafusion_err!(
                "this session has no scheduler; build it with SessionStateBuilderExt::with_blockyard or DataContext"
            )
        })
    }

    /// What one query may use, by its options.
    pub(crate) fn limits_of_query(&self, options: &BlockyardOptions) -> Resources {
        let total = self.total();
        Resources {
            milli_cpus: options.resource_limits_cpu.of(total.milli_cpus, 1000),
            milli_gpus: options.resource_limits_gpu.of(total.milli_gpus, 1000),
            memory: options.resource_limits_memory.of(total.memory, 1),
            object_store_memory: options.resource_limits_object_store_memory.of(total.object_store_memory, 1),
            ..Resources::default()
        }
    }

    /// What all queries together may use.
    pub(crate) fn total(&self) -> Resources {
        self.state.lock().core.total().clone()
    }

    /// Lets the core see an event, and wakes those who may go on after it.
    fn tell<T>(&self, event: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let now = self.started.elapsed();
        let mut state = self.state.lock();
        let told = event(&mut state.core, now);
        while let Some((id, ticket)) = state.core.next_grant(now) {
            // One who no longer waits gives back what it would have got.
            let woken = state.waiting.remove(&ticket).is_some_and(|waiting| waiting.send(()).is_ok());
            if !woken {
                state.core.finished(id, now);
            }
        }
        told
    }

    /// What operators of all queries do now.
    pub(crate) fn statuses(&self) -> Vec<OpStatus> {
        self.state.lock().core.statuses(self.started.elapsed())
    }

    /// An error that explains what each operator of a query waits for, if nothing runs in it and nothing has happened
    /// `within` so long; or soon, if what it waits for cannot come.
    pub(crate) fn check_progress(&self, query: u64, quiet: Quiet, within: Option<Duration>) -> Result<()> {
        let now = self.started.elapsed();
        let state = self.state.lock();
        if let Some((name, (resource, wanted, there))) = state.core.impossible(query) {
            let thousandths = |amount: u64| amount as f64 / 1000.0;
            return exec_err!(
                "a task of {name} needs {} {resource}, but there are {} since {} was changed: {}",
                thousandths(wanted),
                thousandths(there),
                option_of(&resource),
                state.core.explain(query, now)
            );
        }
        let (Some(last), Some(within)) = (state.core.last_progress(query), within) else {
            return Ok(());
        };
        // A task may take as long as it likes.
        if now.saturating_sub(last).min(quiet.memory) >= within && !state.core.runs(query) {
            return exec_err!(
                "no progress for {} s: {}; blockyard.execution_no_progress_timeout_s says how long to wait",
                within.as_secs(),
                state.core.explain(query, now)
            );
        }
        match state.core.waits_for_itself(query, quiet.memory.min(quiet.process), now) {
            Some(waits) => exec_err!(
                "the query waits for itself, which is a defect of Blockyard: nothing has been under way for {} s, and {}",
                waits.as_secs(),
                state.core.explain(query, now)
            ),
            None => Ok(()),
        }
    }

    /// Adds an operator of a query, until the handle drops. Fails when it needs what is not there.
    pub(crate) fn add(self: &Arc<Self>, query: u64, limits: &Resources, spec: OpSpec) -> Result<OpHandle> {
        let name = spec.name.clone();
        match self.tell(|core, now| core.add(query, limits, spec, now)) {
            Ok(id) => Ok(OpHandle { scheduler: Arc::clone(self), id }),
            Err((resource, wanted, there)) => {
                let thousandths = |amount: u64| amount as f64 / 1000.0;
                let option = option_of(&resource);
                plan_err!(
                    "a task of {name} needs {} {resource}, but there are {} ({option} says how many)",
                    thousandths(wanted),
                    thousandths(there)
                )
            }
        }
    }
}

/// For how long nothing has moved outside of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quiet {
    /// No memory was taken or given back.
    pub(crate) memory: Duration,
    /// Nothing was under way in this process.
    pub(crate) process: Duration,
}

/// The option that says how much there is of a resource.
fn option_of(resource: &str) -> &'static str {
    match resource {
        "GPUs" => "blockyard.num_gpus",
        _ => "blockyard.resources",
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scheduler({})", self.state.lock().core.total())
    }
}

/// An operator, known to the scheduler as long as this lives.
#[derive(Debug)]
pub(crate) struct OpHandle {
    scheduler: Arc<Scheduler>,
    id: OpId,
}

impl OpHandle {
    pub(crate) fn id(&self) -> OpId {
        self.id
    }

    /// Waits until one more task may start.
    pub(crate) async fn start(self: &Arc<Self>) -> Permit {
        self.wait(Undo::Start, |core, id, now| core.ask_start(id, now)).await;
        Permit { op: Arc::clone(self), state: PermitState::Runs }
    }

    async fn wait(&self, undo: Undo, ask: impl FnOnce(&mut Core, OpId, Duration) -> Ticket) {
        let (send, receive) = oneshot::channel();
        let ticket = {
            // The answer may come before the lock is free again.
            let now = self.scheduler.started.elapsed();
            let mut state = self.scheduler.state.lock();
            let ticket = ask(&mut state.core, self.id, now);
            state.waiting.insert(ticket, send);
            ticket
        };
        let mut asked = Asked { op: self, ticket, receive, undo };
        self.scheduler.tell(|_, _| ());
        // The sender is only dropped with the scheduler.
        let _granted = (&mut asked.receive).await;
        asked.undo = Undo::Nothing;
    }

    /// Says that a block came to the out queue.
    pub(crate) fn produced(&self, bytes: usize) {
        self.scheduler.tell(|core, now| core.produced(self.id, bytes as u64, now));
    }

    /// Says that a block was taken from the out queue. It is held until the result drops.
    pub(crate) fn taken(self: &Arc<Self>, bytes: usize) -> HeldBlock {
        self.scheduler.tell(|core, now| core.taken(self.id, bytes as u64, now));
        HeldBlock { op: Arc::clone(self), bytes }
    }

    /// Says what the actors of the operator do, and learns by how many to grow, or to shrink if it is negative.
    pub(crate) fn scale(&self, state: PoolState) -> isize {
        self.scheduler.tell(|core, now| {
            core.pool_is(self.id, state, now);
            core.pool_change(self.id, now)
        })
    }

    /// What the operator has done up to now.
    pub(crate) fn status(&self) -> Option<OpStatus> {
        self.scheduler.state.lock().core.status(self.id, self.scheduler.started.elapsed())
    }

    /// Says what the actors of the operator do.
    pub(crate) fn pool_is(&self, state: PoolState) {
        self.scheduler.tell(|core, now| core.pool_is(self.id, state, now));
    }

    /// Says whether the consumer waits for a block.
    pub(crate) fn consumer_waits(&self, waits: bool) {
        self.scheduler.tell(|core, now| core.consumer_waits(self.id, waits, now));
    }
}

impl Drop for OpHandle {
    fn drop(&mut self) {
        self.scheduler.tell(|core, _| core.remove(self.id));
    }
}

/// What has to be taken back when nobody uses a grant.
#[derive(Debug, Clone, Copy)]
enum Undo {
    Nothing,
    Start,
    Resume,
}

/// A worker that waits for its answer. Dropping it takes the question back, or the answer that it did not see.
struct Asked<'a> {
    op: &'a OpHandle,
    ticket: Ticket,
    receive: oneshot::Receiver<()>,
    undo: Undo,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let (scheduler, id) = (&self.op.scheduler, self.op.id);
        let now = scheduler.started.elapsed();
        let mut state = scheduler.state.lock();
        match self.undo {
            Undo::Nothing => return,
            _ if state.waiting.remove(&self.ticket).is_some() => state.core.withdraw(id, self.ticket, now),
            Undo::Start => state.core.finished(id, now),
            Undo::Resume => state.core.pause(id, now),
        }
        drop(state);
        scheduler.tell(|_, _| ());
    }
}

/// A task that may run. It has its resources until it pauses or this drops.
#[derive(Debug)]
pub(crate) struct Permit {
    op: Arc<OpHandle>,
    state: PermitState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PermitState {
    Runs,
    Paused,
    AwaitsInput,
}

impl Permit {
    /// Whether the task has its resources.
    pub(crate) fn runs(&self) -> bool {
        self.state == PermitState::Runs
    }

    /// Whether the task may give its next block now.
    pub(crate) fn may_give(&self) -> bool {
        self.op.scheduler.tell(|core, _| core.may_give(self.op.id))
    }

    /// Gives up the resources.
    pub(crate) fn pause(&mut self) {
        if self.runs() {
            self.state = PermitState::Paused;
            self.op.scheduler.tell(|core, now| core.pause(self.op.id, now));
        }
    }

    /// Gives up the resources until other stages have made the task's input.
    pub(crate) fn await_input(&mut self) {
        if self.runs() {
            self.state = PermitState::AwaitsInput;
            self.op.scheduler.tell(|core, now| core.await_input(self.op.id, now));
        }
    }

    /// Says that there is input again, and waits until the task may work on it. It may at once when there are
    /// resources: whatever holds tasks back has let this one begin.
    pub(crate) async fn input_came(&mut self) {
        if self.state == PermitState::AwaitsInput {
            self.state = PermitState::Paused;
            self.op.scheduler.tell(|core, now| core.input_came(self.op.id, now));
            self.resume(true).await;
        }
    }

    /// Waits until the paused task may go on and give one block. `urgent` if everybody waits for it.
    pub(crate) async fn resume(&mut self, urgent: bool) {
        if !self.runs() {
            self.op.wait(Undo::Resume, |core, id, now| core.ask_resume(id, urgent, now)).await;
            self.state = PermitState::Runs;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (id, state) = (self.op.id, self.state);
        self.op.scheduler.tell(|core, now| match state {
            PermitState::Runs => core.finished(id, now),
            PermitState::Paused => core.abandoned(id, now),
            PermitState::AwaitsInput => {
                core.input_came(id, now);
                core.abandoned(id, now);
            }
        });
    }
}

/// A block that a consumer works on; its bytes belong to its producer until this drops.
#[derive(Debug)]
pub(crate) struct HeldBlock {
    op: Arc<OpHandle>,
    bytes: usize,
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        self.op.scheduler.tell(|core, now| core.freed(self.op.id, self.bytes as u64, now));
    }
}
