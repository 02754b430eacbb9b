//! Blockyard against plain DataFusion doing the nearest thing, in one run on the same data: read-map-write, the same
//! with as many files as DataFusion writes, random shuffle, repartition. `cargo bench` prints criterion's figures and
//! then the ratios of the medians.

mod common;

use std::path::Path;
use std::sync::Arc;

use blockyard::prelude::*;
use criterion::{Criterion, criterion_group};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::kernels::numeric::mul;
use datafusion::arrow::datatypes::Float64Type;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::error::Result;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Runtime;

const PAIRS: [&str; 4] = ["read_map_write", "read_map_write_as_many_files", "random_shuffle", "repartition"];

/// `price` becomes `price * factor`; both engines compute the same.
fn discounted(batch: RecordBatch) -> Result<RecordBatch> {
    let column = |name: &str| batch.column_by_name(name).cloned();
    let (Some(price), Some(factor)) = (column("price"), column("factor")) else {
        return Ok(batch);
    };
    let price = mul(price.as_primitive::<Float64Type>(), factor.as_primitive::<Float64Type>())?;
    let mut columns = batch.columns().to_vec();
    let index = batch.schema().index_of("price")?;
    columns[index] = price;
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

/// About 1.2 million rows of TPC-H lineitem as Parquet, to measure.
async fn data(directory: &Path) -> Result<String> {
    let context = DataContext::new()?;
    let path = directory.join("lineitem");
    let path = path.display();
    let sql = format!(
        "COPY (SELECT l_orderkey, l_shipdate, l_comment, CAST(l_extendedprice AS DOUBLE) AS price, \
         CAST(1 - l_discount AS DOUBLE) AS factor FROM tpch('lineitem', {})) TO '{path}/' STORED AS PARQUET",
        common::size(0.2, 0.002)
    );
    context.sql(&sql).await?.take_all().await?;
    Ok(path.to_string())
}

async fn drain(plan: Arc<dyn ExecutionPlan>, session: &SessionContext) -> Result<usize> {
    let streams = (0..plan.output_partitioning().partition_count())
        .map(|p| plan.execute(p, session.task_ctx()))
        .collect::<Result<Vec<_>>>()?;
    let counts = streams.into_iter().map(|s| s.map_ok(|b| b.num_rows()).try_fold(0, |a, b| async move { Ok(a + b) }));
    futures::future::try_join_all(counts).await.map(|counts| counts.into_iter().sum())
}

async fn count(dataset: &Dataset) -> Result<usize> {
    dataset.stream().await?.map(|b| b.map(|b| b.num_rows())).try_fold(0, |a, b| async move { Ok(a + b) }).await
}

/// Data, sessions and a runtime, or why there are none.
fn measure(criterion: &mut Criterion) -> Result<()> {
    let runtime = Runtime::new()?;
    let directory = tempfile::tempdir()?;
    let path = runtime.block_on(data(directory.path()))?;
    let ours = DataContext::new()?;
    let plain = SessionContext::new_with_config(SessionConfig::new().with_collect_statistics(false));
    let read = runtime.block_on(ours.read_parquet(path.as_str()))?;
    let frame = runtime.block_on(plain.read_parquet(path.as_str(), ParquetReadOptions::default()))?;
    let rows = runtime.block_on(read.count())?;
    let check = |got: Result<usize>| match got {
        Ok(got) if got == rows => got,
        other => std::process::exit(report(&format!("expected {rows} rows, got {other:?}"))),
    };

    let threads = plain.state().config().target_partitions();
    let as_many = ReadParquetOptions { override_num_blocks: Some(threads), ..Default::default() };
    let in_few = runtime.block_on(ours.read(path.as_str(), as_many))?;
    for (pair, read) in [(PAIRS[0], &read), (PAIRS[1], &in_few)] {
        let mut group = criterion.benchmark_group(pair);
        group.sample_size(10);
        let mapped = read.map_batches(discounted)?;
        let out = directory.path().join("out").display().to_string();
        let options = || WriteOptions { mode: Some(SaveMode::Overwrite), ..Default::default() };
        group.bench_function("blockyard", |b| {
            b.iter(|| check(runtime.block_on(mapped.write_parquet_with(&out, options()))));
        });
        let plain_out = directory.path().join("plain");
        group.bench_function("datafusion", |b| {
            b.iter(|| {
                let written = runtime.block_on(async {
                    let _old = std::fs::remove_dir_all(&plain_out);
                    let frame = frame.clone().with_column("price", col("price") * col("factor"))?;
                    let target = format!("{}/", plain_out.display());
                    frame.write_parquet(&target, DataFrameWriteOptions::new(), None).await
                });
                check(written.map(|_| rows))
            });
        });
        group.finish();
    }

    let mut group = criterion.benchmark_group(PAIRS[2]);
    group.sample_size(10);
    let shuffled = read.random_shuffle(Some(42))?;
    group.bench_function("blockyard", |b| b.iter(|| check(runtime.block_on(count(&shuffled)))));
    let ordered = frame.clone().sort(vec![datafusion::functions::expr_fn::random().sort(true, false)])?;
    group.bench_function("datafusion", |b| {
        b.iter(|| {
            let drained = async { drain(ordered.clone().create_physical_plan().await?, &plain).await };
            check(runtime.block_on(drained))
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group(PAIRS[3]);
    group.sample_size(10);
    let repartitioned = read.repartition(64)?;
    group.bench_function("blockyard", |b| b.iter(|| check(runtime.block_on(count(&repartitioned)))));
    group.bench_function("datafusion", |b| {
        b.iter(|| {
            let drained = async {
                let scan = frame.clone().create_physical_plan().await?;
                let robin = RepartitionExec::try_new(scan, Partitioning::RoundRobinBatch(64))?;
                drain(Arc::new(robin), &plain).await
            };
            check(runtime.block_on(drained))
        });
    });
    group.finish();
    Ok(())
}

fn report(text: &str) -> i32 {
    eprintln!("{text}");
    1
}

/// Criterion's median in nanoseconds.
fn median(group: &str, engine: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), std::path::PathBuf::from);
    let path = target.join("criterion").join(group).join(engine).join("new/estimates.json");
    let text = std::fs::read_to_string(path).ok()?;
    let median = text.split("\"median\":").nth(1)?;
    let point = median.split("\"point_estimate\":").nth(1)?;
    point.split([',', '}']).next()?.trim().parse().ok()
}

fn benches(criterion: &mut Criterion) {
    if let Err(e) = measure(criterion) {
        std::process::exit(report(&e.to_string()));
    }
}

criterion_group!(ratios, benches);

fn main() {
    ratios();
    for pair in PAIRS {
        if let (Some(ours), Some(plain)) = (median(pair, "blockyard"), median(pair, "datafusion")) {
            println!("{pair}: blockyard takes {:.2} times as long as DataFusion", ours / plain);
        }
    }
    Criterion::default().configure_from_args().final_summary();
}
