//! Which row goes where: a scheme per file.

mod block_order;
mod by_size;
mod hash;
mod random;
mod range;
mod slices;
mod spread;

pub(crate) use block_order::{BlockOrderScheme, random_place};
pub(crate) use by_size::SizeScheme;
pub(crate) use hash::HashScheme;
pub(crate) use random::RandomScheme;
pub(crate) use range::RangeScheme;
pub(crate) use slices::SliceScheme;
pub(crate) use spread::SpreadScheme;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::buckets::{Buckets, MapInput};
use super::cutter::BlockSize;
use super::distributed::Distributed;
use crate::physical::operator::TaskIdentity;

/// How an exchange distributes rows. It is shown in plans as its `Display` says.
#[async_trait]
pub(crate) trait Scheme: Any + fmt::Debug + fmt::Display + Send + Sync {
    /// What the stage below shows as its last step.
    fn map_name(&self) -> &'static str;

    /// What the stage above is called.
    fn reduce_name(&self) -> &'static str;

    /// Runs the tasks of the input and routes their rows.
    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>>;

    /// What of its tasks follows from the data.
    fn identity<'a>(&self, input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a>;

    /// Whether it can begin with any of its tasks: these are equal ranges of the codes of rows, so that rows of the
    /// others are not kept.
    fn begins_at_tasks(&self) -> bool {
        false
    }

    /// Of what size its blocks are, where it is there to give such, which somebody has asked for.
    fn size_of_blocks(&self) -> Option<BlockSize> {
        None
    }

    /// What helps, where the order of its rows depends on how much memory there is.
    fn unsteady_order(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<&'static str> {
        None
    }

    /// Number of its blocks, if that is known before it runs.
    fn planned_blocks(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        None
    }

    /// Whether the operator below may be part of the map side: not where blocks are only handed around.
    fn absorbs_maps(&self) -> bool {
        true
    }

    /// Whether the order of the input counts.
    fn needs_order(&self) -> bool {
        true
    }

    /// Whether it gives rows before its input has ended, as far as its own parameters say.
    fn emission(&self) -> EmissionType {
        EmissionType::Final
    }

    /// Whether it gives blocks of such an input before that has ended.
    fn streams(&self, _input: &Arc<dyn ExecutionPlan>) -> bool {
        self.emission() == EmissionType::Incremental
    }

    /// The same where several processes have the tasks of its input, if it can be done there.
    fn distributed(&self) -> Option<&dyn Distributed> {
        None
    }

    /// What it computes for each row.
    fn keys(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }
}

impl dyn Scheme {
    /// The scheme as one of type `T`, if it is.
    pub(crate) fn downcast_ref<T: Scheme>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
