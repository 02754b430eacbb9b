//! A child process of the driver.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Outcome;

/// A child says this word and its port (0: it listens nowhere) when it can be talked to.
const LISTENING: &str = "LISTENING";

/// The driver's end of a child, which is killed when this drops.
pub(crate) struct Process {
    child: Child,
    pub(crate) port: u16,
}

impl Process {
    /// Starts this binary with the arguments, and waits until it can be talked to.
    pub(crate) fn start(args: &[&str], log: &Path) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).env("RUST_LOG", "info");
        // Plans are walked by recursion, which takes much stack when it is not optimized.
        command.env("RUST_MIN_STACK", (16 << 20).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut process = Self { child: command.spawn()?, port: 0 };
        let stdout = process.child.stdout.take().ok_or("a child has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port = line.strip_prefix(LISTENING).ok_or_else(|| format!("{} ended at once", args.join(" ")))?;
        process.port = port.trim().parse()?;
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Sends SIGSTOP. A driver that is killed before `go_on` leaves it stopped.
    pub(crate) fn stop(&self) -> Outcome<()> {
        self.signal("-STOP")
    }

    pub(crate) fn go_on(&self) -> Outcome<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Outcome<()> {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status();
        match sent.map_err(|e| format!("cannot run kill: {e}"))? {
            status if status.success() => Ok(()),
            status => Err(format!("kill {signal}: {status}").into()),
        }
    }

    /// Resident memory, in the kernel's words.
    pub(crate) fn memory(&self) -> Outcome<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        Ok(line.unwrap_or_default().trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.kill();
    }
}

/// In the child: it can be talked to.
pub(crate) fn says_listening(port: u16) {
    println!("{LISTENING} {port}");
}

/// In the child: ends it when the driver is gone. The driver keeps the other end of standard input, and writes nothing.
pub(crate) fn ends_with_the_driver() -> io::Result<()> {
    let wait = || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    };
    std::thread::Builder::new().name("end of the driver".to_owned()).spawn(wait).map(drop)
}
