//! The executors of a query, as its driver sees them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use futures::FutureExt;
use futures::future::{pending, select_all};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::credentials::{Credentials, Reach};
use super::messages::{Call, Connection, Prepared, Reply};
use crate::error::one_message;
use crate::wire::Address;

/// What a thread sorts at once has at most this part of its memory: of rows that are fetched there are several copies,
/// and others are sorted before they are kept.
const SORTED_PART: usize = 16;
const MIN_SORTED_BYTES: usize = 1 << 20;
const MAX_SORTED_BYTES: usize = 32 << 20;

/// An executor that has planned a query.
#[derive(Debug)]
pub(super) struct Executor {
    address: Address,
    credentials: Credentials,
    query: String,
    threads: usize,
    /// Bytes that its blocks and operators may have.
    memory: usize,
    /// Whom it can ask for rows.
    reach: Reach,
    /// Whom it could not ask, and why.
    barred: Mutex<BTreeMap<String, String>>,
    /// Units that it runs.
    running: AtomicUsize,
    /// Why it is not asked any more.
    lost: watch::Sender<Option<String>>,
}

impl Executor {
    pub(super) fn new(address: Address, credentials: Credentials, prepared: &Prepared) -> Self {
        let (query, threads) = (prepared.query.clone(), prepared.threads.max(1));
        let (memory, reach) = (prepared.memory, prepared.reach);
        let (running, lost) = (AtomicUsize::new(0), watch::Sender::default());
        Self { address, credentials, query, threads, memory, reach, barred: Mutex::default(), running, lost }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it may ask these for their rows.
    fn may_ask(&self, holders: &[String]) -> bool {
        let may_ask = |holder: &String| {
            let address: Result<Address> = holder.parse();
            address.is_ok_and(|address| {
                address == self.address || self.reach.covers(&address) && !self.barred.lock().contains_key(holder)
            })
        };
        holders.iter().all(may_ask)
    }

    /// It cannot ask the one at this address.
    pub(super) fn bar(&self, holder: String, why: String) {
        self.barred.lock().entry(holder).or_insert(why);
    }

    /// What it calls the query.
    pub(super) fn query(&self) -> &str {
        &self.query
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// It is gone: nobody waits for it any more.
    pub(super) fn lose(&self, why: &DataFusionError) {
        self.lost.send_if_modified(|lost| {
            let is_news = lost.is_none();
            lost.get_or_insert_with(|| one_message(why));
            is_news
        });
    }

    /// Where it was, and why it is lost, if it is.
    pub(super) fn why_lost(&self) -> Option<String> {
        self.lost.borrow().as_ref().map(|why| format!("{}: {why}", self.address))
    }

    /// Waits until it is lost.
    pub(super) async fn loss(&self) -> DataFusionError {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => exec_datafusion_err!("{}", why.as_deref().unwrap_or_default()),
            Err(e) => exec_datafusion_err!("{e}"),
        }
    }

    /// Calls it, and gives its first line, or says why there is none.
    pub(super) async fn call(&self, call: &Call) -> Result<(Connection, Reply), Ended> {
        let connection = Connection::call(&self.address, &self.credentials, call).await;
        let mut connection = connection.map_err(Ended::Lost)?;
        match connection.reply().await.map_err(Ended::Lost)? {
            Reply::Unknown => Err(Ended::Lost(exec_datafusion_err!("it has been started anew"))),
            Reply::Refused(why) | Reply::Failed(why) => Err(self.failed(&why)),
            Reply::Missing(address, why) => Err(Ended::Missing(address, why)),
            Reply::Barred(address, why) => Err(Ended::Barred(address, why)),
            reply => Ok((connection, reply)),
        }
    }

    /// What it says that has gone wrong.
    pub(super) fn failed(&self, why: &str) -> Ended {
        Ended::Failed(exec_datafusion_err!("the executor at {}: {why}", self.address))
    }

    /// It says what executors do not say.
    pub(super) fn is_none(&self) -> Ended {
        Ended::Failed(exec_datafusion_err!("{} is no executor", self.address))
    }
}

/// Why an attempt has ended before its rows have.
#[derive(Debug)]
pub(super) enum Ended {
    /// Its executor is gone: another one can try.
    Lost(DataFusionError),
    /// The executor at this address does not give what others need: that has to be made again.
    Missing(String, String),
    /// Its executor cannot ask the one at this address: another one can try.
    Barred(String, String),
    /// Another one would fail too.
    Failed(DataFusionError),
}

/// What an executor has done of a stage.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) executor: Arc<Executor>,
    pub(super) tasks: AtomicUsize,
    pub(super) rows: AtomicU64,
    /// Why it cannot write files for the driver, if that is known.
    blind: OnceLock<String>,
}

impl Share {
    /// It cannot write files for the driver.
    pub(super) fn is_blind(&self, why: &DataFusionError) {
        self.blind.get_or_init(|| one_message(why));
    }

    /// Whether it can, as far as is known.
    pub(super) fn sees(&self) -> bool {
        self.blind.get().is_none()
    }
}

/// An executor that runs one unit more, as long as this is there.
#[derive(Debug)]
pub(super) struct Busy(Arc<Share>);

impl Busy {
    pub(super) fn share(&self) -> &Arc<Share> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.executor.running.fetch_sub(1, Relaxed);
    }
}

/// Those that run a stage.
#[derive(Debug)]
pub(super) struct Shares {
    all: Vec<Arc<Share>>,
    /// Only one is chosen at once: what is seen of the others is not to change meanwhile.
    choosing: Mutex<()>,
}

impl Shares {
    pub(super) fn of(executors: Vec<Arc<Executor>>) -> Self {
        let share = |executor| {
            let (tasks, rows) = (AtomicUsize::new(0), AtomicU64::new(0));
            Arc::new(Share { executor, tasks, rows, blind: OnceLock::new() })
        };
        Self { all: executors.into_iter().map(share).collect(), choosing: Mutex::default() }
    }

    /// How many there were.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Those that are there.
    pub(super) fn living(&self) -> impl Iterator<Item = &Arc<Share>> {
        self.all.iter().filter(|share| !share.executor.is_lost())
    }

    /// How many units they run at once.
    pub(super) fn slots(&self) -> usize {
        self.living().map(|share| share.executor.threads).sum()
    }

    /// What each thread of the smallest sorts at once.
    pub(super) fn sorted_bytes(&self) -> usize {
        let least = self.living().map(|share| share.executor.memory / share.executor.threads).min();
        (least.unwrap_or_default() / SORTED_PART).clamp(MIN_SORTED_BYTES, MAX_SORTED_BYTES)
    }

    /// The one with the fewest units for its threads, of those that may ask the `holders` of the rows it needs, and can
    /// write files for the driver if it `writes`. Where one of the holders is lost, and where one is given up that most
    /// may not ask, others are to make what it keeps first: `None`.
    pub(super) fn free(&self, writes: bool, holders: &[String]) -> Result<Option<Busy>> {
        let _one_at_once = self.choosing.lock();
        let holds = |share: &&Arc<Share>| holders.contains(&share.executor.address.to_string());
        if self.all.iter().filter(holds).any(|share| share.executor.is_lost()) {
            return Ok(None);
        }
        let able_without = |without: Option<&Arc<Share>>| -> Vec<&Arc<Share>> {
            let is_left = |holder: &&String| without.is_none_or(|gone| gone.executor.address.to_string() != **holder);
            let left: Vec<String> = holders.iter().filter(is_left).cloned().collect();
            let is_gone = |share: &Arc<Share>| without.is_some_and(|gone| Arc::ptr_eq(gone, share));
            let is_able = |share: &&Arc<Share>| !is_gone(share) && share.executor.may_ask(&left);
            self.living().filter(is_able).filter(|share| !writes || share.sees()).collect()
        };
        let threads = |able: &[&Arc<Share>]| able.iter().map(|share| share.executor.threads).sum::<usize>();
        // Whom others cannot ask may become known meanwhile, and is seen in the next attempt.
        let able = able_without(None);
        let is_barred = |share: &Arc<Share>| !share.executor.may_ask(holders);
        if self.living().any(is_barred) {
            let asked_by = |holder: &Arc<Share>| {
                let holder = [holder.executor.address.to_string()];
                self.living().filter(|share| share.executor.may_ask(&holder)).count()
            };
            let in_the_way = |share: &&Arc<Share>| (threads(&able_without(Some(share))), Reverse(asked_by(share)));
            let left_without = |share: &Arc<Share>| threads(&able_without(Some(share)));
            // Without it others do more than twice as much; or nobody may ask all, and fewer are to be asked then.
            let is_too_much = |share: &&Arc<Share>| match able.is_empty() {
                true => self.living().all(is_barred),
                false => left_without(share) > 2 * threads(&able),
            };
            if let Some(share) = self.living().filter(holds).max_by_key(in_the_way).filter(is_too_much) {
                share.executor.lose(&exec_datafusion_err!("others cannot ask it for the rows that it keeps"));
                return Ok(None);
            }
        }
        let load = |share: &&Arc<Share>| share.executor.running.load(Relaxed) * 1024 / share.executor.threads;
        if let Some(share) = able.into_iter().min_by_key(load) {
            share.executor.running.fetch_add(1, Relaxed);
            return Ok(Some(Busy(Arc::clone(share))));
        }
        let lost: Vec<String> = self.all.iter().filter_map(|share| share.executor.why_lost()).collect();
        match self.living().next() {
            Some(_) => exec_err!("no executor that is left can write files there; {}", lost.join("; ")),
            None => exec_err!("all executors that have planned the query were lost; {}", lost.join("; ")),
        }
    }

    /// Does not ask the one at an address any more.
    pub(super) fn lose(&self, address: &str, why: &str) {
        for share in self.all.iter().filter(|share| share.executor.address.to_string() == address) {
            share.executor.lose(&exec_datafusion_err!("{why}"));
        }
    }

    /// Waits until one of those at these addresses is lost; where that was.
    pub(super) async fn loss_among(&self, addresses: &[String]) -> Ended {
        let among = self.all.iter().filter(|share| addresses.contains(&share.executor.address.to_string()));
        let losses: Vec<_> = among.map(|share| share.executor.loss().map(move |why| (share, why)).boxed()).collect();
        if losses.is_empty() {
            return pending().await;
        }
        let ((share, why), ..) = select_all(losses).await;
        Ended::Missing(share.executor.address.to_string(), one_message(&why))
    }

    /// Which may not ask all of the others for their rows, and why.
    pub(super) fn out_of_reach(&self) -> Vec<String> {
        let executors = || self.all.iter().map(|share| &share.executor);
        let without = |executor: &Arc<Executor>| {
            let is_far =
                |other: &&Arc<Executor>| other.address != executor.address && !executor.reach.covers(&other.address);
            let other = executors().find(is_far)?;
            let lacks = match (executor.reach.token, other.address.is_encrypted()) {
                (false, _) => "has no token to show to others",
                (true, true) => "believes no certificate of others",
                (true, false) => "shows its token to nobody where nothing is encrypted",
            };
            Some(format!("{} {lacks}, and runs nothing above an exchange", executor.address))
        };
        let barred = |executor: &Arc<Executor>| {
            let barred = executor.barred.lock();
            let said = barred.iter().map(|(holder, why)| format!("{} cannot ask {holder}: {why}", executor.address));
            said.collect::<Vec<_>>()
        };
        executors().filter_map(without).chain(executors().flat_map(barred)).collect()
    }

    /// What each has done of a stage of this name, whose rows are called `rows`, and which are lost.
    pub(super) fn remarks(&self, stage: &str, rows: &str) -> Vec<String> {
        let done = |share: &Arc<Share>| {
            let (tasks, given) = (share.tasks.load(Relaxed), share.rows.load(Relaxed));
            let rows = if share.sees() { rows } else { "rows" };
            (tasks > 0).then(|| format!("{}: {tasks} tasks, {given} {rows}", share.executor.address))
        };
        let done: Vec<String> = self.all.iter().filter_map(done).collect();
        let ran = (!done.is_empty()).then(|| format!("{stage} ran at {}", done.join("; ")));
        let lost = |share: &Arc<Share>| share.executor.why_lost().map(|why| format!("an executor was lost, {why}"));
        let blind = |share: &Arc<Share>| {
            let why = share.blind.get()?;
            Some(format!("{} cannot write files to the directory of {stage}: {why}", share.executor.address))
        };
        ran.into_iter().chain(self.all.iter().filter_map(lost)).chain(self.all.iter().filter_map(blind)).collect()
    }
}
