//! How many requests a read of an object store takes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

/// A hundred files of a hundred rows, ten for each of ten years, in each format.
async fn with_files(server: &Server, formats: &[&str]) -> DataContext {
    let context = session(server).await;
    for format in formats {
        for year in 2015..2025 {
            let copy = format!(
                "COPY (SELECT id, id % 7 AS k FROM range(1000, override_num_blocks => 10)) \
                 TO 's3://data/{format}/year={year}/' STORED AS {format}"
            );
            run(&context, &copy).await;
        }
    }
    server.take_requests();
    // Footers that are known from writing would be no requests.
    session(server).await
}

/// Requests for objects, and for lists of them.
fn counted(server: &Server) -> (usize, usize) {
    let requests = server.take_requests();
    assert!(requests.iter().all(|request| request.starts_with("GET ")), "{requests:?}");
    let lists = requests.iter().filter(|request| request.contains("list-type")).count();
    (requests.len() - lists, lists)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_file_costs_one_request() {
    let server = Server::start("data", false);
    for format in ["parquet", "csv", "json"] {
        let context = with_files(&server, &[format]).await;
        let of_all = format!("SELECT count(*), sum(id), sum(year) FROM read_{format}('s3://data/{format}/')");
        for (query, expected, objects) in [
            (of_all.clone(), "10000|4995000|20195000", 100),
            (format!("{of_all} WHERE year = 2024"), "1000|499500|2024000", 10),
        ] {
            let found = rows(&context, &query).await;
            assert_eq!(found, [expected], "{query}");
            let (asked, lists) = counted(&server);
            // The first file tells the columns, also where its rows are not asked for.
            assert!((objects..=objects + 1).contains(&asked) && lists == 1, "{query}: {asked} and {lists}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_cannot_have_rows_are_not_listed() {
    let server = Server::start("data", false);
    let context = with_files(&server, &["parquet"]).await;
    run(&context, "CREATE VIEW years AS SELECT * FROM read_parquet('s3://data/parquet/')").await;
    let of_year = "SELECT count(*), sum(id) FROM years WHERE year";
    for (condition, expected, lists_expected) in [
        // The directories, and what is in those that are left.
        ("= 2024", "1000|499500", 2),
        ("NOT IN (2015, 2016)", "8000|3996000", 9),
        ("> 3000", "0|NULL", 1),
        // A second time, since no directory can be skipped.
        ("> 0", "10000|4995000", 2),
    ] {
        server.take_requests();
        assert_eq!(rows(&context, &format!("{of_year} {condition}")).await, [expected], "{condition}");
        let (_, lists) = counted(&server);
        assert_eq!(lists, lists_expected, "{condition}");
    }
    let plan = rows(&context, &format!("EXPLAIN {of_year} = 2024")).await.join(" ");
    assert!(plan.contains("skipped directories=9"), "{plan}");
    // What comes later is found, also where the first run of a statement has listed before.
    let all = context.sql("SELECT id FROM read_parquet('s3://data/parquet/')").await.unwrap();
    assert_eq!(all.count().await.unwrap(), 10_000);
    run(&context, "COPY (SELECT 1 AS id, 1 AS k) TO 's3://data/parquet/year=2025/more.parquet'").await;
    assert_eq!(all.count().await.unwrap(), 10_001);
    assert_eq!(rows(&context, &format!("{of_year} = 2025")).await, ["1|1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_rows_are_in_the_first_files() {
    let server = Server::start("data", false);
    let context = with_files(&server, &["parquet"]).await;
    assert_eq!(rows(&context, "SELECT id FROM 's3://data/parquet/' LIMIT 10").await.len(), 10);
    let (asked, lists) = counted(&server);
    // One says that they are Parquet files.
    assert!(asked <= 3 && lists <= 2, "{asked} objects and {lists} lists");
    assert_eq!(rows(&context, "SELECT count(*) FROM 's3://data/parquet/'").await, ["10000"]);
    let (asked, _) = counted(&server);
    assert!(asked <= 101, "{asked} objects");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_opened_is_estimated_and_then_checked() {
    let server = Server::start("data", false);
    let context = with_files(&server, &["parquet", "csv"]).await;
    let plan = rows(&context, "EXPLAIN SELECT sum(id) FROM 's3://data/parquet/'").await.join(" ");
    assert!(plan.contains("estimated by 16 of 100 files"), "{plan}");
    // The last of them has other columns.
    let other = "COPY (SELECT 'a' AS id, 1 AS k) TO 's3://data/parquet/year=2024/part-z.parquet'";
    run(&context, other).await;
    let error = sql_error(&context, "SELECT sum(id) FROM read_parquet('s3://data/parquet/')").await;
    assert!(error.contains("column 'id' is Utf8") && error.contains("part-z.parquet"), "{error}");
    let other = "COPY (SELECT 'a' AS id, 1 AS c) TO 's3://data/csv/year=2024/part-z.csv'";
    run(&context, other).await;
    let error = sql_error(&context, "SELECT sum(id) FROM read_csv('s3://data/csv/')").await;
    assert!(error.contains("part-z.csv' are [\"id\", \"c\"], but those of the first file are"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_between_plan_and_reading_is_an_error() {
    let server = Server::start("data", false);
    let context = with_files(&server, &["parquet"]).await;
    let ds = context.sql("SELECT id FROM read_parquet('s3://data/parquet/')").await.unwrap();
    // They are listed already. In the moment of the first request for one, all of a year become others.
    let root = server.path("data/parquet/year=2024");
    let changed = std::sync::atomic::AtomicBool::new(false);
    server.fail(move |_, _| {
        if !changed.swap(true, std::sync::atomic::Ordering::SeqCst) {
            for entry in
                fs::read_dir(&root).unwrap().flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.'))
            {
                let mut bytes = fs::read(entry.path()).unwrap();
                bytes.extend_from_slice(b"PAR1");
                fs::write(entry.path(), bytes).unwrap();
            }
        }
        None
    });
    let error = ds.take_all().await.unwrap_err().strip_backtrace();
    assert!(error.contains("has changed since the query was planned"), "{error}");
}

/// Three files of five row groups each, of which the second has no row with a `k` below 1.
#[tokio::test(flavor = "multi_thread")]
async fn row_groups_of_the_next_large_files_are_asked_for_ahead() {
    let server = Server::start("data", false);
    let copy = "COPY (SELECT id, CASE id / 60000 WHEN 1 THEN 1 ELSE 0 END AS k, sha256(CAST(id AS VARCHAR)) AS noise \
                FROM range(180000, override_num_blocks => 3)) \
                TO 's3://data/large/' STORED AS PARQUET OPTIONS (max_row_group_size 12000)";
    run(&session(&server).await, copy).await;
    let files: Vec<String> = objects(&server).into_iter().filter(|name| name.ends_with(".parquet")).collect();
    // The numbers of the last row group are in front of this, and what is said of pages behind it.
    let size = |name| fs::metadata(server.path("data").join(name)).unwrap().len();
    assert!(files.len() == 3 && files.iter().all(|name| (1_900_000..2_200_000).contains(&size(name))), "{files:?}");
    let end_of_numbers = 1_700_000;
    for (condition, expected, read) in
        [("true", "180000|16199910000", vec![0, 1, 2]), ("k < 1", "120000|10799940000", vec![0, 2])]
    {
        let context = session(&server).await;
        run(&context, "SET datafusion.execution.target_partitions = 1").await;
        let chunks = Arc::new(Mutex::new(Vec::new()));
        let (asked, files, next) = (Arc::clone(&chunks), files.clone(), read[1]);
        // All but the first row group of the first file fail until the next file is asked for.
        server.fail(move |_, request| {
            let file = files.iter().position(|name| request.uri().path().ends_with(name.as_str()))?;
            let range = request.headers().get("range")?.to_str().ok()?.strip_prefix("bytes=")?;
            let start = range.split('-').next()?.parse::<u64>().ok().filter(|start| *start < end_of_numbers)?;
            let mut asked = asked.lock();
            if file == 0 && start > 100_000 && asked.iter().all(|(of, _)| *of != next) {
                return Some(Fault::Status(503));
            }
            asked.push((file, start));
            None
        });
        let query = format!("SELECT count(*), sum(id) FROM 's3://data/large/' WHERE {condition}");
        assert_eq!(rows(&context, &query).await, [expected], "{condition}");
        let mut chunks = std::mem::take(&mut *chunks.lock());
        let all = chunks.len();
        chunks.sort_unstable();
        chunks.dedup();
        assert_eq!((all, chunks.len()), (5 * read.len(), 5 * read.len()), "{condition}: {chunks:?}");
        assert!(chunks.iter().all(|(file, _)| read.contains(file)), "{condition}: {chunks:?}");
    }
}
