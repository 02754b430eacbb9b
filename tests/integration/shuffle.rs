use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;

use crate::fixtures::{context, context_with, files, ints, mib, rows};

#[tokio::test]
async fn repartition_then_filter_then_write_gives_exactly_64_files() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let ds = context().range(10_000).unwrap().repartition(64).unwrap().filter("id % 3 = 0").unwrap();
    assert_eq!(ds.write_parquet(out.to_str().unwrap()).await.unwrap(), 3334);
    let names = files(&out);
    assert_eq!(names.len(), 64);
    assert_eq!(names[0], "part-000000.parquet");
    let back = context().read_parquet(out.to_str().unwrap()).await.unwrap();
    let read = ints(&back.take_all().await.unwrap(), "id");
    assert_eq!(read, (0..10_000).filter(|i| i % 3 == 0).collect::<Vec<i64>>(), "files keep the order of the rows");
}

#[tokio::test]
async fn repartition_gives_its_blocks_even_when_a_function_stands_between() {
    let ds = context().range(1000).unwrap().repartition(7).unwrap();
    let ds = ds.map_batches(crate::fixtures::inc).unwrap();
    assert_eq!(ds.num_blocks().await.unwrap(), Some(7));
    let blocks = ds.materialize().await.unwrap();
    assert_eq!(blocks.num_blocks().await.unwrap(), Some(7));
}

#[tokio::test]
async fn repartition_without_shuffle_keeps_order_and_equalizes() {
    let ds = context().range_in_blocks(1003, 5).unwrap().repartition(4).unwrap().materialize().await.unwrap();
    assert_eq!(ints(&ds.take_all().await.unwrap(), "id"), (0..1003).collect::<Vec<i64>>());
    let directory = tempfile::tempdir().unwrap();
    ds.write_csv(directory.path().to_str().unwrap()).await.unwrap();
    let lines = |name: &String| std::fs::read_to_string(directory.path().join(name)).unwrap().lines().count() - 1;
    assert_eq!(files(directory.path()).iter().map(lines).collect::<Vec<_>>(), [250, 251, 251, 251]);
}

/// Rows of each block of a dataset.
async fn rows_of_blocks(ds: &Dataset) -> Vec<usize> {
    let directory = tempfile::tempdir().unwrap();
    ds.write_csv(directory.path().to_str().unwrap()).await.unwrap();
    let lines = |name: &String| std::fs::read_to_string(directory.path().join(name)).unwrap().lines().count() - 1;
    files(directory.path()).iter().map(lines).collect()
}

#[tokio::test]
async fn blocks_get_the_rows_and_bytes_that_were_asked_for() {
    let ds = context().range_in_blocks(1000, 4).unwrap();
    assert_eq!(
        rows_of_blocks(&ds.repartition(Repartitioning::rows(300).strict()).unwrap()).await,
        [300, 300, 300, 100]
    );
    assert_eq!(
        rows_of_blocks(&ds.repartition(Repartitioning::rows(200)).unwrap()).await,
        [200, 50, 200, 50, 200, 50, 200, 50]
    );
    assert_eq!(rows_of_blocks(&ds.repartition(Repartitioning::bytes(300 * 8)).unwrap()).await, [300, 300, 300, 100]);
    let filtered = ds.filter("id % 10 = 0").unwrap().repartition(Repartitioning::rows(30).strict()).unwrap();
    assert_eq!(rows_of_blocks(&filtered).await, [30, 30, 30, 10]);
    let ids = ints(&filtered.take_all().await.unwrap(), "id");
    assert_eq!(ids, (0..1000).step_by(10).collect::<Vec<i64>>(), "the order stays");
}

#[tokio::test]
async fn repartition_with_shuffle_keeps_the_rows() {
    let ds = context().range(1000).unwrap().repartition(Repartitioning::blocks(3).shuffled()).unwrap();
    let mut ids = ints(&ds.take_all().await.unwrap(), "id");
    assert_ne!(ids, (0..1000).collect::<Vec<i64>>());
    ids.sort();
    assert_eq!(ids, (0..1000).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_shuffle_is_the_same_for_a_seed_at_any_thread_count_and_memory_limit() {
    let mut orders = Vec::new();
    for (threads, limit) in [(1, 1024), (2, 1024), (4, 1024), (2, 4), (1, 4)] {
        let context = context_with(threads, |o| o.memory_limit = mib(limit));
        let ds = context.range(300_000).unwrap().random_shuffle(Some(7)).unwrap();
        let order = ints(&ds.take_all().await.unwrap(), "id");
        if limit == 4 {
            assert!(context.store().totals().spilled_bytes() > 0, "4 MiB must be too little for {}", ds.stats());
        }
        orders.push(order);
    }
    assert!(orders.windows(2).all(|pair| pair[0] == pair[1]));
    let mut sorted = orders.remove(0);
    assert_ne!(sorted, (0..300_000).collect::<Vec<i64>>());
    sorted.sort();
    assert_eq!(sorted, (0..300_000).collect::<Vec<i64>>());
}

#[tokio::test]
async fn another_seed_is_another_order_and_num_blocks_does_not_matter() {
    let range = context().range(5000).unwrap();
    let order = async |seed, blocks| {
        let ds = range.random_shuffle_into(Some(seed), blocks).unwrap();
        ints(&ds.take_all().await.unwrap(), "id")
    };
    assert_ne!(order(1, None).await, order(2, None).await);
    assert_eq!(order(1, None).await, order(1, Some(13)).await);
    assert_eq!(order(1, None).await, order(1, Some(300)).await);
    let blocks = range.random_shuffle_into(Some(1), Some(13)).unwrap().materialize().await.unwrap();
    assert_eq!(blocks.num_blocks().await.unwrap(), Some(13));
}

#[tokio::test]
async fn a_shuffle_is_uniform_over_permutations() {
    assert_uniform(RandomSeed::fixed).await;
}

#[tokio::test]
async fn the_epochs_of_a_seed_are_uniform_over_permutations() {
    assert_uniform(|epoch| RandomSeed::each_execution(7).epoch(epoch)).await;
}

#[tokio::test]
async fn each_execution_has_its_own_order_and_the_same_program_the_same_ones() {
    let epochs = async || {
        let ds = context().range(1000).unwrap().random_shuffle(RandomSeed::each_execution(5)).unwrap();
        let mut orders = Vec::new();
        for _ in 0..3 {
            orders.push(ints(&ds.take_all().await.unwrap(), "id"));
        }
        orders
    };
    let orders = epochs().await;
    assert_eq!(orders, epochs().await);
    assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2]);
    let of_epoch = |seed: RandomSeed| context().range(1000).unwrap().random_shuffle(seed).unwrap();
    for (epoch, order) in orders.iter().enumerate() {
        let seed = RandomSeed::fixed(5).epoch(epoch as u64);
        assert_eq!(*order, ints(&of_epoch(seed).take_all().await.unwrap(), "id"));
    }
    let blocks = context().range_in_blocks(100, 20).unwrap().randomize_block_order(RandomSeed::each_execution(5));
    let blocks = blocks.unwrap();
    assert_ne!(blocks.take_all().await.unwrap(), blocks.take_all().await.unwrap());
}

/// Chi-squared test on where each of 6 rows lands over 3,600 seeds, and on the 720 permutations.
async fn assert_uniform(seed_of: impl Fn(u64) -> RandomSeed) {
    let context = context_with(1, |_| {});
    let range = context.range_in_blocks(6, 3).unwrap();
    let trials = 3600;
    let mut seen = std::collections::HashMap::<Vec<i64>, usize>::new();
    let mut places = [[0usize; 6]; 6];
    for trial in 0..trials {
        let order = ints(&range.random_shuffle(seed_of(trial)).unwrap().take_all().await.unwrap(), "id");
        for (place, row) in order.iter().enumerate() {
            places[*row as usize][place] += 1;
        }
        *seen.entry(order).or_default() += 1;
    }
    let expected = trials as f64 / 6.0;
    let chi: f64 = places.iter().flatten().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
    // 25 degrees of freedom: the 99.99 % quantile is 61.
    assert!(chi < 61.0, "places are not uniform: chi squared {chi}");
    let expected = trials as f64 / 720.0;
    let hit: f64 = seen.values().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
    let missed = (720 - seen.len()) as f64 * expected;
    // 719 degrees of freedom: mean 719, standard deviation 38; four of them above.
    assert!(hit + missed < 719.0 + 4.0 * 38.0, "permutations are not uniform: chi squared {}", hit + missed);
}

#[tokio::test]
async fn ranges_are_as_many_blocks_as_was_said() {
    let ds = context().range(1000).unwrap().random_shuffle(Some(1)).unwrap();
    let ranges =
        ds.repartition(Repartitioning::ranges(["id"], vec![100_i64.into(), 250_i64.into(), 5000_i64.into()])).unwrap();
    let blocks = ranges.materialize().await.unwrap();
    assert_eq!(blocks.num_blocks().await.unwrap(), Some(4));
    assert_eq!(ints(&blocks.take_all().await.unwrap(), "id"), (0..1000).collect::<Vec<i64>>());
}

#[tokio::test]
async fn randomize_block_order_keeps_blocks_whole() {
    let context = context();
    let ds = context.range_in_blocks(100, 10).unwrap().randomize_block_order(Some(3)).unwrap();
    let ids = ints(&ds.take_all().await.unwrap(), "id");
    assert_ne!(ids, (0..100).collect::<Vec<i64>>());
    for block in ids.chunks(10) {
        assert!(block.windows(2).all(|pair| pair[1] == pair[0] + 1), "{block:?}");
    }
}

#[tokio::test]
async fn a_shuffle_over_many_types_keeps_every_value() {
    let context = context_with(2, |o| o.memory_limit = mib(12));
    let columns = "id, CAST(id AS VARCHAR) AS s, CASE WHEN id % 3 = 0 THEN NULL ELSE id * 1.5 END AS f, \
         CAST(id AS DECIMAL(20, 3)) AS d, [id, id + 1] AS l, {a: id, b: CAST(id AS VARCHAR)} AS st, \
         arrow_cast(CAST(id % 10 AS VARCHAR), 'Dictionary(Int32, Utf8)') AS dict, \
         arrow_cast(CAST(id AS VARCHAR), 'Utf8View') AS v, to_timestamp_seconds(id) AS t";
    let sql = |from: &str| format!("SELECT {columns} FROM {from}");
    let plain = sql("range(80000)");
    let shuffled = format!("SELECT * FROM random_shuffle(({plain}), seed => 5) ORDER BY id");
    let (left, right) =
        (crate::fixtures::rows(&context, &plain).await, crate::fixtures::rows(&context, &shuffled).await);
    assert!(context.store().totals().spilled_bytes() > 0);
    assert_eq!(left, right);
}

#[tokio::test]
async fn dropping_a_stream_frees_what_it_held() {
    use futures::StreamExt;
    let context = context();
    // More than is made ahead of the consumer, in blocks that are read at once.
    let ds = context.range(1_000_000).unwrap().random_shuffle_into(Some(1), Some(100)).unwrap();
    let mut stream = ds.stream().await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert!(context.store().budget().blocks() > 0);
    drop(stream);
    crate::fixtures::emptied(&context).await;
}

#[tokio::test]
async fn randomness_above_a_union_and_a_shuffle_is_the_same_at_any_thread_count() {
    let mut orders = Vec::new();
    for (threads, limit) in [(1, 1024), (3, 1024), (8, 1024), (3, 8)] {
        let context = context_with(threads, |o| o.memory_limit = mib(limit));
        let (a, b) = (context.range(3000).unwrap(), context.range(2000).unwrap());
        let ds = a.union(&b).unwrap().random_shuffle(Some(1)).unwrap().random_sample(0.5, 2).unwrap();
        orders.push(ints(&ds.random_shuffle(Some(3)).unwrap().take_all().await.unwrap(), "id"));
    }
    assert!(orders.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounded_concurrency_and_order_do_not_wait_for_each_other() {
    let context = context_with(2, |o| o.target_max_block_size = blockyard::ByteSize::mib(1));
    let ds = context.range_in_blocks(3_000_000, 2).unwrap();
    let ds = ds.map_batches_with("identity", MapOptions { concurrency: Some(1.into()), ..Default::default() }).unwrap();
    let run = async { ints(&ds.take_all().await.unwrap(), "id").len() };
    let limit = std::time::Duration::from_secs(120);
    assert_eq!(tokio::time::timeout(limit, run).await.expect("it hangs"), 3_000_000);
}

#[tokio::test]
async fn a_limit_takes_the_first_rows_every_time() {
    let one = context_with(1, |_| {});
    let filtered = "SELECT * FROM range(1000) WHERE id > 5 LIMIT 3";
    assert_eq!(crate::fixtures::rows(&one, filtered).await, ["6", "7", "8"]);
    let context = context();
    let above = context.sql("SELECT id + 1 AS id FROM range(200000) LIMIT 100000").await.unwrap();
    assert_eq!(ints(&above.take_all().await.unwrap(), "id"), (1..=100_000).collect::<Vec<i64>>());
    for _ in 0..20 {
        assert_eq!(crate::fixtures::rows(&context, filtered).await, ["6", "7", "8"]);
        let all = "SELECT count(*) FROM (SELECT id + 1 AS x FROM range(1000) WHERE id > 5 LIMIT 30)";
        assert_eq!(crate::fixtures::rows(&context, all).await, ["30"]);
        assert_eq!(crate::fixtures::rows(&one, all).await, ["30"]);
        assert_eq!(crate::fixtures::rows(&context, "SELECT * FROM range(1000) LIMIT 1").await, ["0"]);
        assert_eq!(
            crate::fixtures::rows(&context, "SELECT * FROM range(100000) LIMIT 1 OFFSET 50000").await,
            ["50000"]
        );
        let max = "SELECT count(*), max(id) FROM (SELECT * FROM range(100000) LIMIT 20000)";
        assert_eq!(crate::fixtures::rows(&context, max).await, ["20000|19999"]);
        let zip = "SELECT * FROM zip(range(1500, override_num_blocks => 5), range(1500)) LIMIT 1 OFFSET 800";
        assert_eq!(crate::fixtures::rows(&context, zip).await, ["800|800"]);
    }
}

#[tokio::test]
async fn a_chain_of_shuffles_needs_as_much_memory_as_two_of_them() {
    let chain = |context: &DataContext, shuffles: u64| {
        let ds = context.range(1000).unwrap();
        (0..shuffles).fold(ds, |ds, seed| ds.random_shuffle(Some(seed)).unwrap())
    };
    let (small, large) = (context_with(2, |o| o.memory_limit = mib(4)), context_with(2, |_| {}));
    let two = chain(&small, 2).explain_memory().await.unwrap();
    assert!(two.contains("ExchangeExec"), "{two}");
    assert_eq!(chain(&small, 30).explain_memory().await.unwrap(), two);
    assert_eq!(chain(&large, 30).explain_memory().await.unwrap(), two);
    assert_eq!(chain(&small, 30).take_all().await.unwrap().iter().map(|b| b.num_rows()).sum::<usize>(), 1000);
}

#[tokio::test]
async fn groups_come_whole_and_once_to_their_function() {
    for (threads, limit) in [(2, 1024), (1, 8)] {
        let context = context_with(threads, |o| o.memory_limit = mib(limit));
        let ds = context.sql("SELECT id, (id * 7919) % 1000 AS k FROM range(300000)").await.unwrap();
        let summary = |batch: RecordBatch| {
            let of = |name: &str| batch[name].as_primitive::<Int64Type>().clone();
            let (ids, keys) = (of("id"), of("k"));
            let in_order = ids.values().is_sorted();
            let one_key = keys.values().iter().all(|key| *key == keys.value(0));
            let rows = if in_order && one_key { ids.len() as i64 } else { -1 };
            let key: Int64Array = keys.iter().take(1).collect();
            let rows: Int64Array = key.iter().map(|_| rows).collect();
            Ok(RecordBatch::try_from_iter_with_nullable([
                ("k", Arc::new(key) as _, true),
                ("n", Arc::new(rows) as _, true),
            ])?)
        };
        for compute in ["tasks", "actors(2)"] {
            let options = MapOptions { compute: compute.parse().unwrap(), ..Default::default() };
            let groups = ds.group_by(&["k"]).unwrap().map_groups_with(summary, options).unwrap();
            let batches = groups.take_all().await.unwrap();
            let mut keys = ints(&batches, "k");
            keys.sort();
            assert_eq!(keys, (0..1000).collect::<Vec<_>>(), "{compute}");
            assert!(ints(&batches, "n").iter().all(|rows| *rows == 300), "{compute}");
        }
    }
}

#[tokio::test]
async fn a_group_larger_than_memory_is_an_error_or_comes_in_pieces() {
    let context = context_with(2, |o| o.memory_limit = mib(16));
    let sql = "SELECT id, CASE WHEN id % 10 = 0 THEN id % 100 ELSE 0 END AS k, repeat(md5(CAST(id AS VARCHAR)), 8) AS s
               FROM range(200000)";
    let groups = context.sql(sql).await.unwrap().group_by(&["k"]).unwrap();
    let key_and_rows = |batch: RecordBatch| {
        let keys = batch["k"].as_primitive::<Int64Type>();
        assert!(keys.values().iter().all(|key| *key == keys.value(0)));
        let key: Int64Array = keys.iter().take(1).collect();
        let rows: Int64Array = key.iter().map(|_| Some(keys.len() as i64)).collect();
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("k", Arc::new(key) as _, true),
            ("n", Arc::new(rows) as _, true),
        ])?)
    };
    let whole = groups.map_groups(key_and_rows).unwrap().take_all().await;
    let error = whole.unwrap_err().to_string();
    assert!(error.contains("does not fit in memory twice") && error.contains("batch_size => n"), "{error}");

    let options = MapOptions { batch_size: 5000.into(), ..Default::default() };
    let pieces = groups.map_groups_with(key_and_rows, options).unwrap().take_all().await.unwrap();
    let (keys, rows) = (ints(&pieces, "k"), ints(&pieces, "n"));
    assert!(rows.iter().all(|rows| (1..=5000).contains(rows)), "{rows:?}");
    // They come in the order of their keys, so that pieces are as large as they may be but where a block ends.
    assert!(rows.len() < 300, "{} pieces", rows.len());
    let mut sums = std::collections::BTreeMap::new();
    keys.iter().zip(&rows).for_each(|(key, rows)| *sums.entry(*key).or_insert(0) += rows);
    let expected = (0..100).step_by(10).map(|key| (key, if key == 0 { 182_000 } else { 2000 }));
    assert_eq!(sums, expected.collect());
}

#[tokio::test]
async fn repartition_by_keys_makes_as_many_blocks_as_said_and_keeps_keys_together() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = context();
    let ds = context.sql("SELECT id, id % 100 AS k FROM range(10000)").await.unwrap();
    let ds = ds.repartition(Repartitioning::by_keys(["k"]).num_blocks(8).sorted()).unwrap();
    assert_eq!(ds.num_blocks().await.unwrap(), Some(8));
    ds.write_parquet(path).await.unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for file in files(directory.path()) {
        let file = directory.path().join(file);
        let read = context.read_parquet(file.to_str().unwrap()).await.unwrap();
        let keys = ints(&read.take_all().await.unwrap(), "k");
        assert!(keys.is_sorted() && keys.len() < 5000);
        let keys: std::collections::BTreeSet<i64> = keys.into_iter().collect();
        assert!(keys.iter().all(|key| seen.insert(*key)), "a key is in two blocks");
    }
    assert_eq!(seen.len(), 100);
}

/// Blocks that are small are read together: each still has its own keys, with their rows in the order of the input.
#[tokio::test]
async fn many_small_blocks_by_keys_have_rows_of_their_own_in_order() {
    for (sort, limit) in [(false, 1024), (true, 1024), (false, 8), (true, 8)] {
        let directory = tempfile::tempdir().unwrap();
        let context = context_with(2, |o| o.memory_limit = mib(limit));
        let input = "SELECT id, id * 7919 % 1000 AS k FROM range(60000, override_num_blocks => 50)";
        let ds = context
            .sql(input)
            .await
            .unwrap()
            .repartition(Repartitioning::Keys { keys: ["k"].map(str::to_owned).to_vec(), num_blocks: Some(150), sort })
            .unwrap();
        ds.write_parquet(directory.path().to_str().unwrap()).await.unwrap();
        let (mut seen, files) = (std::collections::BTreeSet::new(), files(directory.path()));
        assert_eq!(files.len(), 150);
        for file in files {
            let file = directory.path().join(file);
            let read = context.read_parquet(file.to_str().unwrap()).await.unwrap();
            let batches = read.take_all().await.unwrap();
            let (keys, ids) = (ints(&batches, "k"), ints(&batches, "id"));
            assert!(!sort || keys.is_sorted());
            let mut of_keys = std::collections::BTreeMap::<i64, Vec<i64>>::new();
            keys.into_iter().zip(ids).for_each(|(key, id)| of_keys.entry(key).or_default().push(id));
            assert!(of_keys.values().all(|ids| ids.len() == 60 && ids.is_sorted()), "{sort} {limit}");
            assert!(of_keys.into_keys().all(|key| seen.insert(key)), "a key is in two blocks");
        }
        assert_eq!(seen.len(), 1000);
    }
}

#[tokio::test]
async fn a_large_sort_is_stable_in_ranges_and_its_files_keep_the_order() {
    let directory = tempfile::tempdir().unwrap();
    // Nine of ten rows have one key.
    let sql = "SELECT id, CASE WHEN id % 10 < 9 THEN NULL ELSE (id * 7919) % 1000 END AS k FROM range(400000)";
    for (threads, limit) in [(2, 1024), (2, 8), (1, 8)] {
        let context = context_with(threads, |o| o.memory_limit = mib(limit));
        let ds = context.sql(&format!("SELECT * FROM ({sql}) ORDER BY k DESC NULLS LAST")).await.unwrap();
        let plan = ds.execution_plan().await.unwrap();
        assert!(limit == 1024 || plan.contains("scheme=range(k@1 DESC NULLS LAST)"), "{plan}");
        let check = |batches: Vec<RecordBatch>| {
            let keys = |batch: &RecordBatch| batch["k"].as_primitive::<Int64Type>().clone();
            let keys: Vec<Option<i64>> = batches.iter().flat_map(|b| keys(b).iter().collect::<Vec<_>>()).collect();
            let rows: Vec<_> = keys.into_iter().map(|k| k.map_or(1, |k| -k)).zip(ints(&batches, "id")).collect();
            assert_eq!(rows.len(), 400_000);
            // What is small is sorted by DataFusion, which leaves equal keys in any order.
            let stable = limit < 1024;
            assert!(
                rows.is_sorted_by(|a, b| if stable { a <= b } else { a.0 <= b.0 }),
                "{threads} threads, {limit} MiB"
            );
        };
        check(ds.take_all().await.unwrap());
        let path = directory.path().join(format!("{threads}-{limit}"));
        let path = path.to_str().unwrap();
        ds.write_parquet(path).await.unwrap();
        let read = context.read_parquet(path).await.unwrap();
        check(read.take_all().await.unwrap());
        let file = format!("{path}.parquet");
        rows(&context, &format!("COPY (SELECT * FROM ({sql}) ORDER BY k DESC NULLS LAST) TO '{file}'")).await;
        assert!(std::fs::metadata(&file).unwrap().is_file());
        let read = context.read_parquet(file).await.unwrap();
        check(read.take_all().await.unwrap());
    }
}

/// Blocks are cut by the share of the memory that a query has; what is random goes by the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_samples_do_not_depend_on_how_blocks_are_cut() {
    let files = tempfile::tempdir().unwrap();
    let table = "repartition((SELECT id, id % 100 AS key, repeat('x', 100) AS s FROM range(60000)), 8)";
    let copy = format!("COPY (SELECT * FROM {table}) TO '{}/' STORED AS PARQUET", files.path().display());
    context().sql(&copy).await.unwrap().take_all().await.unwrap();
    let t = format!("read_parquet('{}/', override_num_blocks => 4)", files.path().display());
    let queued = |table: &str| format!("map_batches({table}, 'identity', concurrency => 3)");
    let shuffled = |table: &str| format!("random_shuffle({table}, seed => 1)");
    let sorted = format!("map_batches((SELECT * FROM {t} ORDER BY key DESC, id), 'identity')");
    let queries = [
        queued(&shuffled(&queued(&t))),
        shuffled(&format!("(SELECT * FROM {} WHERE id % 3 = 0)", queued(&t))),
        shuffled(&sorted),
        shuffled(&format!("repartition({t}, 5, keys => 'key', sort => true)")),
        shuffled(&format!("repartition({t}, target_num_rows_per_block => 300)")),
        format!("(SELECT * FROM {} TABLESAMPLE BERNOULLI (20) REPEATABLE (3))", queued(&t)),
        format!("(SELECT * FROM {sorted} TABLESAMPLE BERNOULLI (20) REPEATABLE (3))"),
        format!("repartition({}, 7, shuffle => true)", queued(&t)),
        format!("repartition({t}, 7, shuffle => true)"),
        format!("randomize_block_order({}, seed => 2)", queued(&t)),
        format!("randomize_block_order({t}, seed => 2)"),
        format!("randomize_block_order({}, seed => 2, window => 2)", queued(&t)),
        format!("randomize_block_order({sorted}, seed => 2)"),
        format!("randomize_block_order(repartition({t}, 5, keys => 'key', sort => true), seed => 2)"),
        format!("randomize_block_order(repartition({}, target_num_rows_per_block => 300), seed => 2)", queued(&t)),
    ];
    for query in queries {
        let mut orders = Vec::new();
        for (threads, limit) in [(2, 1024), (4, 24), (1, 32)] {
            let context = context_with(threads, |options| options.memory_limit = mib(limit));
            let rows = context.sql(&format!("SELECT id, key, s FROM {query}")).await.unwrap().take_all().await.unwrap();
            orders.push(ints(&rows, "id"));
        }
        assert!(!orders[0].is_empty() && !orders[0].is_sorted() || query.contains("SAMPLE"), "{query}");
        assert!(orders.windows(2).all(|pair| pair[0] == pair[1]), "another order: {query}");
    }
}

#[tokio::test]
async fn the_order_of_the_tasks_of_a_read_is_random_without_an_exchange() {
    let order = "randomize_block_order(range(1000, override_num_blocks => 9), seed => 3)";
    let plan = format!("EXPLAIN SELECT * FROM map_batches({order}, 'identity')");
    let text = crate::fixtures::rows(&context(), &plan).await.join("\n");
    assert!(text.contains("block_order(seed=3)") && !text.contains("ExchangeExec"), "{text}");
    let rows = "SELECT * FROM randomize_block_order(range(900, override_num_blocks => 9), seed => 3)";
    let ids = crate::fixtures::rows(&context(), rows).await;
    let firsts: Vec<i64> = ids.iter().step_by(100).map(|id| id.parse::<i64>().unwrap() / 100).collect();
    let mut tasks = firsts.clone();
    tasks.sort_unstable();
    assert_eq!(tasks, (0..9).collect::<Vec<_>>());
    assert_ne!(tasks, firsts);
}
