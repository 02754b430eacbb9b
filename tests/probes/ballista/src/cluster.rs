//! A scheduler and two executors, each a process of its own.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::child::Process;
use crate::gates::Gates;
use crate::scenario::{OneStageVariant, Scenario};
use crate::{EXECUTORS, Outcome, executor, scheduler};

/// The executor that is killed, and the other one.
pub(crate) const VICTIM: usize = 0;
pub(crate) const SURVIVOR: usize = 1;
/// What is expected to happen soon is given so much time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often one looks whether it has happened.
const LOOK: Duration = Duration::from_millis(3);

pub(crate) struct Cluster {
    pub(crate) scheduler: Process,
    pub(crate) executors: Vec<Process>,
    pub(crate) gates: Gates,
    directory: PathBuf,
    executor_timeout_seconds: u64,
}

impl Cluster {
    /// Starts it, and waits until all executors are registered.
    pub(crate) async fn start(scenario: Scenario, directory: &Path) -> Outcome<Self> {
        // In a pause nobody should be taken for dead.
        let is_pause = scenario == Scenario::OneStage(OneStageVariant::Pause);
        let executor_timeout_seconds = if is_pause { 60 } else { 5 };
        let scheduler = start_scheduler(directory, 0, executor_timeout_seconds, "scheduler.log")?;
        let shuffles = matches!(scenario, Scenario::Shuffle(_));
        let executors = (0..EXECUTORS).map(|n| start_executor(directory, n, scheduler.port, shuffles));
        let executors = executors.collect::<Outcome<Vec<_>>>()?;
        let (gates, directory) = (Gates::of(directory), directory.to_owned());
        let cluster = Self { scheduler, executors, gates, directory, executor_timeout_seconds };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// Starts a scheduler on the port of the dead one.
    pub(crate) fn restart_scheduler(&mut self) -> Outcome<()> {
        let (port, timeout) = (self.scheduler.port, self.executor_timeout_seconds);
        self.scheduler = start_scheduler(&self.directory, port, timeout, "scheduler-2.log")?;
        Ok(())
    }

    /// Waits until the scheduler knows all executors.
    pub(crate) async fn ready(&self) -> Outcome<()> {
        wait("the executors to register", || Ok(is_ready(self.scheduler.port).unwrap_or(false))).await
    }

    pub(crate) fn pid(&self, executor: usize) -> u32 {
        self.executors[executor].pid()
    }

    pub(crate) fn work_dir(&self, executor: usize) -> PathBuf {
        work_dir(&self.directory, executor)
    }

    /// Lets tasks through until the victim has finished that many and the survivor that many, and both are held in one
    /// more.
    pub(crate) async fn progress(&self, of_victim: usize, of_survivor: usize) -> Outcome<()> {
        let targets = [(self.pid(VICTIM), of_victim), (self.pid(SURVIVOR), of_survivor)];
        wait("tasks to go on", || {
            let mut reached = true;
            for (pid, target) in targets {
                let (finished, started) = (self.gates.done_on(pid)?.len(), self.gates.started_on(pid)?);
                if finished < target {
                    started.iter().try_for_each(|task| self.gates.open(task))?;
                }
                reached &= finished >= target && started.len() > finished;
            }
            Ok(reached)
        })
        .await
    }

    /// Waits until the scheduler takes the victim for dead. How long that took.
    pub(crate) async fn removal(&self, since: Instant) -> Outcome<Duration> {
        wait("the removal of an executor", || self.has_removed_victim()).await?;
        Ok(since.elapsed())
    }

    pub(crate) fn has_removed_victim(&self) -> Outcome<bool> {
        let log = fs::read_to_string(self.directory.join("scheduler.log"))?;
        Ok(log.contains(&format!("Removing executor {}", executor_id(VICTIM))))
    }

    pub(crate) fn executor_log(&self, executor: usize) -> io::Result<String> {
        fs::read_to_string(self.directory.join(log_file(executor)))
    }

    /// What the processes have in memory.
    pub(crate) fn memory(&self) -> Outcome<String> {
        Ok(format!("scheduler {}, executor {}", self.scheduler.memory()?, self.executors[VICTIM].memory()?))
    }
}

pub(crate) fn executor_id(executor: usize) -> String {
    format!("e{executor}")
}

fn log_file(executor: usize) -> String {
    format!("executor-{executor}.log")
}

fn work_dir(directory: &Path, executor: usize) -> PathBuf {
    directory.join(format!("work-{executor}"))
}

fn start_scheduler(directory: &Path, port: u16, executor_timeout_seconds: u64, log: &str) -> Outcome<Process> {
    let args = [scheduler::COMMAND, &port.to_string(), &executor_timeout_seconds.to_string()];
    Process::start(&args, &directory.join(log))
}

fn start_executor(directory: &Path, number: usize, scheduler_port: u16, shuffles: bool) -> Outcome<Process> {
    let work_dir = work_dir(directory, number);
    fs::create_dir_all(&work_dir)?;
    let (id, scheduler_port) = (executor_id(number), scheduler_port.to_string());
    let args = [executor::COMMAND, &id, &scheduler_port, &work_dir.to_string_lossy(), &shuffles.to_string()];
    Process::start(&args, &directory.join(log_file(number)))
}

/// Looks every few milliseconds whether something has happened.
pub(crate) async fn wait(what: &str, mut happened: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let begin = Instant::now();
    while !happened()? {
        if begin.elapsed() > PATIENCE {
            return Err(format!("waited {} s for {what}", PATIENCE.as_secs()).into());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// The scheduler answers with an error until it knows as many executors as it is to have.
fn is_ready(port: u16) -> io::Result<bool> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(socket, "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
