//! The command-line tool: `blockyard sql`, `blockyard run`, `blockyard shell`.

mod arguments;
mod output;
mod progress;
mod session;
mod shell;

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use arguments::{Arguments, Command};
use session::{Failure, Session};

use crate::Allocator;

/// Runs the tool; `allocator` is that of the process, if it can be told when memory is short. Exit code 0: everything went
/// well; 1: a statement failed; 2: the call is wrong.
pub fn main(allocator: Option<Arc<dyn Allocator>>) -> ExitCode {
    // clap exits with 2 by itself when the call is wrong.
    let arguments = Arguments::parse();
    match run(arguments, allocator) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
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
    let mut session = Session::start(&options, allocator)?;
    match command {
        Command::Sql { statements } => session.run_text(&statements),
        Command::Run { files } => files.iter().try_for_each(|file| {
            let text = read(file).map_err(|e| Failure::Usage(format!("cannot read '{}': {e}", file.display())))?;
            session.run_text(&text)
        }),
        Command::Shell => shell::run(&mut session),
    }
}

fn read(file: &std::path::Path) -> std::io::Result<String> {
    if file.as_os_str() != "-" {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
