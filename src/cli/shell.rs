//! The prompt: history, several lines up to a `;`, and commands of its own.

use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};

use super::completion::{Prompt, words};
use super::failure::Failure;
use super::session::Session;
use super::signals::Stop;
use super::statements::{Script, is_complete};

const HELP: &str = "Statements end with ';'. Ctrl-C cancels a query or the statement that is being typed.
\\d        tables                      \\d NAME   columns of a table
\\f        functions for map_batches   \\h        this help
\\q        leave, as do Ctrl-D, quit and exit
Try: SELECT l_returnflag, count(*) FROM tpch('lineitem', 0.01) GROUP BY 1;";

const PROMPT: &str = "blockyard> ";
const CONTINUED: &str = "       ... ";

/// What a line is that is no SQL.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Help,
    Functions,
    /// Statements that it stands for.
    Statements(String),
    Unknown(String),
}

impl Command {
    /// The command of a line, if it is one.
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim().trim_end_matches(';').trim_end();
        let (word, rest) = line.split_once(char::is_whitespace).map_or((line, ""), |(word, rest)| (word, rest.trim()));
        let is_ours = word.starts_with('\\') || word.starts_with('.');
        Some(match (word.to_lowercase().as_str(), rest) {
            ("\\q" | ".exit" | ".quit" | ".q" | "quit" | "exit", "") => Self::Quit,
            ("\\h" | "\\?" | ".help" | "help" | "?", "") => Self::Help,
            ("\\f", "") => Self::Functions,
            ("\\d" | "\\dt" | "\\l" | ".tables" | ".databases", "") => Self::Statements("SHOW TABLES".to_owned()),
            ("\\d" | "\\d+" | ".schema", table) if !table.is_empty() => Self::Statements(format!("DESCRIBE {table}")),
            (_, _) if is_ours => Self::Unknown(line.to_owned()),
            _ => return None,
        })
    }
}

/// Reads and runs statements until the input ends.
pub(super) fn run(session: &mut Session) -> Result<(), Failure> {
    let failed = |e: ReadlineError| Failure::Usage(format!("the terminal cannot be used: {e}"));
    let config = Config::builder().history_ignore_space(true).build();
    let mut editor: Editor<Prompt, DefaultHistory> = Editor::with_config(config).map_err(failed)?;
    session.end_while_idle()?;
    let history = std::env::home_dir().map(|home| home.join(".blockyard_history"));
    load(&mut editor, history.as_ref());
    if !session.is_quiet() {
        eprintln!("blockyard {}; \\h for help", env!("CARGO_PKG_VERSION"));
    }
    let ended = loop {
        editor.set_helper(Some(Prompt::new(words(session))));
        let text = match statement(&mut editor) {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break Ok(()),
            Err(e) => return Err(failed(e)),
        };
        let outcome = match Command::parse(&text) {
            Some(Command::Quit) => break Ok(()),
            Some(Command::Help) => {
                eprintln!("{HELP}");
                Ok(())
            }
            Some(Command::Functions) => {
                eprintln!("{}", session.context().functions().names().join("\n"));
                Ok(())
            }
            Some(Command::Unknown(line)) => {
                eprintln!("error: there is no command '{line}'; \\h shows those that there are");
                Ok(())
            }
            Some(Command::Statements(statements)) => session.run_script(&Script::typed(&statements)),
            None => session.run_script(&Script::typed(&text)),
        };
        match outcome {
            Err(stopped @ Failure::Stopped(Stop::Terminate | Stop::Hangup)) => break Err(stopped),
            Err(failure) => eprintln!("error: {failure}"),
            Ok(()) => {}
        }
    };
    if let Some(path) = history
        && let Err(e) = editor.save_history(&path)
    {
        eprintln!("the history was not saved to '{}': {e}", path.display());
    }
    ended
}

/// Reads lines up to the end of a statement. All of them are one entry of the history.
fn statement(editor: &mut Editor<Prompt, DefaultHistory>) -> rustyline::Result<String> {
    let mut text = editor.readline(PROMPT)?;
    while Command::parse(&text).is_none() && !is_complete(&text) {
        let line = match editor.readline(CONTINUED) {
            // What was typed so far counts as it is.
            Err(ReadlineError::Eof) => break,
            line => line?,
        };
        text.push('\n');
        text.push_str(&line);
    }
    editor.add_history_entry(text.as_str())?;
    Ok(text)
}

fn load(editor: &mut Editor<Prompt, DefaultHistory>, path: Option<&PathBuf>) {
    if let Some(path) = path.filter(|p| p.exists())
        && let Err(e) = editor.load_history(path)
    {
        eprintln!("the history in '{}' cannot be read: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_statements() {
        let statements = |text: &str| Some(Command::Statements(text.to_owned()));
        for (line, command) in [
            ("\\q", Some(Command::Quit)),
            (".exit", Some(Command::Quit)),
            ("exit;", Some(Command::Quit)),
            ("EXIT", Some(Command::Quit)),
            ("\\d", statements("SHOW TABLES")),
            (".tables", statements("SHOW TABLES")),
            ("\\d t;", statements("DESCRIBE t")),
            ("  \\d  a.t ", statements("DESCRIBE a.t")),
            ("\\h", Some(Command::Help)),
            ("\\x on", Some(Command::Unknown("\\x on".to_owned()))),
            (".mode csv", Some(Command::Unknown(".mode csv".to_owned()))),
            ("SELECT 1;", None),
            ("exit sideways", None),
            ("", None),
        ] {
            assert_eq!(Command::parse(line), command, "{line}");
        }
    }
}
