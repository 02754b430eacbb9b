//! A source of your own: a service that gives orders in pages, and can look at the region itself.
//!
//! ```sh
//! cargo run --example custom_source
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use blockyard::{Datasource, ReadPlan, ReadRequest, ReadTask, TaskOrigin, prelude::*};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

const REGIONS: [&str; 4] = ["north", "east", "south", "west"];
const ORDERS_OF_REGION: usize = 25_000;
const PAGE: usize = 1_000;

/// Stands for a service on the network.
#[derive(Debug, Default)]
struct Service {
    requests: AtomicUsize,
}

impl Service {
    /// How many orders a region has.
    async fn count(&self, _region: &str) -> usize {
        self.requests.fetch_add(1, Relaxed);
        ORDERS_OF_REGION
    }

    /// The numbers of the orders of a page.
    async fn page(&self, region: &str, page: usize) -> Vec<i64> {
        self.requests.fetch_add(1, Relaxed);
        let first = REGIONS.iter().position(|known| *known == region).unwrap_or(0) * ORDERS_OF_REGION;
        let rows = page * PAGE..((page + 1) * PAGE).min(ORDERS_OF_REGION);
        rows.map(|row| (first + row) as i64).collect()
    }
}

/// The orders of the service.
#[derive(Debug)]
struct Orders {
    service: Arc<Service>,
    schema: SchemaRef,
}

impl Orders {
    fn new(service: Arc<Service>) -> Self {
        let fields = [("region", DataType::Utf8), ("number", DataType::Int64)];
        let fields: Vec<Field> = fields.into_iter().map(|(name, kind)| Field::new(name, kind, false)).collect();
        Self { service, schema: Arc::new(Schema::new(fields)) }
    }

    /// One page is one task, which may run more than once.
    fn task(&self, region: &'static str, page: usize, rows: usize) -> ReadTask {
        let (service, schema) = (Arc::clone(&self.service), Arc::clone(&self.schema));
        let task = ReadTask::new(Arc::clone(&schema), move |_context| {
            let (service, columns) = (Arc::clone(&service), Arc::clone(&schema));
            // The service is asked here, when somebody wants the rows.
            let rows = futures::stream::once(async move {
                let numbers = service.page(region, page).await;
                let regions: ArrayRef = Arc::new(StringArray::from_iter_values(numbers.iter().map(|_| region)));
                Ok(RecordBatch::try_new(columns, vec![regions, Arc::new(Int64Array::from(numbers))])?)
            });
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows))
        });
        let origin = TaskOrigin { file: format!("/orders?region={region}"), first_row: page * PAGE };
        ReadTask { rows: Some(rows), bytes: Some(rows * 16), origin: Some(origin), ..task }
    }
}

/// The region that a condition `region = '..'` asks for.
fn region_of(filter: &Expr) -> Option<&str> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match (left.as_ref(), right.as_ref()) {
            (Expr::Column(column), Expr::Literal(value, _)) if column.name == "region" => value.try_as_str().flatten(),
            _ => None,
        },
        _ => None,
    }
}

#[async_trait]
impl Datasource for Orders {
    fn name(&self) -> &str {
        "ReadOrders"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let answer = |filter: &&Expr| match region_of(filter) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(answer).collect())
    }

    async fn plan(&self, request: ReadRequest<'_>) -> Result<ReadPlan> {
        let mut tasks = Vec::new();
        let is_asked_for = |region: &&str| request.filters.iter().all(|f| region_of(f).is_some_and(|r| r == *region));
        for region in REGIONS.into_iter().filter(is_asked_for) {
            let orders = self.service.count(region).await;
            for page in 0..orders.div_ceil(PAGE) {
                if request.limit.is_none_or(|limit| tasks.len() * PAGE < limit) {
                    tasks.push(self.task(region, page, PAGE.min(orders - page * PAGE)));
                }
            }
        }
        Ok(tasks.into())
    }
}

/// What two queries give, and how many requests each of them took.
pub(crate) async fn run() -> Result<String> {
    let service = Arc::new(Service::default());
    let context = DataContext::new()?;
    context.register_source("orders", Arc::new(Orders::new(Arc::clone(&service))))?;
    let mut shown = String::new();
    for query in [
        "SELECT count(number) AS orders, max(number) AS last FROM orders WHERE region = 'east'",
        "SELECT number FROM orders WHERE region = 'west' LIMIT 2",
    ] {
        service.requests.store(0, Relaxed);
        let orders = context.sql(query).await?;
        let rows = orders.show(10).await?;
        let requests = service.requests.load(Relaxed);
        let plan = orders.explain().await?;
        let read = plan.lines().find(|line| line.contains("ReadExec")).unwrap_or_default().trim();
        shown += &format!("{rows}\n{read}\n{requests} requests\n");
    }
    Ok(shown)
}

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", run().await?);
    Ok(())
}
