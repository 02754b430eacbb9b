use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use proptest::prelude::*;

use crate::fixtures::{context_with, lines, mib};

/// A step of a random plan: how it is said to us, and what it means to plain DataFusion.
#[derive(Debug, Clone)]
enum Step {
    Filter(i64),
    Add(i64),
    Identity(Option<usize>),
    Shuffle(u64),
    Repartition(usize, bool),
    RepartitionBy(Option<usize>, bool),
    RandomizeBlocks(u64),
    DropNulls,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (-20i64..20).prop_map(Step::Filter),
        (-5i64..5).prop_map(Step::Add),
        proptest::option::of(1usize..300).prop_map(Step::Identity),
        any::<u64>().prop_map(Step::Shuffle),
        ((1usize..9), any::<bool>()).prop_map(|(n, shuffle)| Step::Repartition(n, shuffle)),
        (proptest::option::of(1usize..9), any::<bool>()).prop_map(|(n, sort)| Step::RepartitionBy(n, sort)),
        any::<u64>().prop_map(Step::RandomizeBlocks),
        Just(Step::DropNulls),
    ]
}

fn ours(mut ds: Dataset, steps: &[Step]) -> Dataset {
    for step in steps {
        ds = match step {
            Step::Filter(n) => ds.filter(format!("a > {n}").as_str()),
            Step::Add(n) => ds.with_column("a", col("a") + lit(*n)),
            Step::Identity(size) => {
                let batch_size = size.map_or(BatchSize::WholeBlock, BatchSize::Rows);
                ds.map_batches_with("identity", MapOptions { batch_size, ..Default::default() })
            }
            Step::Shuffle(seed) => ds.random_shuffle(Some(*seed)),
            Step::Repartition(n, shuffle) => {
                ds.repartition(Repartitioning::Blocks { num_blocks: *n, shuffle: *shuffle })
            }
            Step::RepartitionBy(n, sort) => ds.repartition(Repartitioning::Keys {
                keys: ["s", "a"].map(str::to_owned).to_vec(),
                num_blocks: *n,
                sort: *sort,
            }),
            Step::RandomizeBlocks(seed) => ds.randomize_block_order(Some(*seed)),
            Step::DropNulls => ds.map_batches("drop_nulls"),
        }
        .unwrap();
    }
    ds
}

/// Each step is over a named relation: plain DataFusion drops one of two equal projections whose columns have no
/// qualifier (T21).
fn plain(steps: &[Step]) -> String {
    let mut sql = "SELECT a, s FROM t".to_owned();
    for step in steps {
        sql = match step {
            Step::Filter(n) => format!("SELECT a, s FROM ({sql}) AS t WHERE a > {n}"),
            Step::Add(n) => format!("SELECT a + {n} AS a, s FROM ({sql}) AS t"),
            Step::DropNulls => format!("SELECT a, s FROM ({sql}) AS t WHERE a IS NOT NULL AND s IS NOT NULL"),
            _ => sql,
        };
    }
    sql
}

/// Where the rows of a plan go before they are compared. A plan that is written is not the one that is counted: a sort,
/// for example, is of no use below `count(*)`.
#[derive(Debug, Clone, Copy)]
enum Through {
    Nothing,
    Files,
    Store,
}

async fn rows_of(context: &DataContext, plan: Dataset, through: Through) -> Vec<String> {
    let plan = match through {
        Through::Nothing => plan,
        Through::Files => {
            let directory = tempfile::tempdir().unwrap();
            let to = directory.path().join("written").display().to_string();
            plan.write_parquet(&to).await.unwrap();
            let written = context.read_parquet(to.as_str()).await.unwrap();
            return lines(&written.take_all().await.unwrap());
        }
        Through::Store => plan.materialize().await.unwrap(),
    };
    lines(&plan.take_all().await.unwrap())
}

fn batches(rows: &[(Option<i64>, Option<String>)], blocks: usize) -> Vec<RecordBatch> {
    let chunk = rows.len().div_ceil(blocks).max(1);
    let mut chunks: Vec<_> = rows.chunks(chunk).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let batch = |rows: &[(Option<i64>, Option<String>)]| {
        let a: Int64Array = rows.iter().map(|r| r.0).collect();
        let s: StringArray = rows.iter().map(|r| r.1.clone()).collect();
        RecordBatch::try_from_iter_with_nullable([("a", Arc::new(a) as _, true), ("s", Arc::new(s) as _, true)])
            .unwrap()
    };
    chunks.into_iter().map(batch).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the steps, blocks, threads, fusion and memory: the rows are those that plain DataFusion gives.
    #[test]
    fn random_plans_equal_plain_datafusion(
        rows in proptest::collection::vec((proptest::option::of(-30i64..30), proptest::option::of("[a-c]{0,3}")), 0..400),
        steps in proptest::collection::vec(step(), 0..7),
        blocks in 1usize..6,
        threads in 1usize..4,
        fuse in any::<bool>(),
        limit in prop_oneof![Just(4usize), Just(1024)],
        through in prop_oneof![Just(Through::Nothing), Just(Through::Files), Just(Through::Store)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(threads, |o| {
                o.optimize_fuse_stages = fuse;
                o.memory_limit = mib(limit);
            });
            let batches = batches(&rows, blocks);
            let plan = ours(context.from_batches(batches.clone()).unwrap(), &steps);
            let got = rows_of(&context, plan, through).await;
            let oracle = SessionContext::new();
            oracle.register_table("t", Arc::new(MemTable::try_new(batches[0].schema(), vec![batches]).unwrap())).unwrap();
            let want = lines(&oracle.sql(&plain(&steps)).await.unwrap().collect().await.unwrap());
            let ordered = !steps.iter().any(|s| matches!(s, Step::RepartitionBy(..) | Step::Shuffle(_) | Step::RandomizeBlocks(_) | Step::Repartition(_, true)));
            let (mut got, mut want) = (got, want);
            if !ordered {
                got.sort();
                want.sort();
            }
            prop_assert_eq!(got, want);
            Ok(())
        })?;
    }
}
