//! What tasks and the driver tell each other, by files in the directory of a round.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tasks add a line here when they have come to their gate,
const STARTED: &str = "started.log";
/// and here when they are behind it and have all their input.
const DONE: &str = "done.log";
/// Opens all gates.
const ALL_OPEN: &str = "all-open";
/// How often one looks for a file of the other side.
const LOOK: Duration = Duration::from_millis(3);

/// Where tasks wait until the driver lets them through.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    directory: PathBuf,
}

/// A task in a process. The same one may run again in another process, and also in the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) pid: u32,
    pub(crate) name: String,
}

/// A task's side.
impl Gates {
    pub(crate) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits until the gate of this task is open.
    pub(crate) async fn pass(&self, name: &str) -> io::Result<()> {
        let task = Task { pid: std::process::id(), name: name.to_owned() };
        self.add(STARTED, &task)?;
        let (own, all) = (self.own_file(&task), self.directory.join(ALL_OPEN));
        while !own.exists() && !all.exists() {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    pub(crate) fn add_done(&self, name: &str) -> io::Result<()> {
        self.add(DONE, &Task { pid: std::process::id(), name: name.to_owned() })
    }

    /// A line is written at once to the end of the file, so that those of two processes do not mix.
    fn add(&self, file: &str, task: &Task) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.directory.join(file))?;
        file.write_all(format!("{} {}\n", task.pid, task.name).as_bytes())
    }

    fn own_file(&self, task: &Task) -> PathBuf {
        self.directory.join(format!("open-{}-{}", task.pid, task.name))
    }
}

/// The driver's side.
impl Gates {
    pub(crate) fn open(&self, task: &Task) -> io::Result<()> {
        fs::write(self.own_file(task), "")
    }

    pub(crate) fn open_all(&self) -> io::Result<()> {
        fs::write(self.directory.join(ALL_OPEN), "")
    }

    /// Those that have come to their gate, in this order.
    pub(crate) fn started(&self) -> io::Result<Vec<Task>> {
        self.read(STARTED)
    }

    pub(crate) fn done(&self) -> io::Result<Vec<Task>> {
        self.read(DONE)
    }

    pub(crate) fn started_on(&self, pid: u32) -> io::Result<Vec<Task>> {
        Ok(self.started()?.into_iter().filter(|task| task.pid == pid).collect())
    }

    pub(crate) fn done_on(&self, pid: u32) -> io::Result<Vec<Task>> {
        Ok(self.done()?.into_iter().filter(|task| task.pid == pid).collect())
    }

    fn read(&self, file: &str) -> io::Result<Vec<Task>> {
        let text = match fs::read_to_string(self.directory.join(file)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let parse = |line: &str| {
            let (pid, name) = line.split_once(' ')?;
            Some(Task { pid: pid.parse().ok()?, name: name.to_owned() })
        };
        Ok(text.lines().filter_map(parse).collect())
    }
}
