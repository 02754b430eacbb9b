//! [`StagePrint`]: whether two processes mean the same by a stage.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, displayable};
use serde::{Deserialize, Serialize};

use super::parts::source_of;
use super::stages::said_alone;
use crate::physical::ReadExec;
use crate::physical::operator::PlanExt;
use crate::physical::read::file_scan;
use crate::runtime::on_deep_stack;
use crate::token::{Print, text_fingerprint};

/// A fingerprint of all that decides the rows of a stage and of each of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct StagePrint(Print);

/// The fingerprint of a stage: of its operators and their expressions, of its columns, and of the parts of files that
/// each task reads, with the sizes and times of these.
pub(crate) fn stage_print(stage: &Arc<dyn ExecutionPlan>) -> StagePrint {
    // Expressions may be deep.
    on_deep_stack(|| print_of(stage))
}

fn print_of(stage: &Arc<dyn ExecutionPlan>) -> StagePrint {
    let mut text = displayable(stage.as_ref()).set_show_schema(true).indent(true).to_string();
    // Writing to text does not fail.
    let _written = write!(text, "{:?}", source_of(stage));
    add_details(stage, &mut text);
    StagePrint(Print(text_fingerprint(&text)))
}

/// What operators do not show.
fn add_details(stage: &Arc<dyn ExecutionPlan>, text: &mut String) {
    text.push_str(&said_alone(stage).unwrap_or_default());
    let Some(read) = stage.operator::<ReadExec>() else {
        stage.children().into_iter().for_each(|input| add_details(input, text));
        return;
    };
    let Some(config) = file_scan(read.scan()) else { return };
    for (task, group) in config.file_groups.iter().enumerate() {
        for file in group.files() {
            let (meta, tag) = (&file.object_meta, file.object_meta.e_tag.as_deref().unwrap_or_default());
            let range = file.range.as_ref().map(|range| (range.start, range.end));
            let _written = writeln!(
                text,
                "{task} {} {} {} {} {tag} {range:?} {:?}",
                config.object_store_url, meta.location, meta.size, meta.last_modified, file.partition_values
            );
        }
    }
}
