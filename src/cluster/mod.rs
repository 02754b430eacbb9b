//! Executors: processes that run stages of the queries of others.
//!
//! ```text
//! driver: the session of a user                        executor: a process of its own
//! ClusterClient ──statements, settings, prints─────>   plans the same statement, and says which stages it knows
//! Level         ──exchange, tasks───────────────────>  runs them, and keeps their rows
//!               <────────────────── bytes by hashes    ..
//! Runner        ──stage, tasks──────────────────────>  runs them, with rows that it asks other executors for
//!               <──────────────── rows, their number   ..
//! ```
//!
//! Plans do not travel: the statement does, with those that say what its names mean, and each process plans it. What
//! makes this safe is that a stage is known by a fingerprint of all that decides its rows; one that an executor has
//! planned otherwise, or not at all, runs in the driver, which says so. `docs/decisions/cluster.md` has the reasons.
//!
//! A driver holds a connection to each executor while a query runs, and one for each unit of tasks. Whoever closes one
//! ends what belongs to it, so that nothing is left of a process that has died.

mod client;
mod credentials;
mod exchanges;
mod executor;
mod executors;
mod messages;
mod parts;
mod queries;
mod query;
mod runner;
mod sender;
mod taken;

pub(crate) use client::ClusterClient;
pub use client::executor_statuses;
pub use executor::{ExecutorOptions, ExecutorServer};
