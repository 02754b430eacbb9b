//! A store that fails in all ways, again and again.

use std::time::Duration;

use super::{Fault, Server, ids, rows, run, session, sql_error};

/// Scrambles a number, so that faults fall anywhere.
fn scrambled(seed: u64, number: usize) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

/// 5 % of the answers are 500, 5 % 503, 2 % are broken off, 2 % closed before they begin, and 1 % never come.
fn fault(seed: u64, number: usize, is_get: bool) -> Option<Fault> {
    match scrambled(seed, number) % 100 {
        0..5 => Some(Fault::Status(500)),
        5..10 => Some(Fault::Status(503)),
        // Nobody knows of a write whether it happened.
        10..12 if is_get => Some(Fault::Cut),
        12..14 if is_get => Some(Fault::Reset),
        14 if is_get => Some(Fault::Hang),
        _ => None,
    }
}

/// More objects and seeds by the environment: `FAULTY_OBJECTS=1000 FAULTY_SEEDS=50`.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_many_objects_are_exact_with_faults_of_all_kinds() {
    let (objects, seeds) = (number("FAULTY_OBJECTS", 60), number("FAULTY_SEEDS", 3));
    let server = Server::start("data", false);
    let context = session(&server).await;
    run(&context, "SET blockyard.store_read_timeout = '1s'").await;
    for format in ["parquet", "csv"] {
        let copy = format!(
            "COPY (SELECT id, repeat('x', id % 50) AS t FROM range({}, override_num_blocks => {objects})) \
             TO 's3://data/{format}/' STORED AS {format}",
            objects * 20
        );
        run(&context, &copy).await;
    }
    let expected: Vec<i64> = (0..objects as i64 * 20).collect();
    for seed in 0..seeds as u64 {
        for format in ["parquet", "csv"] {
            // A session that knows nothing of the files.
            let context = session(&server).await;
            run(&context, "SET blockyard.store_read_timeout = '1s'").await;
            let before = server.served_faults();
            server.fail(move |number, request| fault(seed, number, request.method() == "GET"));
            assert_eq!(ids(&context, &format!("'s3://data/{format}/'")).await, expected, "{format}, seed {seed}");
            let served = server.served_faults() - before;
            assert!(served > objects / 20, "{served} faults");
            let told = rows(&context, "SELECT retries FROM blockyard.stores").await;
            assert_eq!(told, [served.to_string()], "{format}, seed {seed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_always_fails_is_told_with_its_status_and_the_attempts() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    run(&context, "SET blockyard.store_max_retries = 3").await;
    run(&context, "COPY (SELECT id FROM range(99, override_num_blocks => 9)) TO 's3://data/t/' STORED AS CSV").await;
    let name = super::objects(&server)[4].clone();
    let (failing, asked) = (name.clone(), format!("GET /data/{name}"));
    server.fail(move |_, request| request.uri().path().ends_with(&failing).then_some(Fault::Status(500)));
    let error = sql_error(&context, "SELECT sum(id) FROM 's3://data/t/'").await;
    for part in [&format!("s3://data/{name}"), "500", "3 retries"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let asked = server.take_requests().iter().filter(|request| request.starts_with(&asked)).count();
    assert_eq!(asked, 4, "tried again in one place only");

    // As long as is said, however often that is.
    run(&context, "SET blockyard.store_max_retries = 1000000").await;
    run(&context, "SET blockyard.store_retry_timeout = '1s'").await;
    let began = std::time::Instant::now();
    let error = sql_error(&context, "SELECT sum(id) FROM 's3://data/t/'").await;
    assert!(error.contains(&format!("s3://data/{name}")) && error.contains("500"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_which_nobody_knows_whether_it_is_there_goes_with_its_write() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    run(&context, "SET blockyard.store_max_retries = 1").await;
    run(&context, "SET blockyard.max_io_retries = 1").await;
    let copy = |mode: &str, rows: usize| {
        format!(
            "COPY (SELECT id FROM range({rows}, override_num_blocks => 10)) TO 's3://data/t/' STORED AS PARQUET \
             OPTIONS (mode '{mode}')"
        )
    };
    let count = "SELECT count(*) FROM 's3://data/t/'";
    run(&context, &copy("append", 100)).await;
    for lost in [Fault::LostAnswer, Fault::Status(503)] {
        // The completion of one of the files.
        server.fail(move |_, request| {
            let of_one = request.uri().path().contains("part-000013");
            let completes = request.uri().query().is_some_and(|query| query.contains("uploadId"));
            (request.method() == "POST" && of_one && completes).then_some(lost)
        });
        server.take_requests();
        let error = sql_error(&context, &copy("append", 1000)).await;
        assert!(error.contains("part-000013"), "{error}");
        assert_eq!(rows(&context, count).await, ["100"], "{lost:?}");
        let requests = server.take_requests();
        let given_up = |r: &&String| r.starts_with("DELETE") && r.contains("part-000013") && r.contains("uploadId");
        assert!(requests.iter().any(|request| given_up(&request)), "{requests:?}");
    }
    server.fail(|_, _| None);
    run(&context, &copy("append", 1000)).await;
    assert_eq!(rows(&context, count).await, ["1100"]);
    // What an overwrite removes is removed, also where nobody says so at first.
    let removals = std::sync::atomic::AtomicUsize::new(0);
    server.fail(move |_, request| {
        let removes = request.method() == "POST" && request.uri().query().is_some_and(|query| query.contains("delete"));
        let first = removes && removals.fetch_add(1, std::sync::atomic::Ordering::SeqCst).is_multiple_of(2);
        first.then_some(Fault::LostAnswer)
    });
    run(&context, &copy("overwrite", 50)).await;
    assert_eq!(rows(&context, count).await, ["50"]);
    server.fail(|_, request| {
        let removes = request.method() == "POST" && request.uri().query().is_some_and(|query| query.contains("delete"));
        removes.then_some(Fault::Status(403))
    });
    let error = sql_error(&context, &copy("overwrite", 60)).await;
    assert!(error.contains("beside which all new files can be read now"), "{error}");
}
