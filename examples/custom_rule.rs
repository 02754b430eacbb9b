//! An optimizer rule of your own: of two shuffles in a row, the first is wasted.
//!
//! ```text
//! RandomShuffle(seed 2)                 RandomShuffle(seed 2)
//!   RandomShuffle(seed 1)       ──>       rows
//!     rows
//! ```
//!
//! ```sh
//! cargo run --example custom_rule
//! ```

use std::sync::Arc;

use blockyard::logical::RandomShuffleNode;
use blockyard::optimizer::Anchor;
use blockyard::prelude::*;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

#[derive(Debug)]
struct DropRepeatedShuffles;

fn is_shuffle(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Extension(Extension { node }) if node.as_any().is::<RandomShuffleNode>())
}

impl OptimizerRule for DropRepeatedShuffles {
    fn name(&self) -> &str {
        "drop_repeated_shuffles"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    // The rows of a uniform permutation of a uniform permutation are as those of one. With the same seed they would come
    // in another order than without this rule: who depends on that leaves it out.
    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let first = plan.inputs().first().copied().filter(|input| is_shuffle(&plan) && is_shuffle(input)).cloned();
        let Some(rows) = first.and_then(|shuffle| shuffle.inputs().first().copied().cloned()) else {
            return Ok(Transformed::no(plan));
        };
        let expressions = plan.expressions();
        Ok(Transformed::yes(plan.with_new_exprs(expressions, vec![rows])?))
    }
}

/// How many exchanges there are in the plan of a doubly shuffled dataset, without the rule and with it.
pub(crate) async fn run() -> Result<String> {
    let context = DataContext::new()?;
    let exchanges = async |context: &DataContext| {
        let twice = context.range(1000)?.random_shuffle(Some(1))?.random_shuffle(Some(2))?;
        assert_eq!(twice.count().await?, 1000);
        let plan = twice.execution_plan().await?;
        Ok::<_, DataFusionError>(plan.lines().filter(|line| line.trim_start().starts_with("ExchangeExec")).count())
    };
    let before = exchanges(&context).await?;
    context.configure_rules(|rules| {
        rules.add_logical(Arc::new(DropRepeatedShuffles), Anchor::First, &[]);
        Ok(())
    })?;
    Ok(format!("{before} exchanges without the rule, {} with it", exchanges(&context).await?))
}

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", run().await?);
    Ok(())
}
