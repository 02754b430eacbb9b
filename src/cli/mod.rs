//! The command-line tool: `blockyard sql`, `blockyard run`, `blockyard shell`, and `blockyard serve` and `blockyard
//! consume` for several consumers of one query; `blockyard cluster executor` runs stages of the queries of others, and
//! `blockyard repair` ends writes of dead processes.

mod arguments;
mod completion;
mod consume;
mod destination;
mod executor;
mod failure;
mod headers;
mod output;
mod plans;
mod positions;
mod progress;
mod repair;
mod serve;
mod session;
mod shell;
mod signals;
mod statements;
mod waits;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use arguments::{Arguments, Cluster, Command};
use failure::Failure;
use session::{STACK_BYTES, Session};
use statements::Script;

use crate::store::Allocator;

/// Runs the tool; `allocator` is that of the process, if it can be told when memory is short. Exit code 0: everything
/// went well; 1: a statement failed; 2: the call is wrong; 130: Ctrl-C; 143: the process was asked to end.
pub fn main(allocator: Option<Arc<dyn Allocator>>) -> ExitCode {
    // clap exits with 2 by itself when the call is wrong.
    let arguments = Arguments::parse();
    let run = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || run(arguments, allocator));
    let ended = match run.map(std::thread::JoinHandle::join) {
        Ok(Ok(ended)) => ended,
        // What panicked has said why.
        Ok(Err(_)) => return ExitCode::from(101),
        Err(e) => Err(Failure::Usage(format!("cannot start a thread: {e}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.is_told() {
                // Standard error may be closed too; then nobody can be told.
                let _told = writeln!(std::io::stderr(), "error: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(arguments: Arguments, allocator: Option<Arc<dyn Allocator>>) -> Result<(), Failure> {
    let Arguments { command, options } = arguments;
    let command = match command {
        // Without a terminal there is nobody to prompt.
        Some(Command::Shell) | None if !std::io::stdin().is_terminal() => Command::Run { files: vec!["-".into()] },
        Some(command) => command,
        None => Command::Shell,
    };
    options.check_for(&command)?;
    // While a pipe is read, nothing is there yet that an end by a signal would leave behind.
    let scripts = match &command {
        Command::Sql { statements } => vec![Script::typed(statements)],
        Command::Run { files } => files.iter().map(|file| Script::read(file)).collect::<Result<_, _>>()?,
        Command::Serve { file, .. } => vec![Script::read(file)?],
        Command::Consume(_) | Command::Repair { .. } | Command::Cluster { .. } | Command::Shell => Vec::new(),
    };
    if let Command::Repair { directories } = &command {
        return repair::repair(directories);
    }
    let mut session = Session::start(&options, allocator)?;
    match command {
        Command::Sql { .. } | Command::Run { .. } => session.run_scripts(&scripts)?,
        Command::Serve { split, .. } => return serve::serve(&mut session, &scripts, &split, options.batch_size),
        Command::Consume(consumer) => return consume::consume(&mut session, &consumer),
        Command::Cluster { command: Cluster::Executor(executor) } => return executor::run(&mut session, &executor),
        Command::Cluster { command: Cluster::Status } => return executor::status(&mut session),
        Command::Shell => return shell::run(&mut session),
        Command::Repair { .. } => {}
    }
    session.check_written()
}
