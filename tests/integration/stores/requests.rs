//! How many requests a read of an object store takes.

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
