use blockyard::prelude::*;

use crate::fixtures::{context, context_with, inc};

/// The stages of a plan: operators of ours, one line each.
async fn stages(ds: &Dataset) -> Vec<String> {
    let plan = ds.execution_plan().await.unwrap();
    let ours =
        |l: &&str| ["MapExec", "ExchangeExec", "ReadExec", "QueueExec", "WriteExec"].iter().any(|o| l.starts_with(o));
    plan.lines().map(str::trim).filter(ours).map(str::to_owned).collect()
}

fn maps(context: &DataContext) -> Dataset {
    let ds = context.range(3).unwrap();
    let ds = ds.map_batches(inc).unwrap();
    ds.map_batches(inc).unwrap()
}

#[tokio::test]
async fn a_read_and_two_maps_fuse_with_the_shuffle_above() {
    let ds = maps(&context()).random_shuffle(Some(1)).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    ExchangeExec: ReadRange->MapBatches(inc)->MapBatches(inc)->RandomShuffleMap => RandomShuffleReduce, scheme=random(seed=1)
    MapExec: ReadRange->MapBatches(inc)->MapBatches(inc)
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn without_read_fusion_the_read_is_a_stage_of_its_own() {
    let context = context_with(2, |o| o.optimize_fuse_read_stages = false);
    insta::assert_snapshot!(stages(&maps(&context).random_shuffle(Some(1)).unwrap()).await.join("\n"), @"
    ExchangeExec: MapBatches(inc)->MapBatches(inc)->RandomShuffleMap => RandomShuffleReduce, scheme=random(seed=1)
    MapExec: MapBatches(inc)->MapBatches(inc)
    ExchangeExec: StreamingRepartitionMap => StreamingRepartition, scheme=sized(rows=131072, strict=true)
    QueueExec
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn without_shuffle_fusion_the_map_side_is_a_stage_of_its_own() {
    let context = context_with(2, |o| {
        o.optimize_fuse_read_stages = false;
        o.optimize_fuse_shuffle_stages = false;
    });
    insta::assert_snapshot!(stages(&maps(&context).random_shuffle(Some(1)).unwrap()).await.join("\n"), @"
    ExchangeExec: RandomShuffleMap => RandomShuffleReduce, scheme=random(seed=1)
    ExchangeExec: StreamingRepartitionMap => StreamingRepartition, scheme=sized(rows=131072, strict=true)
    QueueExec
    MapExec: MapBatches(inc)->MapBatches(inc)
    QueueExec
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn without_any_fusion_every_operator_is_alone() {
    let context = context_with(2, |o| o.optimize_fuse_stages = false);
    let ds = maps(&context).filter("id > 1").unwrap().random_shuffle(Some(1)).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    ExchangeExec: RandomShuffleMap => RandomShuffleReduce, scheme=random(seed=1)
    ExchangeExec: StreamingRepartitionMap => StreamingRepartition, scheme=sized(rows=131072, strict=true)
    QueueExec
    MapExec: Filter(id > 1)
    QueueExec
    MapExec: MapBatches(inc)
    QueueExec
    MapExec: MapBatches(inc)
    QueueExec
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn an_all_to_all_does_not_fuse_with_what_is_above_but_maps_above_fuse_with_each_other() {
    let ds = context().range(3).unwrap().repartition(Repartitioning::blocks(10).shuffled()).unwrap();
    let ds = ds.map_batches(inc).unwrap().filter("id > 1").unwrap();
    let ds = ds.map_batches(inc).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    MapExec: MapBatches(inc)->Filter(id > 1)->MapBatches(inc)
    ExchangeExec: ReadRange->RepartitionMap => RepartitionReduce, scheme=spread(num_blocks=10)
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn other_resources_do_not_fuse() {
    let ds = context().range(3).unwrap().map_batches(inc).unwrap();
    let ds = ds.map_batches_with(inc, MapOptions { num_cpus: Some(0.75), ..Default::default() }).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    QueueExec
    MapExec: MapBatches(inc), num_cpus=0.75
    QueueExec
    MapExec: ReadRange->MapBatches(inc)
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn resources_that_say_the_default_fuse() {
    let said = MapOptions { num_cpus: Some(1.0), memory: Some(blockyard::ByteSize(0)), ..Default::default() };
    let ds = context().range(3).unwrap().map_batches(inc).unwrap().map_batches_with(inc, said).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    MapExec: ReadRange->MapBatches(inc)->MapBatches(inc)
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn randomize_block_order_moves_behind_maps() {
    let ds = context().range(3).unwrap().randomize_block_order(Some(1)).unwrap();
    let ds = ds.map_batches(inc).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    MapExec: ReadRange->MapBatches(inc)
    ReadExec: ReadRange, tasks=3, block_order(seed=1)
    ");
}

#[tokio::test]
async fn randomize_block_order_stays_below_a_repartition() {
    let ds = context()
        .range(3)
        .unwrap()
        .randomize_block_order(Some(1))
        .unwrap()
        .repartition(Repartitioning::blocks(10).shuffled())
        .unwrap();
    let ds = ds.map_batches(inc).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    MapExec: MapBatches(inc)
    ExchangeExec: RepartitionMap => RepartitionReduce, scheme=spread(num_blocks=10)
    ReadExec: ReadRange, tasks=3, block_order(seed=1)
    ");
}

#[tokio::test]
async fn randomize_block_order_stays_put_when_reordering_is_off() {
    let context = context_with(2, |o| o.optimize_reorder_stages = false);
    let ds = context.range(3).unwrap().randomize_block_order(Some(1)).unwrap();
    let ds = ds.map_batches(inc).unwrap();
    insta::assert_snapshot!(stages(&ds).await.join("\n"), @"
    MapExec: MapBatches(inc)
    ReadExec: ReadRange, tasks=3, block_order(seed=1)
    ");
}

#[tokio::test]
async fn sql_and_rust_build_the_same_stages() {
    let context = context();
    let sql =
        "SELECT * FROM map_batches((SELECT * FROM range(3) WHERE id > 0), 'identity', batch_size => 2) WHERE id < 9";
    let from_sql = stages(&context.sql(sql).await.unwrap()).await;
    let options = MapOptions { batch_size: BatchSize::Rows(2), ..Default::default() };
    let ds = context.range(3).unwrap().filter("id > 0").unwrap().map_batches_with("identity", options).unwrap();
    assert_eq!(from_sql, stages(&ds.filter("id < 9").unwrap()).await);
    insta::assert_snapshot!(from_sql.join("\n"), @"
    MapExec: ReadRange->Filter(id > 0)->MapBatches(identity)->Filter(id < 9)
    ReadExec: ReadRange, tasks=3
    ");
}

#[tokio::test]
async fn the_results_do_not_depend_on_fusion() {
    let mut results = Vec::new();
    for (fuse, reads, shuffles) in
        [(true, true, true), (true, false, true), (true, false, false), (false, false, false)]
    {
        let context = context_with(2, |o| {
            o.optimize_fuse_stages = fuse;
            o.optimize_fuse_read_stages = reads;
            o.optimize_fuse_shuffle_stages = shuffles;
        });
        let ds = context.range(1000).unwrap().map_batches(inc).unwrap();
        let ds = ds.filter("id % 2 = 0").unwrap().repartition(7).unwrap();
        let ds = ds.map_batches(inc).unwrap();
        results.push(crate::fixtures::ints(&ds.take_all().await.unwrap(), "id"));
    }
    assert_eq!(results[0], (0..1000).map(|i| i + 1).filter(|i| i % 2 == 0).map(|i| i + 1).collect::<Vec<i64>>());
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

/// A query that uses nothing of ours: its plan is the one that DataFusion makes with the same settings, once what makes
/// such queries faster is switched off.
#[tokio::test]
async fn plain_queries_plan_as_datafusion_plans_them() {
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;
    let ours = context();
    ours.sql("SET blockyard.optimize_cumulative_windows = false").await.unwrap().take_all().await.unwrap();
    let config = ours.session().state().config().clone().with_create_default_catalog_and_schema(true);
    let plain = SessionStateBuilder::new().with_config(config).with_default_features().build();
    let plain = SessionContext::new_with_state(plain);
    let tables = "CREATE TABLE t (a INT, b VARCHAR); CREATE TABLE u (a INT, c DOUBLE)";
    for session in [ours.session(), &plain] {
        for table in tables.split(';') {
            session.sql(table).await.unwrap();
        }
        session.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')").await.unwrap().collect().await.unwrap();
    }
    for query in [
        "SELECT * FROM t WHERE a > 1",
        "SELECT b, count(*), sum(c) FROM t JOIN u ON t.a = u.a GROUP BY b ORDER BY 2 LIMIT 3",
        "SELECT * FROM t LEFT JOIN u ON t.a < u.a WHERE b LIKE 'x%' OR random() < 0.5",
        "SELECT a, row_number() OVER (PARTITION BY b ORDER BY a) FROM t UNION ALL SELECT a, 1 FROM u",
        "SELECT * FROM t WHERE a IN (SELECT a FROM u) AND a > (SELECT avg(c) FROM u)",
        "SELECT DISTINCT a FROM (SELECT a FROM t ORDER BY a) LIMIT 1",
        "SELECT * FROM range(1, 10, 2)",
    ] {
        let mut plans = Vec::new();
        for session in [ours.session(), &plain] {
            let state = session.state();
            let logical = state.create_logical_plan(query).await.unwrap();
            let physical = state.create_physical_plan(&logical).await.unwrap();
            let optimized = state.optimize(&logical).unwrap();
            plans.push(format!("{}\n{}", optimized.display_indent(), displayable(physical.as_ref()).indent(true)));
        }
        assert_eq!(plans[0], plans[1], "{query}");
    }
}

/// A map with some compute, above a dataset.
fn computed(ds: &Dataset, compute: &str) -> Dataset {
    ds.map_batches_with(inc, MapOptions { compute: compute.parse().unwrap(), ..Default::default() }).unwrap()
}

#[tokio::test]
async fn strategies_fuse_as_ray_says() {
    // Actors, then tasks: the read goes with the actors, the tasks with the shuffle.
    let ds = context().range(3).unwrap();
    let plan = computed(&computed(&ds, "actors"), "tasks").random_shuffle(Some(1)).unwrap();
    insta::assert_snapshot!(stages(&plan).await.join("\n"), @"
    ExchangeExec: MapBatches(inc)->RandomShuffleMap => RandomShuffleReduce, scheme=random(seed=1)
    MapExec: MapBatches(inc)
    ExchangeExec: StreamingRepartitionMap => StreamingRepartition, scheme=sized(rows=131072, strict=true)
    QueueExec
    MapExec: ReadRange->MapBatches(inc), compute=actors(1..)
    ReadExec: ReadRange, tasks=3
    ");
    // Pools of the same size are one pool, of different sizes two.
    let plan = computed(&computed(&ds, "actors(2)"), "actors(2)");
    insta::assert_snapshot!(stages(&plan).await.join("\n"), @"
    QueueExec
    MapExec: ReadRange->MapBatches(inc)->MapBatches(inc), compute=actors(2)
    ReadExec: ReadRange, tasks=3
    ");
    let plan = computed(&computed(&ds, "actors(2)"), "actors(1..2)");
    insta::assert_snapshot!(stages(&plan).await.join("\n"), @"
    QueueExec
    MapExec: MapBatches(inc), compute=actors(1..2)
    QueueExec
    MapExec: ReadRange->MapBatches(inc), compute=actors(2)
    ReadExec: ReadRange, tasks=3
    ");
    // 0.75 of a CPU after the default of 1.
    let plan = computed(&ds, "tasks");
    let plan = plan.map_batches_with(inc, MapOptions { num_cpus: Some(0.75), ..Default::default() }).unwrap();
    insta::assert_snapshot!(stages(&plan).await.join("\n"), @"
    QueueExec
    MapExec: MapBatches(inc), num_cpus=0.75
    QueueExec
    MapExec: ReadRange->MapBatches(inc)
    ReadExec: ReadRange, tasks=3
    ");
    // What says the default is the default.
    let default = MapOptions {
        num_cpus: Some(1.0),
        num_gpus: Some(0.0),
        memory: Some(blockyard::ByteSize(0)),
        resources: [("license".to_owned(), 0.0)].into(),
        ..Default::default()
    };
    let plan = computed(&ds, "tasks").map_batches_with(inc, default).unwrap();
    insta::assert_snapshot!(stages(&plan).await.join("\n"), @"
    MapExec: ReadRange->MapBatches(inc)->MapBatches(inc)
    ReadExec: ReadRange, tasks=3
    ");
}
