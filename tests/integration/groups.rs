use blockyard::prelude::*;
use datafusion::arrow::util::pretty::pretty_format_batches;

use crate::fixtures::{context_with, mib, rows};

/// Both sides of the join are groups, by a key that two thirds of the rows of the smaller side have in common.
const GROUPS_JOINED: &str = "
    SELECT count(*), sum(a.n), sum(b.n), sum(a.k)
    FROM (SELECT id * 7 % 600000 AS k, count(*) AS n FROM range(1800000) GROUP BY 1) a
    JOIN (SELECT id % 300000 * 3 AS k, count(*) AS n FROM range(1200000) GROUP BY 1) b ON a.k = b.k";

fn session(limit: usize) -> DataContext {
    context_with(2, |options| options.memory_limit = mib(limit))
}

async fn of_plan(context: &DataContext, sql: &str) -> String {
    let plan = context.sql(sql).await.unwrap().execution_plan().await.unwrap();
    let of_groups = |line: &&str| ["FoldExec", "Aggregate", "Repartition", "HashJoin"].iter().any(|o| line.contains(o));
    plan.lines().filter(of_groups).map(|line| line.trim().split(", gby").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The partitions of folded groups are those of rows that were never split: what is joined finds its counterpart.
#[tokio::test]
async fn split_groups_join_with_others() {
    let context = session(1024);
    rows(&context, "SET datafusion.optimizer.hash_join_single_partition_threshold = 0").await;
    rows(&context, "SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0").await;
    insta::assert_snapshot!(of_plan(&context, GROUPS_JOINED).await, @"
    AggregateExec: mode=Final
    AggregateExec: mode=Partial
    HashJoinExec: mode=Partitioned, join_type=Inner, on=[(k@0, k@0)], projection=[k@2, n@3, n@1]
    FoldExec: partitions=2
    AggregateExec: mode=FinalPartitioned
    RepartitionExec: partitioning=Hash([range.id % Int64(300000) * Int64(3)@0], 16), input_partitions=2
    AggregateExec: mode=Partial
    FoldExec: partitions=2
    AggregateExec: mode=FinalPartitioned
    RepartitionExec: partitioning=Hash([range.id * Int64(7) % Int64(600000)@0], 16), input_partitions=2
    AggregateExec: mode=Partial
    ");
    // Multiples of three below 600,000, each with three rows on the one side and four on the other.
    assert_eq!(rows(&context, GROUPS_JOINED).await, ["200000|600000|800000|59999700000"]);
}

/// Each of the tables spills and is merged, one after the other.
#[tokio::test]
async fn split_groups_spill() {
    let context = session(128);
    let sql = "SELECT count(*), sum(n), sum(s), max(k) FROM (
        SELECT id % 1100000 AS k, count(*) AS n, sum(id) AS s, max(id) AS m, min(id) AS l FROM range(2200000) GROUP BY 1)";
    insta::assert_snapshot!(of_plan(&context, sql).await, @"
    AggregateExec: mode=Final
    AggregateExec: mode=Partial
    FoldExec: partitions=2
    AggregateExec: mode=FinalPartitioned
    RepartitionExec: partitioning=Hash([range.id % Int64(1100000)@0], 4), input_partitions=2
    AggregateExec: mode=Partial
    ");
    assert_eq!(rows(&context, sql).await, ["1100000|2200000|2419998900000|1099999"]);
    let explained = rows(&context, &format!("EXPLAIN ANALYZE {sql}")).await.join("\n");
    let aggregate = explained.lines().find(|line| line.contains("mode=FinalPartitioned")).unwrap();
    assert!(!aggregate.contains("spill_count=0"), "{aggregate}");
}

#[tokio::test]
async fn groups_of_few_rows_are_not_split() {
    let context = session(1024);
    let sql = "SELECT id % 10 AS k, count(*) FROM range(1000) GROUP BY 1";
    insta::assert_snapshot!(of_plan(&context, sql).await, @"
    AggregateExec: mode=FinalPartitioned
    RepartitionExec: partitioning=Hash([range.id % Int64(10)@0], 2), input_partitions=2
    AggregateExec: mode=Partial
    ");
}

/// How often the tables of partial aggregates were emptied.
async fn flushes(context: &DataContext, sql: &str) -> usize {
    let told = context.sql(&format!("EXPLAIN ANALYZE {sql}")).await.unwrap().take_all().await.unwrap();
    let told = pretty_format_batches(&told).unwrap().to_string();
    let (_, behind) = told.split_once("FlushExec, metrics=[flushes=").expect("there is a table that may be emptied");
    behind.split(']').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_do_not_return_leave_the_table_and_others_stay() {
    let context = session(1024);
    let of_groups = |key: &str| {
        format!(
            "SELECT count(*), sum(n), sum(s) FROM (SELECT {key} AS k, count(*) n, sum(id) s FROM range(4000000) GROUP BY 1)"
        )
    };
    let (runs, random) = (of_groups("id / 8"), of_groups("id * 7919 % 100003"));
    assert_eq!(rows(&context, &runs).await, ["500000|4000000|7999998000000"]);
    assert_eq!(rows(&context, &random).await, ["100003|4000000|7999998000000"]);
    assert!(flushes(&context, &runs).await > 4);
    // Once for each thread, to see what they are like.
    assert!(flushes(&context, &random).await <= 2);
}
