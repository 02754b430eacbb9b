//! Keeps the order that an input had when an operator was planned.
//!
//! DataFusion takes sorts away that it thinks nobody needs, and pushes others through operators that say they keep
//! order. Our functions are opaque: they may depend on the order of rows, and nothing is known of the order of what
//! they return. So an operator asks for the order that its input was planned with, and promises none.

use datafusion::physical_expr::{Distribution, LexOrdering};
use datafusion::physical_expr_common::sort_expr::{LexRequirement, OrderingRequirements};
use datafusion::physical_plan::{ExecutionPlan, InputDistributionRequirements};

/// The order of an input, if it was planned with one.
#[derive(Debug, Clone)]
pub(crate) struct InputOrder {
    ordering: Option<LexOrdering>,
    single_partition: bool,
}

impl InputOrder {
    /// The order of a planned input.
    pub(crate) fn of(input: &dyn ExecutionPlan) -> Self {
        let ordering = input.properties().output_ordering().cloned();
        let single_partition = ordering.is_some() && input.properties().output_partitioning().partition_count() == 1;
        Self { ordering, single_partition }
    }

    /// What `required_input_ordering` returns for one input.
    pub(crate) fn ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.ordering.clone().map(|o| OrderingRequirements::Hard(vec![LexRequirement::from(o)]))]
    }

    /// What `input_distribution_requirements` returns for one input: an order over all rows needs one partition.
    pub(crate) fn distribution(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![match self.single_partition {
            true => Distribution::SinglePartition,
            false => Distribution::UnspecifiedDistribution,
        }])
    }
}
