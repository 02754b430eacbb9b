//! Threads that build something, and then run one job after the other that uses it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_datafusion_err};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{UnderWay, backoff, in_thread};
use crate::error::panic_text;

/// What a task of an actor is.
pub(crate) type Job = BoxFuture<'static, Result<()>>;

/// What each actor does on its thread before its first job, and after its last.
#[derive(Clone)]
pub(crate) struct ActorLife {
    /// Builds what jobs use; tried again when it fails.
    pub(crate) build: Arc<dyn Fn() -> Result<()> + Send + Sync>,
    /// How often it is tried again.
    pub(crate) retries: usize,
    /// Drops what was built.
    pub(crate) end: fn(),
}

/// The time before a second try, which doubles with each more.
const BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// A pool of actors. Dropping it ends each of them after the job that it is in.
pub(crate) struct Actors {
    life: ActorLife,
    actors: BTreeMap<usize, ActorThread>,
    /// Actors that were told to end and have not yet.
    ending: usize,
    next: usize,
    tell: UnboundedSender<ActorMessage>,
    told: UnboundedReceiver<ActorMessage>,
}

struct ActorThread {
    jobs: UnboundedSender<Job>,
    state: ActorStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ActorStatus {
    Building,
    Idle,
    Busy,
}

enum ActorMessage {
    Ready(usize),
    Done(usize, Result<()>),
    Failed(usize, DataFusionError),
    Gone,
}

impl Actors {
    pub(crate) fn new(life: ActorLife) -> Self {
        let (tell, told) = unbounded_channel();
        Self { life, actors: BTreeMap::new(), ending: 0, next: 0, tell, told }
    }

    fn count(&self, state: ActorStatus) -> usize {
        self.actors.values().filter(|actor| actor.state == state).count()
    }

    /// Actors that are being built.
    pub(crate) fn pending(&self) -> usize {
        self.count(ActorStatus::Building)
    }

    /// Actors that run a job.
    pub(crate) fn busy(&self) -> usize {
        self.count(ActorStatus::Busy)
    }

    /// Actors that run a job or could.
    pub(crate) fn ready(&self) -> usize {
        self.actors.len() - self.pending()
    }

    /// Starts one more actor.
    pub(crate) fn grow(&mut self) -> Result<()> {
        let (jobs, mut receive) = unbounded_channel::<Job>();
        let (life, tell, number, runtime) = (self.life.clone(), self.tell.clone(), self.next, Handle::current());
        in_thread("blockyard-actor", move || {
            let built = build(&life, number, &|| jobs_closed(&receive));
            let say = |told| {
                // Nobody listens any more when the pool has been dropped.
                let _heard = tell.send(told);
            };
            match built {
                Ok(()) => {
                    say(ActorMessage::Ready(number));
                    while let Some(job) = receive.blocking_recv() {
                        let done = runtime.block_on(UnderWay::while_polled(AssertUnwindSafe(job).catch_unwind()));
                        let done = done.unwrap_or_else(|panic| {
                            Err(exec_datafusion_err!("a task panicked: {}", panic_text(panic.as_ref())))
                        });
                        say(ActorMessage::Done(number, done));
                    }
                }
                Err(e) => say(ActorMessage::Failed(number, e)),
            }
            // Whatever happens in it concerns nobody else.
            let _ended = std::panic::catch_unwind(life.end);
            say(ActorMessage::Gone);
        })?;
        self.actors.insert(number, ActorThread { jobs, state: ActorStatus::Building });
        self.next += 1;
        Ok(())
    }

    /// Ends up to `n` actors that run nothing, those that are not yet built first.
    pub(crate) fn shrink(&mut self, n: usize) {
        let mut idle: Vec<_> = self.actors.iter().filter(|(_, actor)| actor.state != ActorStatus::Busy).collect();
        idle.sort_by_key(|(number, actor)| (actor.state != ActorStatus::Building, std::cmp::Reverse(**number)));
        let ends: Vec<usize> = idle.into_iter().take(n).map(|(number, _)| *number).collect();
        for number in ends {
            self.actors.remove(&number);
            self.ending += 1;
        }
    }

    /// Gives a job to an actor that has none.
    pub(crate) fn run(&mut self, job: Job) -> Result<()> {
        let idle = self.actors.values_mut().find(|actor| actor.state == ActorStatus::Idle);
        let actor = idle.ok_or_else(|| internal_datafusion_err!("a job was granted, but all actors are busy"))?;
        actor.state = ActorStatus::Busy;
        actor.jobs.send(job).map_err(|_| exec_datafusion_err!("the thread of an actor ended"))
    }

    /// Waits until an actor is ready, or has ended its job. An actor that could not be built and a job that failed are
    /// errors.
    pub(crate) async fn next(&mut self) -> Result<()> {
        let told = self.told.recv().await;
        let idle = match told {
            Some(ActorMessage::Ready(number)) => number,
            Some(ActorMessage::Done(number, done)) => {
                done?;
                number
            }
            // One that was told to end is not missed.
            Some(ActorMessage::Failed(number, e)) if self.actors.contains_key(&number) => return Err(e),
            Some(ActorMessage::Failed(..)) => return Ok(()),
            Some(ActorMessage::Gone) => {
                self.ending = self.ending.saturating_sub(1);
                return Ok(());
            }
            None => return Ok(()),
        };
        if let Some(actor) = self.actors.get_mut(&idle) {
            actor.state = ActorStatus::Idle;
        }
        Ok(())
    }

    /// Ends all actors and waits until they have dropped what they built. They must have no jobs.
    pub(crate) async fn close(mut self) -> Result<()> {
        self.shrink(usize::MAX);
        while self.ending > 0 {
            self.next().await?;
        }
        Ok(())
    }
}

fn jobs_closed(jobs: &UnboundedReceiver<Job>) -> bool {
    jobs.is_closed()
}

/// Tries to build, several times where it fails, unless nobody waits for it any more.
fn build(life: &ActorLife, number: usize, is_over: &dyn Fn() -> bool) -> Result<()> {
    let _under_way = UnderWay::begin();
    let mut attempt = 0;
    loop {
        let built = std::panic::catch_unwind(AssertUnwindSafe(|| (life.build)()));
        let error = match built {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => e,
            Err(panic) => exec_datafusion_err!("it panicked: {}", panic_text(panic.as_ref())),
        };
        if attempt == life.retries || is_over() {
            let tries = attempt + 1;
            return Err(error.context(format!("an actor could not be built, tried {tries} times")));
        }
        std::thread::sleep(backoff(attempt, BACKOFF, LONGEST_BACKOFF, (number as u64) << 32));
        attempt += 1;
    }
}

impl fmt::Debug for Actors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Actors({} ready, {} pending)", self.ready(), self.pending())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use datafusion::common::exec_err;

    use super::*;

    thread_local! {
        static JOBS: Cell<usize> = const { Cell::new(0) };
    }

    static ENDED: AtomicUsize = AtomicUsize::new(0);

    #[tokio::test]
    async fn actors_keep_their_threads_and_drop_what_they_have() {
        let end = || {
            ENDED.fetch_add(1, SeqCst);
        };
        let mut actors = Actors::new(ActorLife { build: Arc::new(|| Ok(())), retries: 0, end });
        (0..2).for_each(|_| actors.grow().unwrap());
        assert_eq!((actors.ready(), actors.pending()), (0, 2));
        let most = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            while actors.busy() == actors.ready() {
                actors.next().await.unwrap();
            }
            let most = Arc::clone(&most);
            let job = async move {
                JOBS.set(JOBS.get() + 1);
                most.fetch_max(JOBS.get(), SeqCst);
                Ok(())
            };
            actors.run(job.boxed()).unwrap();
        }
        while actors.busy() > 0 {
            actors.next().await.unwrap();
        }
        assert!(most.load(SeqCst) >= 5, "two threads ran ten jobs");
        actors.close().await.unwrap();
        assert_eq!(ENDED.load(SeqCst), 2);
    }

    #[tokio::test]
    async fn building_is_tried_again_and_then_an_error() {
        for (failures, is_built) in [(2, true), (3, false)] {
            let tries = Arc::new(AtomicUsize::new(0));
            let build = move || match tries.fetch_add(1, SeqCst) {
                n if n < failures && n % 2 == 1 => panic!("no model today"),
                n if n < failures => exec_err!("no model today"),
                _ => Ok(()),
            };
            let mut actors = Actors::new(ActorLife { build: Arc::new(build), retries: 2, end: || {} });
            actors.grow().unwrap();
            match actors.next().await {
                Ok(()) => assert!(is_built && actors.ready() == 1),
                Err(e) => {
                    let e = e.to_string();
                    assert!(!is_built && e.contains("tried 3 times") && e.contains("no model today"), "{e}");
                }
            }
        }
    }
}
