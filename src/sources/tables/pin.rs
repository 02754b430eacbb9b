//! Lets a plan read one state of each stored table, wherever and however often it names the table.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{DmlStatement, LogicalPlan, TableScan, TableSource};

use super::change::TableChange;
use super::numbered::NumberedTable;
use super::stored::{Contents, StoredTable};

/// The plan with what the tables hold now; `None` if it reads or changes no stored table.
pub(crate) fn pin_tables(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= source_of(node).is_some_and(|source| table_of(source).is_some());
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(None);
    }
    let mut pins = Pins::default();
    let pinned = plan.clone().transform_up_with_subqueries(|node| {
        let Some(source) = source_of(&node).and_then(|source| pins.pin(source)) else {
            return Ok(Transformed::no(node));
        };
        Ok(Transformed::yes(match node {
            LogicalPlan::TableScan(scan) => LogicalPlan::TableScan(TableScan { source, ..scan }),
            LogicalPlan::Dml(dml) => LogicalPlan::Dml(DmlStatement { target: source, ..dml }),
            other => other,
        }))
    });
    pinned.data().map(Some)
}

fn source_of(node: &LogicalPlan) -> Option<&Arc<dyn TableSource>> {
    match node {
        LogicalPlan::TableScan(scan) => Some(&scan.source),
        LogicalPlan::Dml(dml) => Some(&dml.target),
        _ => None,
    }
}

/// The stored table that a source reads or changes.
fn table_of(source: &Arc<dyn TableSource>) -> Option<StoredTable> {
    let provider = source_as_provider(source).ok()?;
    let stored = provider.downcast_ref::<StoredTable>();
    let numbered = provider.downcast_ref::<NumberedTable>().map(NumberedTable::table);
    let changed = provider.downcast_ref::<TableChange>().map(TableChange::table);
    stored.or(numbered).or(changed).cloned()
}

/// What each table holds for one plan.
#[derive(Default)]
struct Pins(Vec<(StoredTable, Arc<Contents>)>);

impl Pins {
    fn contents(&mut self, table: &StoredTable) -> Arc<Contents> {
        if let Some((_, contents)) = self.0.iter().find(|(pinned, _)| pinned.is(table)) {
            return Arc::clone(contents);
        }
        let contents = table.contents();
        self.0.push((table.clone(), Arc::clone(&contents)));
        contents
    }

    fn pin(&mut self, source: &Arc<dyn TableSource>) -> Option<Arc<dyn TableSource>> {
        let contents = self.contents(&table_of(source)?);
        let provider = source_as_provider(source).ok()?;
        let pinned: Arc<dyn TableProvider> = if let Some(table) = provider.downcast_ref::<StoredTable>() {
            Arc::new(table.frozen(&contents))
        } else if let Some(table) = provider.downcast_ref::<NumberedTable>() {
            Arc::new(table.frozen(&contents))
        } else {
            Arc::new(provider.downcast_ref::<TableChange>()?.pinned(contents))
        };
        Some(provider_as_source(pinned))
    }
}
