//! Gives scans of several tables of one name names of their own.
//!
//! DataFusion compares scans by the name and the columns of their tables, so that `range(3)` is `range(4)` to it, and
//! `read_parquet('a')` is `read_parquet('b')`: it computed one of two subqueries over them, and used it for both.
//!
//! ```text
//! (SELECT max(id) FROM range(3)), (SELECT max(id) FROM range(4))
//!   TableScan: range                     TableScan: range
//!   TableScan: range              ->     SubqueryAlias: range
//!                                          TableScan: range__1
//! ```
//!
//! Only subqueries are compared, before they are joined. Where there are none, or no two tables of one name, nothing
//! changes.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, TableReference};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::equal_plans::is_same_source;

#[derive(Debug)]
pub(super) struct TellSourcesApart;

impl OptimizerRule for TellSourcesApart {
    fn name(&self) -> &str {
        "tell_sources_apart"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let (mut known, mut has_subqueries) = (Vec::<Named>::new(), false);
        plan.apply_with_subqueries(|node| {
            has_subqueries |= matches!(node, LogicalPlan::Subquery(_));
            if let LogicalPlan::TableScan(scan) = node {
                match known.iter_mut().find(|named| named.name == scan.table_name) {
                    Some(named) if named.number_of(scan).is_some() => {}
                    Some(named) => named.scans.push(scan.clone()),
                    None => known.push(Named { name: scan.table_name.clone(), scans: vec![scan.clone()] }),
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !has_subqueries || known.iter().all(|named| named.scans.len() == 1) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::TableScan(scan) => {
                let named = known.iter().find(|named| named.name == scan.table_name);
                match named.and_then(|named| named.number_of(&scan)) {
                    // Conditions come later, when all have names of their own.
                    Some(number) if number > 0 && scan.filters.is_empty() => {
                        renamed(&scan, number).map(Transformed::yes)
                    }
                    _ => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
                }
            }
            node => Ok(Transformed::no(node)),
        })
    }
}

/// A scan of each table of one name.
struct Named {
    name: TableReference,
    scans: Vec<TableScan>,
}

impl Named {
    fn number_of(&self, scan: &TableScan) -> Option<usize> {
        self.scans.iter().position(|known| is_same_source(known, scan))
    }
}

fn renamed(scan: &TableScan, number: usize) -> Result<LogicalPlan> {
    let name = TableReference::bare(format!("{}__{number}", scan.table_name.table()));
    let (source, projection) = (Arc::clone(&scan.source), scan.projection.clone());
    let alone = LogicalPlanBuilder::scan_with_filters_fetch(name, source, projection, Vec::new(), scan.fetch)?;
    alone.alias(scan.table_name.clone())?.build()
}
