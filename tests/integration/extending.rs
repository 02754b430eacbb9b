use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use blockyard::sinks::{EncodeRows, WriteFormat};
use blockyard::{Datasource, ReadPlan, ReadRequest, ReadTask};
use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{ScalarValue, exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

use crate::fixtures::{context, ints, rows};

// The examples are what an application does to add something of its own. Their `main` only prints.
#[path = "../../examples/custom_rule.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod custom_rule;
#[path = "../../examples/custom_sink.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod custom_sink;
#[path = "../../examples/custom_source.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod custom_source;
#[path = "../../examples/custom_table_function.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod custom_table_function;
#[path = "../../examples/custom_write_format.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod custom_write_format;
#[path = "../../examples/quickstart.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod quickstart;

#[tokio::test]
async fn the_quickstart_writes_and_reads() {
    let directory = tempfile::tempdir().unwrap();
    let shown = quickstart::run(directory.path().to_str().unwrap()).await.unwrap();
    // Of three numbers two have a square that leaves one.
    assert!(shown.starts_with("66666 rows written"), "{shown}");
    assert!(shown.contains("| 666  | 996004  |"), "{shown}");
}

#[tokio::test]
async fn a_source_of_an_application_is_read() {
    let shown = custom_source::run().await.unwrap();
    let (counted, limited) = shown.split_once("26 requests\n").unwrap();
    // One for the number of orders of the region, and one for each of its pages.
    assert!(counted.contains("| 25000  | 49999 |") && counted.contains("ReadOrders, tasks=25"), "{shown}");
    assert!(limited.contains("| 75001  |") && limited.contains("ReadOrders, tasks=1"), "{shown}");
    assert!(limited.ends_with("2 requests\n"), "{shown}");
}

#[tokio::test]
async fn a_sink_of_an_application_is_written() {
    let shown = custom_sink::run().await.unwrap();
    assert!(shown.starts_with("100000 rows, in order: true"), "{shown}");
    assert!(shown.contains("| 10    |") && shown.contains("ivide by zero"), "{shown}");
    assert!(shown.ends_with("0 blocks are left"), "{shown}");
}

#[tokio::test]
async fn a_rule_of_an_application_changes_plans() {
    assert_eq!(custom_rule::run().await.unwrap(), "3 exchanges without the rule, 1 with it");
}

#[tokio::test]
async fn a_table_function_of_an_application_is_called() {
    let shown = custom_table_function::run().await.unwrap();
    assert!(shown.contains("| 10 | 4570 |"), "{shown}");
    assert!(shown.contains("Did you mean 'from'"), "{shown}");
}

#[tokio::test]
async fn a_format_of_an_application_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let table = custom_write_format::run(directory).await.unwrap();
    assert_eq!(table, "| column1 | column2 |\n|---|---|\n| 1 | a\\|b |\n| 2 | none |\n");
}

/// A format that does not do what it should.
#[derive(Debug, Clone, Copy)]
enum Bad {
    /// Leaves a row out.
    Loses,
    Fails,
    Panics,
    HasNoName,
}

impl WriteFormat for Bad {
    fn name(&self) -> &'static str {
        "Bad"
    }

    fn extensions(&self) -> &'static [&'static str] {
        match self {
            Self::HasNoName => &[],
            _ => &["bad"],
        }
    }

    fn encoder(&self, _: &SchemaRef, _: Box<dyn Write + Send>, _: usize) -> Result<Box<dyn EncodeRows>> {
        Ok(Box::new(BadRows { how: *self, rows: 0 }))
    }
}

struct BadRows {
    how: Bad,
    rows: usize,
}

#[expect(clippy::panic, reason = "the engine is to withstand it")]
impl EncodeRows for BadRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.rows += rows.num_rows();
        match self.how {
            Bad::Loses | Bad::HasNoName => Ok(()),
            Bad::Fails => exec_err!("no ink"),
            Bad::Panics => panic!("no paper"),
        }
    }

    fn finish(self: Box<Self>) -> Result<usize> {
        Ok(self.rows - 1)
    }
}

#[tokio::test]
async fn a_format_that_fails_or_loses_rows_writes_nothing() {
    for (how, text) in [(Bad::Loses, "took 10 rows and gave 9"), (Bad::Fails, "no ink"), (Bad::Panics, "no paper")] {
        let directory = tempfile::tempdir().unwrap();
        let context = context();
        context.register_write_format(how).unwrap();
        let rows = context.range_in_blocks(10, 1).unwrap();
        let error = rows.write("bad", directory.path().to_str().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{how:?} left something");
    }
}

#[tokio::test]
async fn formats_are_told_apart_by_their_extension() {
    let context = context();
    context.register_write_format(Bad::Loses).unwrap();
    let again = context.register_write_format(Bad::Fails).unwrap_err().to_string();
    assert!(again.contains("there is a format 'bad' already"), "{again}");
    let nameless = context.register_write_format(Bad::HasNoName).unwrap_err().to_string();
    assert!(nameless.contains("the format Bad says no extension"), "{nameless}");
    let to = tempfile::tempdir().unwrap();
    let path = to.path().to_str().unwrap();
    let option = format!("COPY (VALUES (1)) TO '{path}/' STORED AS BAD OPTIONS (colour 'red')");
    let error = context.sql(&option).await.unwrap().take_all().await.unwrap_err().to_string();
    assert!(error.contains("Bad files have no option 'colour'"), "{error}");
    let unknown = context.range(1).unwrap().write("xlsx", path).await.unwrap_err().to_string();
    assert!(unknown.contains("the session has no format 'xlsx'"), "{unknown}");
}

#[tokio::test]
async fn a_function_of_an_application_is_called_from_sql() {
    let context = context();
    context.register_batches("tail", |batch: RecordBatch| {
        Ok(batch.slice(batch.num_rows().min(1), batch.num_rows().saturating_sub(1)))
    });
    let rows = context.sql("SELECT * FROM map_batches(range(4, override_num_blocks => 1), 'tail')").await.unwrap();
    assert_eq!(ints(&rows.take_all().await.unwrap(), "id"), [1, 2, 3]);
}

/// A task of ten rows for each key from 1 to 3. Conditions `k <> ..` are its own business.
#[derive(Debug)]
struct Keys(SchemaRef);

fn other_than(filter: &Expr) -> Option<Option<i64>> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { op: Operator::NotEq, right, .. }) => match right.as_ref() {
            Expr::Literal(ScalarValue::Int64(key), _) => Some(*key),
            _ => None,
        },
        _ => None,
    }
}

#[async_trait]
impl Datasource for Keys {
    fn name(&self) -> &str {
        "ReadKeys"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    fn pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let answer = |filter: &&Expr| match other_than(filter) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(answer).collect())
    }

    async fn plan(&self, request: ReadRequest<'_>) -> Result<ReadPlan> {
        let mut keys = vec![1, 2, 3];
        for filter in request.filters {
            match other_than(filter) {
                Some(other) => keys.retain(|key| other.is_some_and(|other| *key != other)),
                None => return plan_err!("{filter} was not taken over"),
            }
        }
        let task = |key: i64| {
            let schema = Arc::clone(&self.0);
            ReadTask::new(Arc::clone(&schema), move |_context| {
                let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(vec![key; 10]))]);
                let rows = futures::stream::iter([batch.map_err(Into::into)]);
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows))
            })
        };
        Ok(keys.into_iter().map(task).collect::<Vec<_>>().into())
    }
}

#[tokio::test]
async fn conditions_that_become_constants_hold_for_sources_that_take_them_over() {
    let context = context();
    let schema = Schema::new(vec![Field::new("k", DataType::Int64, true)]);
    context.register_source("keys", Arc::new(Keys(Arc::new(schema)))).unwrap();
    for (condition, expected) in [("k <> 1", "20|50"), ("k NOT IN (1, 2)", "10|30"), ("k NOT IN (1, NULL)", "0|NULL")] {
        let found = rows(&context, &format!("SELECT count(*), sum(k) FROM keys WHERE {condition}")).await;
        assert_eq!(found, [expected], "{condition}");
    }
}
