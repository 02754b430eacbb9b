use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use datafusion::functions_aggregate::expr_fn::{count, sum};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::fixtures::{context, inc, ints, lines};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct City {
    name: String,
    people: i64,
    river: Option<String>,
}

fn cities() -> Vec<City> {
    let city =
        |name: &str, people, river: Option<&str>| City { name: name.into(), people, river: river.map(Into::into) };
    vec![city("Bonn", 330, Some("Rhein")), city("Ulm", 128, Some("Donau")), city("Münster", 320, None)]
}

#[tokio::test]
async fn items_come_back_as_they_were() {
    let ds = context().from_items(cities()).unwrap();
    assert_eq!(ds.take::<City>(10).await.unwrap(), cities());
    assert_eq!(ds.columns(), ["name", "people", "river"]);
    assert_eq!(ds.count().await.unwrap(), 3);
    assert_eq!(ds.take::<City>(1).await.unwrap(), cities()[..1]);
    let rows: Vec<City> = ds.iter_rows().await.unwrap().try_collect().await.unwrap();
    assert_eq!(rows, cities());
}

#[tokio::test]
async fn typed_rows_are_mapped_flattened_and_filtered() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Letter {
        letter: String,
    }
    let ds = context().from_items(cities()).unwrap().filter_rows(|c: &City| c.river.is_some()).unwrap();
    let ds = ds.map(|c: City| City { people: c.people * 2, ..c }).unwrap();
    assert_eq!(ds.take::<City>(1).await.unwrap()[0].people, 660);
    let ds =
        ds.flat_map(|c: City| c.name.chars().map(|l| Letter { letter: l.to_string() }).collect::<Vec<_>>()).unwrap();
    let letters: Vec<String> = ds.take::<Letter>(100).await.unwrap().into_iter().map(|l| l.letter).collect();
    assert_eq!(letters.concat(), "BonnUlm");
}

#[tokio::test]
async fn columns_are_selected_dropped_renamed_and_computed() {
    let ds = context().from_items(cities()).unwrap();
    assert_eq!(ds.select_columns(&["people", "name"]).unwrap().columns(), ["people", "name"]);
    assert_eq!(ds.drop_columns(&["river"]).unwrap().columns(), ["name", "people"]);
    assert_eq!(ds.rename_columns(&[("people", "k")]).unwrap().columns(), ["name", "k", "river"]);
    let ds = ds.with_column("twice", col("people") * lit(2)).unwrap();
    let ds = ds.with_columns(vec![("people", lit(0i64)), ("half", col("people") / lit(2))]).unwrap();
    assert_eq!(ds.columns(), ["name", "people", "river", "twice", "half"]);
    assert_eq!(lines(&ds.take_all().await.unwrap())[0], "Bonn|0|Rhein|660|165");
}

#[tokio::test]
async fn limit_takes_the_first_rows() {
    let ds = context().range(100_000).unwrap();
    assert_eq!(ints(&ds.limit(3).unwrap().take_all().await.unwrap(), "id"), [0, 1, 2]);
    let mapped = ds.map_batches(inc).unwrap().filter("id % 10 = 0").unwrap();
    assert_eq!(ints(&[mapped.take_batch(3).await.unwrap()], "id"), [10, 20, 30]);
    assert!(ds.show(2).await.unwrap().contains("| 1  |"));
}

#[tokio::test]
async fn union_zip_sort_unique_and_join() {
    let context = context();
    let (a, b) = (context.range(3).unwrap(), context.range(2).unwrap());
    assert_eq!(a.union(&b).unwrap().count().await.unwrap(), 5);
    let zipped = a.zip(&[&a.map_batches(inc).unwrap()]).unwrap();
    assert_eq!(zipped.columns(), ["id", "id_1"]);
    assert_eq!(lines(&zipped.take_all().await.unwrap()), ["0|1", "1|2", "2|3"]);
    assert_eq!(lines(&zipped.select_columns(&["id_1"]).unwrap().take_all().await.unwrap()), ["1", "2", "3"]);
    assert_eq!(ints(&a.sort([desc("id")]).unwrap().take_all().await.unwrap(), "id"), [2, 1, 0]);
    let joined = a.join(&b, JoinType::Left, &["id"], &["id"]).unwrap();
    assert_eq!(joined.count().await.unwrap(), 3);
    let unique = a.with_column("k", col("id") % lit(2)).unwrap().unique("k").unwrap();
    assert_eq!(unique.count().await.unwrap(), 2);
}

#[tokio::test]
async fn each_key_of_a_sort_has_its_own_direction() {
    let ds = context().range(6).unwrap().with_column("k", col("id") % lit(2)).unwrap();
    let sorted = ds.sort([col("k").sort(false, true), col("id").sort(true, true)]).unwrap();
    assert_eq!(ints(&sorted.take_all().await.unwrap(), "id"), [1, 3, 5, 0, 2, 4]);
}

#[tokio::test]
async fn a_join_gives_equal_names_their_suffixes() {
    let context = context();
    let a = context.range(4).unwrap().with_column("v", col("id") * lit(10)).unwrap();
    let b = context.range(3).unwrap().with_column("v", col("id") * lit(100)).unwrap();
    let joined = a.join_with_suffixes(&b, JoinType::Left, &["id"], &["id"], ("", "_right")).unwrap();
    assert_eq!(joined.columns(), ["id", "v", "id_right", "v_right"]);
    let rows = lines(&joined.sort(["id"]).unwrap().take_all().await.unwrap());
    assert_eq!(rows, ["0|0|0|0", "1|10|1|100", "2|20|2|200", "3|30|NULL|NULL"]);
    let error = a.join_with_suffixes(&b, JoinType::Inner, &["id"], &["id"], ("", "")).unwrap_err().to_string();
    assert!(error.contains("both sides of the join have a column 'id'"), "{error}");
}

#[tokio::test]
async fn a_summary_has_a_row_for_each_column() {
    let ds = context().sql("SELECT id, CASE WHEN id % 2 = 0 THEN 0.0 END AS v, 's' || id AS s FROM range(10)").await;
    let summary = ds.unwrap().summary().unwrap();
    assert_eq!(summary.columns()[..3], ["column", "type", "count"]);
    let rows = lines(&summary.take_all().await.unwrap());
    assert_eq!(rows.len(), 3);
    assert!(rows[0].starts_with("id|Int64|10|0.0|10.0|4.5|3.027") && rows[0].contains("|0|4.5|9|"), "{rows:?}");
    assert!(rows[1].starts_with("v|Float64|5|50.0|100.0|0.0|0.0|0.0|0.0|0.0|"), "{rows:?}");
    assert!(rows[2].starts_with("s|Utf8|10|0.0|NULL|NULL|NULL|s0|NULL|s9|"), "{rows:?}");
}

#[tokio::test]
async fn zip_aligns_rows_whatever_the_blocks() {
    let context = context();
    let a = context.range_in_blocks(10_000, 7).unwrap();
    let b = context.range_in_blocks(10_000, 3).unwrap().filter("id >= 0").unwrap();
    let zipped = a.zip(&[&b]).unwrap();
    assert_eq!(zipped.filter("id <> id_1").unwrap().count().await.unwrap(), 0);
    assert_eq!(zipped.count().await.unwrap(), 10_000);
}

#[tokio::test]
async fn a_mix_has_the_parts_that_were_asked_for() {
    let context = context();
    let of = |name: &str| context.range(5000).unwrap().with_column("name", lit(name)).unwrap();
    let (a, b, c) = (of("a"), of("b"), of("c"));
    let options = MixOptions { weights: vec![2.0, 1.0, 1.0], ..Default::default() };
    let mixed = a.mix_with(&[&b, &c], options).unwrap();
    let first = mixed.limit(4096).unwrap();
    assert_eq!(first.filter("name = 'a'").unwrap().count().await.unwrap(), 2048);
    assert_eq!(mixed.count().await.unwrap(), 15_000);
    let shortest = MixOptions { stopping_condition: MixStoppingCondition::Shortest, ..Default::default() };
    assert_eq!(a.mix_with(&[&b.limit(0).unwrap()], shortest).unwrap().count().await.unwrap(), 0);
    let error = a.mix(&[&context.range(3).unwrap()]).unwrap_err().to_string();
    assert!(error.contains("mix needs inputs with the same columns"), "{error}");
}

#[tokio::test]
async fn groups_are_aggregated() {
    let ds = context().range(100).unwrap().with_column("k", col("id") % lit(3)).unwrap();
    let groups = ds.group_by(&["k"]).unwrap();
    let of = async |ds: Dataset| lines(&ds.sort(["k"]).unwrap().take_all().await.unwrap());
    assert_eq!(of(groups.count().unwrap()).await, ["0|34", "1|33", "2|33"]);
    assert_eq!(of(groups.sum(&["id"]).unwrap()).await, ["0|1683", "1|1617", "2|1650"]);
    assert_eq!(of(groups.min(&["id"]).unwrap()).await, ["0|0", "1|1", "2|2"]);
    assert_eq!(of(groups.max(&["id"]).unwrap()).await, ["0|99", "1|97", "2|98"]);
    assert_eq!(of(groups.mean(&["id"]).unwrap()).await, ["0|49.5", "1|49.0", "2|50.0"]);
    let std = of(groups.std(&["id"]).unwrap()).await;
    assert!(std[0].starts_with("0|29.87"), "{std:?}");
    assert_eq!(groups.approx_top_k(&["id"], 2).unwrap().columns(), ["k", "approx_top_k(id)"]);
    assert_eq!(of(groups.approx_quantile(&["id"], 1.0).unwrap()).await, ["0|99.0", "1|97.0", "2|98.0"]);
    let both = groups.aggregate(vec![count(lit(1)), sum(col("id"))]).unwrap();
    assert_eq!(both.columns().len(), 3);
}

#[tokio::test]
async fn a_sort_survives_the_maps_above_it() {
    let ds = context().range(10_000).unwrap().random_shuffle(Some(3)).unwrap().sort([desc("id")]).unwrap();
    let ds = ds.map_batches(inc).unwrap().filter("id > 10").unwrap();
    let ds = ds.map_batches_with("identity", MapOptions { num_cpus: Some(0.5), ..Default::default() }).unwrap();
    let ids = ints(&ds.take_all().await.unwrap(), "id");
    assert_eq!(ids, (11..=10_000).rev().collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_sample_has_about_the_fraction_and_repeats() {
    let ds = context().range(100_000).unwrap();
    let sample = async |seed| ints(&ds.random_sample(0.1, seed).unwrap().take_all().await.unwrap(), "id");
    let first = sample(1).await;
    assert!((9_500..10_500).contains(&first.len()), "{}", first.len());
    assert_eq!(first, sample(1).await);
    assert_ne!(first, sample(2).await);
    assert!(ds.random_sample(1.5, 0).unwrap_err().to_string().contains("between 0 and 1, got 1.5"));
}

#[tokio::test]
async fn batches_have_the_size_asked_for() {
    let ds = context().range(1000).unwrap();
    let sizes = async |options| {
        let batches: Vec<_> = ds.iter_batches(options).await.unwrap().map(|b| b.unwrap().num_rows()).collect().await;
        batches
    };
    assert_eq!(sizes(IterOptions::default()).await, [256, 256, 256, 232]);
    assert_eq!(
        sizes(IterOptions { batch_size: Some(300), drop_last: true, ..IterOptions::default() }).await,
        [300, 300, 300]
    );
    assert_eq!(sizes(IterOptions { batch_size: None, ..IterOptions::default() }).await.iter().sum::<usize>(), 1000);
}

#[tokio::test]
async fn functions_get_the_batches_asked_for() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = {
        let seen = std::sync::Arc::clone(&seen);
        move |batch: datafusion::arrow::array::RecordBatch| {
            seen.lock().unwrap().push(batch.num_rows());
            Ok(batch)
        }
    };
    let ds = context().range_in_blocks(1000, 2).unwrap();
    for (size, expected) in
        [(BatchSize::Rows(300), vec![0, 200, 200, 300, 300]), (BatchSize::WholeBlock, vec![0, 500, 500])]
    {
        let options = MapOptions { batch_size: size, ..Default::default() };
        ds.map_batches_with(record.clone(), options).unwrap().take_all().await.unwrap();
        let mut sizes = std::mem::take(&mut *seen.lock().unwrap());
        sizes.sort();
        assert_eq!(sizes, expected, "one call on an empty batch tells the columns");
    }
}

#[tokio::test]
async fn concurrency_bounds_the_calls_at_once() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let (now, most) = (std::sync::Arc::new(AtomicUsize::new(0)), std::sync::Arc::new(AtomicUsize::new(0)));
    let f = {
        let (now, most) = (std::sync::Arc::clone(&now), std::sync::Arc::clone(&most));
        move |batch| {
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, SeqCst);
            Ok(batch)
        }
    };
    let ds = crate::fixtures::context_with(4, |_| {}).range_in_blocks(10_000, 40).unwrap();
    let ds = ds.map_batches_with(f, MapOptions { concurrency: Some(1.into()), ..Default::default() }).unwrap();
    assert_eq!(ds.count().await.unwrap(), 10_000);
    assert_eq!(most.load(SeqCst), 1);
}

#[tokio::test]
async fn files_come_back_in_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let context = context();
    let ds = context.from_items(cities()).unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    ds.write_parquet(&path("p")).await.unwrap();
    ds.write_csv(&path("c")).await.unwrap();
    ds.write_json(&path("j")).await.unwrap();
    for read in [
        context.read_parquet(path("p")).await.unwrap(),
        context.read_csv(path("c")).await.unwrap(),
        context.read_json(path("j")).await.unwrap(),
    ] {
        let mut names = read.columns();
        names.sort();
        assert_eq!(names, ["name", "people", "river"]);
        assert_eq!(read.take::<City>(10).await.unwrap(), cities());
        assert_eq!(read.input_files().unwrap().len(), 1);
    }
    let options =
        ReadParquetOptions { columns: Some(vec!["people".into()]), include_paths: false, ..Default::default() };
    assert_eq!(context.read(path("p"), options).await.unwrap().columns(), ["people"]);
    let options = ReadParquetOptions { include_paths: true, ..Default::default() };
    let with_paths = context.read(vec![path("p"), path("p")], options).await.unwrap();
    assert_eq!(with_paths.count().await.unwrap(), 6);
    assert!(lines(&with_paths.take_all().await.unwrap())[0].contains("part-000000.parquet"));
}

#[tokio::test]
async fn a_materialized_dataset_is_read_without_running_again() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = {
        let calls = std::sync::Arc::clone(&calls);
        move |batch| {
            calls.fetch_add(1, SeqCst);
            Ok(batch)
        }
    };
    let context = context();
    let ds = context.range_in_blocks(1000, 4).unwrap().map_batches(counted).unwrap();
    let blocks = ds.materialize().await.unwrap();
    let after = calls.load(SeqCst);
    assert_eq!(blocks.num_blocks().await.unwrap(), Some(4));
    assert_eq!(blocks.count().await.unwrap(), 1000);
    assert_eq!(blocks.size_bytes().await.unwrap(), 8000);
    assert_eq!(ints(&blocks.take_all().await.unwrap(), "id"), (0..1000).collect::<Vec<i64>>());
    assert_eq!(calls.load(SeqCst), after);
    assert!(context.store().budget().blocks() > 0);
    drop(blocks);
    crate::fixtures::emptied(&context).await;
}

#[tokio::test]
async fn settings_are_fixed_when_a_dataset_is_created() {
    let context = context();
    let before = context.range(10).unwrap().random_shuffle(Some(1)).unwrap();
    context.sql("SET blockyard.optimize_fuse_stages = false").await.unwrap();
    let after = context.range(10).unwrap().random_shuffle(Some(1)).unwrap();
    assert!(!before.execution_plan().await.unwrap().contains("QueueExec"));
    assert!(after.execution_plan().await.unwrap().contains("QueueExec"));
    context.configure(|options| options.optimize_fuse_stages = true).unwrap();
    assert!(context.config().optimize_fuse_stages);
}

#[tokio::test]
async fn counts_come_from_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out").to_str().unwrap().to_owned();
    let context = context();
    context.range(1000).unwrap().write_parquet(&path).await.unwrap();
    let ds = context.read_parquet(path).await.unwrap();
    assert_eq!(ds.count().await.unwrap(), 1000);
    assert_eq!(ds.stats(), "", "nothing ran");
    assert_eq!(context.range(77).unwrap().count().await.unwrap(), 77);
    context.register_dataset("files", &ds).unwrap();
    let counted = context.sql("SELECT count(*) FROM files").await.unwrap();
    assert_eq!(lines(&counted.take_all().await.unwrap()), ["1000"]);
    let plan = counted.execution_plan().await.unwrap();
    assert!(plan.contains("PlaceholderRowExec") && !plan.contains("ReadExec"), "{plan}");
}

#[tokio::test]
async fn stats_tell_stages_by_their_fused_names() {
    let ds = context().range_in_blocks(1000, 4).unwrap().map_batches(inc).unwrap();
    let ds = ds.random_shuffle(Some(1)).unwrap().materialize().await.unwrap();
    let stats = ds.stats();
    for part in [
        "ReadRange->MapBatches(inc)->RandomShuffleMap: 4/4 blocks executed in",
        "RandomShuffleReduce",
        "* Wall time: ",
        "* CPU time: ",
        "* Output num rows per block: 250 min, 250 max, 250 mean, 1000 total",
        "* Output size per block: ",
        "spilled 0B, restored 0B",
        "peak of",
    ] {
        assert!(stats.contains(part), "'{part}' is not in\n{stats}");
    }
}

#[tokio::test]
async fn sql_of_calls_gives_the_same_rows() {
    let context = context();
    for call in [
        "zip(range(5), range(5), range(5))",
        "mix(range(3000), range(2000), weights => [3, 0.5], stopping_condition => 'shortest')",
        "random_shuffle(range(50), seed => 3, epoch => 2)",
        "randomize_block_order(range(50, override_num_blocks => 10), seed => 3, window => 4)",
        "repartition(random_shuffle(range(50), seed => 3), keys => 'id', boundaries => [7, 20])",
        "map_groups(range(50), 'identity', keys => 'id', batch_size => 3)",
    ] {
        let dataset = context.sql(&format!("SELECT * FROM {call}")).await.unwrap();
        let sql = dataset.to_sql().unwrap();
        assert!(!sql.contains("ORDER BY"), "a call that sorts is not below another sort: {sql}");
        let back = context.sql(&sql).await.unwrap();
        assert_eq!(lines(&back.take_all().await.unwrap()), lines(&dataset.take_all().await.unwrap()), "{call}");
    }
}

#[tokio::test]
async fn explain_shows_all_plans_and_sql_comes_back() {
    let context = context();
    let ds = context.range(10).unwrap().map_batches("identity").unwrap();
    let ds = ds.random_shuffle(Some(4)).unwrap().filter("id > 3").unwrap();
    let text = ds.explain().await.unwrap();
    for part in ["-- Logical plan --", "RandomShuffle: seed=4", "-- Execution plan --", "ExchangeExec"] {
        assert!(text.contains(part), "{text}");
    }
    context.register_dataset("t", &context.range(10).unwrap()).unwrap();
    let query = "SELECT * FROM random_shuffle(map_batches(t, 'identity', batch_size => 4), seed => 4) WHERE id > 3";
    let sql = context.sql(query).await.unwrap().to_sql().unwrap();
    let again = context.sql(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let of = async |ds: Dataset| ints(&ds.take_all().await.unwrap(), "id");
    assert_eq!(of(again).await, of(context.sql(query).await.unwrap()).await, "{sql}");
}

#[tokio::test]
async fn dataframes_go_in_and_out() {
    let context = context();
    let frame = context.session().sql("SELECT 1 AS a UNION ALL SELECT 2").await.unwrap();
    let ds = context.from_dataframe(frame).map_batches("identity").unwrap();
    assert_eq!(ds.clone().into_dataframe().count().await.unwrap(), 2);
    assert_eq!(ds.count().await.unwrap(), 2);
}

#[tokio::test]
async fn the_schema_needs_one_file_only() {
    let directory = tempfile::tempdir().unwrap();
    let context = context();
    let path = directory.path().to_str().unwrap().to_owned();
    context.range_in_blocks(10, 1).unwrap().write_parquet(&path).await.unwrap();
    std::fs::write(directory.path().join("part-000001.parquet"), "not parquet").unwrap();
    let ds = context.read_parquet(path).await.unwrap();
    assert_eq!(ds.columns(), ["id"], "the broken file is not opened for the schema");
    let error = ds.count().await.unwrap_err().to_string();
    assert!(error.contains("part-000001.parquet"), "{error}");
}

#[tokio::test]
async fn a_limit_opens_no_more_files_than_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let context = context();
    let path = directory.path().to_str().unwrap().to_owned();
    context.range_in_blocks(40, 4).unwrap().write_parquet(&path).await.unwrap();
    std::fs::write(directory.path().join("part-000003.parquet"), "not parquet").unwrap();
    let ds = context.read_parquet(path).await.unwrap();
    for rows in [1, 10, 30] {
        let batches = ds.clone().limit(rows).unwrap().take_all().await.unwrap();
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), rows);
    }
    let error = ds.limit(31).unwrap().take_all().await.unwrap_err().to_string();
    assert!(error.contains("part-000003.parquet"), "{error}");
}

/// A source with as many tasks as it is asked for, which counts how many of them are run.
#[derive(Debug)]
struct Letters {
    started: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

#[async_trait::async_trait]
impl blockyard::Datasource for Letters {
    fn name(&self) -> &str {
        "ReadLetters"
    }

    fn schema(&self) -> datafusion::arrow::datatypes::SchemaRef {
        use datafusion::arrow::datatypes::{DataType, Field, Schema};
        std::sync::Arc::new(Schema::new(vec![Field::new("letter", DataType::Utf8, false)]))
    }

    async fn plan(&self, request: blockyard::ReadRequest<'_>) -> datafusion::error::Result<blockyard::ReadPlan> {
        let task = |index| {
            let started = std::sync::Arc::clone(&self.started);
            std::sync::Arc::new(LettersTask { index, started, schema: self.schema() }).into()
        };
        Ok((0..request.parallelism(None)).map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct LettersTask {
    index: usize,
    started: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    schema: datafusion::arrow::datatypes::SchemaRef,
}

impl datafusion::physical_plan::streaming::PartitionStream for LettersTask {
    fn schema(&self) -> &datafusion::arrow::datatypes::SchemaRef {
        &self.schema
    }

    fn execute(
        &self,
        _context: std::sync::Arc<datafusion::execution::TaskContext>,
    ) -> datafusion::execution::SendableRecordBatchStream {
        use datafusion::arrow::array::{RecordBatch, StringArray};
        self.started.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let letter = char::from(b'a' + (self.index % 26) as u8).to_string();
        let column = std::sync::Arc::new(StringArray::from(vec![letter])) as _;
        let batch = RecordBatch::try_new(std::sync::Arc::clone(&self.schema), vec![column]);
        let stream = futures::stream::iter([batch.map_err(Into::into)]);
        Box::pin(datafusion::physical_plan::stream::RecordBatchStreamAdapter::new(
            std::sync::Arc::clone(&self.schema),
            stream,
        ))
    }
}

#[tokio::test]
async fn a_source_of_your_own_is_read_in_its_tasks_and_no_more_than_needed() {
    let started = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let source = std::sync::Arc::new(Letters { started: std::sync::Arc::clone(&started) });
    let ds = context().read_datasource(source, Some(1000)).unwrap();
    assert_eq!(ds.num_blocks().await.unwrap(), Some(1000));
    assert_eq!(lines(&ds.take_all().await.unwrap())[..3], ["a", "b", "c"]);
    assert_eq!(started.swap(0, std::sync::atomic::Ordering::SeqCst), 1000);
    let upper = ds.map_batches("identity").unwrap();
    assert_eq!(lines(&[upper.take_batch(3).await.unwrap()]), ["a", "b", "c"]);
    let ran = started.load(std::sync::atomic::Ordering::SeqCst);
    assert!(ran < 1000, "a limit must stop the reading early, but {ran} tasks ran");
}

#[tokio::test]
async fn limits_and_columns_move_into_the_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap().to_owned();
    let context = context();
    let ds = context.sql("SELECT id, id * 2 AS twice, 'x' AS pad FROM range(1000)").await.unwrap();
    ds.write_parquet(&path).await.unwrap();
    let ds = context.read_parquet(path).await.unwrap();
    let plan = ds.select_columns(&["twice"]).unwrap().limit(7).unwrap().execution_plan().await.unwrap();
    assert!(plan.contains("projection=[twice]") && plan.contains("limit=7"), "{plan}");
    let same = MapOptions { preserves_row_count: true, ..Default::default() };
    let plan = ds.map_batches_with("identity", same).unwrap().limit(7).unwrap().execution_plan().await.unwrap();
    assert!(plan.contains("limit=7"), "{plan}");
    let plan = ds.filter("id > 990").unwrap().execution_plan().await.unwrap();
    assert!(plan.contains("predicate=id@0 > 990"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_datasets_run_at_once_within_one_limit() {
    let context = crate::fixtures::context_with(2, |o| o.memory_limit = crate::fixtures::mib(8));
    let shuffled = |seed| context.range(400_000).unwrap().random_shuffle(Some(seed)).unwrap();
    let (one, two) = (shuffled(1), shuffled(2));
    let (first, second) = futures::join!(one.take_all(), two.take_all());
    for batches in [first.unwrap(), second.unwrap()] {
        let mut ids = ints(&batches, "id");
        ids.sort();
        assert_eq!(ids, (0..400_000).collect::<Vec<i64>>());
    }
    assert!(context.store().totals().spilled_bytes() > 0);
    drop((one, two));
    crate::fixtures::emptied(&context).await;
}

/// A user's rule, which only counts how often it is asked.
#[derive(Debug, Default)]
struct CountingRule(std::sync::atomic::AtomicUsize);

impl datafusion::physical_optimizer::PhysicalOptimizerRule for CountingRule {
    fn optimize(
        &self,
        plan: std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>,
        _config: &datafusion::config::ConfigOptions,
    ) -> datafusion::error::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(plan)
    }

    fn name(&self) -> &str {
        "count_plans"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn rules_are_added_listed_and_removed_at_run_time() {
    use blockyard::optimizer::Anchor;
    use std::sync::atomic::Ordering::SeqCst;
    let context = context();
    context.sql("CREATE TABLE t AS SELECT * FROM range(5)").await.unwrap();
    let rule = std::sync::Arc::new(CountingRule::default());
    let shared = std::sync::Arc::clone(&rule);
    context
        .configure_rules(|rules| {
            rules.add_physical(shared, Anchor::after("fuse_maps"), &["fuse_maps"]);
            Ok(())
        })
        .unwrap();
    assert!(context.rules().list().iter().any(|(name, _)| name == "count_plans"));
    let sql = "SELECT * FROM map_batches(t, 'identity')";
    assert_eq!(crate::fixtures::rows(&context, sql).await.len(), 5);
    assert_eq!(rule.0.load(SeqCst), 1);
    let error = context.configure_rules(|rules| {
        rules.add_physical(std::sync::Arc::new(CountingRule::default()), Anchor::before("nosuch"), &[]);
        Ok(())
    });
    assert!(error.unwrap_err().to_string().contains("unknown anchor 'nosuch#0'"));
    context.configure_rules(|rules| rules.remove("count_plans")).unwrap();
    context.sql(sql).await.unwrap().take_all().await.unwrap();
    assert_eq!(rule.0.load(SeqCst), 1);
}

#[tokio::test]
async fn sql_creates_functions_in_languages_that_the_application_adds() {
    let context = context();
    // A language of one word: the number by which ids are multiplied.
    let times = |name: &str, body: &str| match body.parse::<i64>() {
        Ok(factor) => Ok(blockyard::functions::from_closure(move |batch: RecordBatch| {
            let ids = ints(std::slice::from_ref(&batch), "id").into_iter().map(|id| id * factor);
            let ids = datafusion::arrow::array::Int64Array::from_iter_values(ids);
            Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as _)])?)
        })),
        Err(_) => datafusion::common::plan_err!("'{body}' of {name} is not a number"),
    };
    context.functions().register_language("times", Arc::new(times));
    context.sql("CREATE FUNCTION thrice() LANGUAGE Times AS '3' SET batch_size = 2").await.unwrap();
    let rows = context.sql("SELECT * FROM map_batches(range(4), 'thrice')").await.unwrap().take_all().await.unwrap();
    assert_eq!(ints(&rows, "id"), [0, 3, 6, 9]);
    let by_name = context.range(4).unwrap().map_batches("thrice").unwrap();
    assert!(by_name.explain().await.unwrap().contains("batch_size=2"));
    let error = context.sql("CREATE FUNCTION often() LANGUAGE times AS 'many'").await.unwrap_err().to_string();
    assert!(error.contains("'many' of often is not a number"), "{error}");
}

#[tokio::test]
async fn a_dataset_says_what_is_known_of_it_and_its_true_blocks() {
    let range = context().range_in_blocks(100, 20).unwrap();
    assert_eq!(range.describe().await.unwrap(), "Dataset(num_blocks=20, num_rows=100, schema={id: Int64})");
    let filtered = range.filter("id % 2 = 0").unwrap();
    assert_eq!(filtered.describe().await.unwrap(), "Dataset(num_blocks=20, num_rows=?, schema={id: Int64})");
    // Where only running tells how many there are, it is the read tasks.
    let sorted = filtered.sort(["id"]).unwrap();
    assert_eq!(sorted.describe().await.unwrap(), "Dataset(num_blocks=20, num_rows=?, schema={id: Int64})");
    let blocks = filtered.repartition(3).unwrap().internal_blocks().await.unwrap();
    assert_eq!(blocks.iter().map(|block| block.num_rows).collect::<Vec<_>>(), [16, 17, 17]);
    let kept = filtered.materialize().await.unwrap();
    assert_eq!(kept.internal_blocks().await.unwrap().len(), 20);
    assert_eq!(kept.describe().await.unwrap(), "Dataset(num_blocks=20, num_rows=50, schema={id: Int64})");
}
