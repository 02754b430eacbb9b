//! Lets plans that a query has several times run once.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable, replace_children_if_necessary};

use super::{SharedExec, SharedRows};
use crate::physical::operator::{IntoPlan, PlanExt};

/// A plan in which each of those that it has several times runs once: whoever is asked first runs it, and the others
/// read its rows. They have to give the same columns in the same streams and orders, which is compared. Whatever
/// changes an operator below them takes the links away, and calls this again.
pub(crate) fn linked(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut times = HashMap::new();
    count(&plan, &mut times);
    match times.is_empty() {
        true => Ok(plan),
        false => link(Arc::clone(&plan), &times, &mut HashMap::new()),
    }
}

/// A sub-plan as it was planned first, and how often it comes like that.
struct Planned<'a> {
    input: &'a Arc<dyn ExecutionPlan>,
    times: usize,
}

fn count<'a>(plan: &'a Arc<dyn ExecutionPlan>, times: &mut HashMap<usize, Planned<'a>>) {
    if let Some(shared) = plan.operator::<SharedExec>() {
        let input = plan.children()[0];
        let planned = times.entry(shared.number()).or_insert(Planned { input, times: 0 });
        if is_same(planned.input, input) {
            planned.times += 1;
            if planned.times > 1 {
                return;
            }
        }
    }
    plan.children().into_iter().for_each(|child| count(child, times));
}

/// Whether two plans give the same rows in the same streams, and an end.
fn is_same(one: &Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>) -> bool {
    // Unknown partitionings are not equal to each other.
    let partitions = |plan: &Arc<dyn ExecutionPlan>| format!("{:?}", plan.output_partitioning());
    let text = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
    !one.boundedness().is_unbounded()
        && one.schema() == other.schema()
        && partitions(one) == partitions(other)
        && one.output_ordering() == other.output_ordering()
        && text(one) == text(other)
}

fn link(
    plan: Arc<dyn ExecutionPlan>,
    times: &HashMap<usize, Planned<'_>>,
    rows: &mut HashMap<usize, Arc<SharedRows>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let number = plan.operator::<SharedExec>().map(SharedExec::number);
    let planned = number.and_then(|number| Some((number, times.get(&number)?)));
    let Some((number, planned)) = planned.filter(|(_, planned)| is_same(planned.input, plan.children()[0])) else {
        let inputs = plan.children().into_iter().map(|input| link(Arc::clone(input), times, rows));
        let inputs = inputs.collect::<Result<_>>()?;
        return replace_children_if_necessary(plan, inputs);
    };
    let known = rows.get(&number).cloned();
    let mut first = || link(Arc::clone(plan.children()[0]), times, rows);
    match (known, planned.times) {
        (_, 1) => first(),
        (Some(rows), _) => Ok(SharedExec::linked(number, &rows).into_plan()),
        (None, _) => {
            let of_first = Arc::new(SharedRows::of(first()?));
            rows.insert(number, Arc::clone(&of_first));
            Ok(SharedExec::linked(number, &of_first).into_plan())
        }
    }
}
