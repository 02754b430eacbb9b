//! Settings for runs whose rows come in the same order again.

use datafusion::execution::session_state::SessionState;

use crate::config::BlockyardOptions;

/// The settings with which rows come in the same order whenever the dataset is run: reads have the tasks that they have
/// with so many CPUs, and sorts keep the order of equal keys.
pub(super) fn repeatable(mut state: SessionState, cpus: Option<usize>) -> SessionState {
    let mut options = BlockyardOptions::from_config(state.config_options());
    options.num_cpus = cpus.unwrap_or(options.num_cpus);
    options.prefer_resumable_plans = true;
    state.config_mut().options_mut().extensions.insert(options);
    state
}
