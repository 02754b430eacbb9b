//! `blockyard repair`.

use std::path::PathBuf;

use datafusion::common::exec_datafusion_err;

use super::failure::Failure;
use crate::repair as repaired;

/// Ends the writes to directories whose processes have died, and says so in a line of JSON for each.
pub(super) fn repair(directories: &[PathBuf]) -> Result<(), Failure> {
    for directory in directories {
        let done = repaired(directory);
        let done = done.map_err(|e| exec_datafusion_err!("cannot repair '{}': {e}", directory.display()))?;
        let line = serde_json::json!({
            "directory": directory.display().to_string(),
            "finished_writes": done.finished,
            "files": done.files,
            "removed_writes": done.removed,
        });
        println!("{line}");
        if let Some(why) = done.failed.first() {
            return Err(exec_datafusion_err!("a commit cannot be finished, {why}").into());
        }
    }
    Ok(())
}
