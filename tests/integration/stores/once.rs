//! Writes with a name, which happen once, however often they are run, cut short, or run at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;

use super::server::{Fault, Server};
use super::{ids, objects, rows, run, session};

/// A write of 0 to 99 in so many files.
fn copy(to: &str, files: usize, name: &str) -> String {
    format!(
        "COPY (SELECT id FROM range(100, override_num_blocks => {files})) TO 's3://data/{to}/' STORED AS PARQUET \
         OPTIONS (write_id '{name}')"
    )
}

/// The same of a session that gives up at the first error.
async fn hasty(server: &Server) -> DataContext {
    let context = session(server).await;
    run(&context, "SET blockyard.store_max_retries = 0").await;
    run(&context, "SET blockyard.max_io_retries = 0").await;
    context
}

/// Whether a write came to its end.
async fn ends(context: &DataContext, copy: &str) -> bool {
    match context.sql(copy).await {
        Ok(dataset) => dataset.take_all().await.is_ok(),
        Err(_) => false,
    }
}

async fn sorted_ids(context: &DataContext, to: &str) -> Vec<i64> {
    let mut found = ids(context, &format!("'s3://data/{to}/'")).await;
    found.sort_unstable();
    found
}

/// Writes that are cut short at each of their requests, and run again, have each row once. More files, and so requests,
/// by the environment: `CUT_FILES=60`.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_a_name_happens_once() {
    let server = Server::start("data", false);
    let context = hasty(&server).await;
    let files: usize = std::env::var("CUT_FILES").map_or(3, |files| files.parse().unwrap());
    let mut cut = 0;
    loop {
        let to = format!("t{cut}");
        run(&context, &format!("COPY (SELECT -1 AS id) TO 's3://data/{to}/' STORED AS PARQUET")).await;
        let copy = copy(&to, files, "night");
        server.fail(move |number, _| (number >= cut).then_some(Fault::Reset));
        let ended = ends(&context, &copy).await;
        server.fail(|_, _| None);
        for _ in 0..2 {
            assert_eq!(rows(&context, &copy).await, ["100"], "cut at {cut}");
        }
        let expected: Vec<i64> = (-1..100).collect();
        assert_eq!(sorted_ids(&context, &to).await, expected, "cut at {cut}");
        if ended {
            break;
        }
        cut += 1;
    }
    assert!(cut > 2 * files, "{cut} requests");
}

/// Once it is noted what is completed, another run does that, and uploads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_run_completes_what_is_noted() {
    let server = Server::start("data", false);
    let context = hasty(&server).await;
    let noted = AtomicUsize::new(0);
    // The second upload is not completed any more.
    server.fail(move |_, request| {
        let completes = request.method() == "POST" && request.uri().query().is_some_and(|q| q.starts_with("uploadId"));
        let is_late = completes && noted.fetch_add(1, SeqCst) > 0;
        (is_late || request.method() == "DELETE").then_some(Fault::Reset)
    });
    let error = context.sql(&copy("t", 3, "night")).await.unwrap().take_all().await.unwrap_err().to_string();
    assert!(error.contains("'t/_blockyard/night.json', with which the next run of it goes on"), "{error}");
    server.fail(|_, _| None);
    // Whatever it would write, it is the first one that counts.
    assert_eq!(rows(&context, &copy("t", 5, "night")).await, ["100"]);
    let requests = server.take_requests();
    assert!(!requests.iter().any(|request| request.contains("?uploads")), "{requests:?}");
    assert_eq!(objects(&server).iter().filter(|name| name.ends_with(".parquet")).count(), 3);
    assert_eq!(sorted_ids(&context, "t").await, (0..100).collect::<Vec<_>>());
}

/// Where what is noted can be completed no more, the next run takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_are_gone_are_made_anew() {
    let server = Server::start("data", false);
    let context = hasty(&server).await;
    let completed = AtomicUsize::new(0);
    server.fail(move |_, request| {
        let completes = request.method() == "POST" && request.uri().query().is_some_and(|q| q.starts_with("uploadId"));
        (completes && completed.fetch_add(1, SeqCst) > 0).then_some(Fault::Reset)
    });
    assert!(!ends(&context, &copy("t", 3, "night")).await);
    server.fail(|_, _| None);
    // As a rule of the store removes uploads.
    let root = server.path("data").parent().unwrap().to_owned();
    let is_upload = |name: &str| name.starts_with(".upload");
    let uploads: Vec<_> = std::fs::read_dir(&root).unwrap().flatten().map(|entry| entry.path()).collect();
    let uploads = uploads.iter().filter(|path| is_upload(&path.file_name().unwrap().to_string_lossy()));
    let gone = uploads.map(|path| std::fs::remove_file(path).unwrap()).count();
    assert!(gone > 0, "nothing was uploaded");
    // A run that is at work is waited for.
    let note = std::fs::File::options().write(true).open(root.join("data/t/_blockyard/night.json")).unwrap();
    note.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    assert_eq!(rows(&context, &copy("t", 5, "night")).await, ["100"]);
    assert_eq!(objects(&server).iter().filter(|name| name.ends_with(".parquet")).count(), 5);
    assert_eq!(sorted_ids(&context, "t").await, (0..100).collect::<Vec<_>>());
}

/// Two runs at once, which make other files of the same rows, and die or end: the files are of one of them.
#[tokio::test(flavor = "multi_thread")]
async fn runs_at_once_write_once() {
    let server = Server::start("data", false);
    let (one, other) = (hasty(&server).await, hasty(&server).await);
    let rounds: usize = std::env::var("ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let mut kinds = BTreeSet::new();
    for round in 0..rounds {
        let to = format!("t{round}");
        let [first, second] = [copy(&to, 3, "night"), copy(&to, 5, "night")];
        // Every third round nothing fails; in others from some request on everything does.
        let cut = if round % 3 == 0 { usize::MAX } else { 16 + round * 2 };
        server.fail(move |number, _| (number >= cut).then_some(Fault::Reset));
        let ended = tokio::join!(ends(&one, &first), ends(&other, &second));
        server.fail(|_, _| None);
        assert!(cut < usize::MAX || ended == (true, true), "{ended:?} in round {round}");
        let ended = tokio::join!(ends(&one, &first), ends(&other, &second));
        assert_eq!(ended, (true, true), "round {round}");
        assert_eq!(sorted_ids(&one, &to).await, (0..100).collect::<Vec<_>>(), "round {round}");
        let prefix = format!("{to}/part-");
        let files = objects(&server).iter().filter(|name| name.starts_with(&prefix)).count();
        assert!([3, 5].contains(&files), "{files} files in round {round}");
        kinds.insert(files);
    }
    assert!(!kinds.is_empty());
}

/// What an overwrite was about to do when it was cut short is done by its next run, also to what came in between.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_run_of_an_overwrite_replaces_what_came_meanwhile() {
    let server = Server::start("data", false);
    let context = hasty(&server).await;
    let copy = |value: i64, files: usize| {
        format!(
            "COPY (SELECT {value} AS id FROM range(10, override_num_blocks => {files})) TO 's3://data/t/' STORED AS PARQUET \
             OPTIONS (mode 'overwrite', write_id 'm{value}')"
        )
    };
    assert!(ends(&context, &copy(1, 2)).await);
    let completes = |request: &hyper::Request<hyper::body::Incoming>| {
        request.method() == "POST" && request.uri().query().is_some_and(|query| query.starts_with("uploadId"))
    };
    server.fail(move |_, request| completes(request).then_some(Fault::Reset));
    assert!(!ends(&context, &copy(2, 3)).await);
    server.fail(|_, _| None);
    assert!(ends(&context, &copy(3, 4)).await);
    assert_eq!(sorted_ids(&context, "t").await, [3; 10]);
    assert_eq!(rows(&context, &copy(2, 3)).await, ["10"]);
    assert_eq!(sorted_ids(&context, "t").await, [2; 10]);
}

/// A store that has no conditions, where runs come one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn stores_without_conditions_have_writes_once() {
    let server = Server::start("data", false);
    let context = hasty(&server).await;
    run(&context, &super::secret(&server).replace("REGION", "CONDITIONAL_PUT 'disabled', REGION")).await;
    for again in [false, true] {
        assert_eq!(rows(&context, &copy("t", 3, "night")).await, ["100"]);
        let begun = server.take_requests().iter().any(|request| request.contains("?uploads"));
        assert_ne!(begun, again);
        assert_eq!(sorted_ids(&context, "t").await, (0..100).collect::<Vec<_>>());
    }
}
