//! What becomes of a job of Ballista when one of its processes is killed. The README beside this package says what for.
//!
//! One binary is everything: the driver starts itself again as a scheduler and as executors.

mod child;
mod client;
mod cluster;
mod engine;
mod executor;
mod gate_exec;
mod gates;
mod one_stage;
mod plans;
mod rounds;
mod scenario;
mod scheduler;
mod scheduler_killed;
mod shuffle;

use std::process::ExitCode;

use crate::scenario::Scenario;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One is killed, and the other survives.
const EXECUTORS: usize = 2;
const ROUNDS: usize = 20;

/// 0: all was as expected; 1: it was not; 2: there was nothing to see.
#[tokio::main]
async fn main() -> ExitCode {
    env_logger::builder().format_timestamp_millis().init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match start(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}

async fn start(args: &[&str]) -> Outcome<bool> {
    match args {
        [scheduler::COMMAND, port, timeout] => scheduler::run(port.parse()?, timeout.parse()?).await.map(|()| true),
        [executor::COMMAND, id, scheduler_port, work_dir, shuffles] => {
            executor::run(id, scheduler_port.parse()?, work_dir, shuffles.parse()?).await.map(|()| true)
        }
        [scenario, variant] => rounds::run(Scenario::parse(scenario, variant)?, ROUNDS).await,
        [scenario, variant, rounds] => {
            let scenario = Scenario::parse(scenario, variant)?;
            let rounds = rounds.parse().map_err(|_| format!("{rounds} is no number of rounds"))?;
            rounds::run(scenario, rounds).await
        }
        _ => {
            Err(format!("usage: ballista-probe SCENARIO VARIANT [ROUNDS], where these are {}", Scenario::known())
                .into())
        }
    }
}
