//! Object stores by their addresses, on a server that speaks S3.

mod faults;
mod once;
mod requests;
pub(crate) mod server;

use std::fs;

use blockyard::prelude::*;
use blockyard::{Blockyard, StoreOptions};
use datafusion::prelude::SessionConfig;

use self::server::{Fault, KEY, SECRET, Server};
use crate::fixtures::{context, ints, rows, sql_error};

/// The secret for a server, as SQL.
pub(crate) fn secret(server: &Server) -> String {
    format!(
        "CREATE OR REPLACE SECRET here (TYPE s3, SCOPE 's3://data/', ENDPOINT '{}', REGION 'us-east-1', \
         ACCESS_KEY_ID '{KEY}', SECRET_ACCESS_KEY '{SECRET}')",
        server.endpoint
    )
}

async fn run(context: &DataContext, sql: &str) {
    context.sql(sql).await.unwrap().take_all().await.unwrap();
}

async fn session(server: &Server) -> DataContext {
    let context = context();
    run(&context, &secret(server)).await;
    context
}

async fn ids(context: &DataContext, from: &str) -> Vec<i64> {
    ints(&context.sql(&format!("SELECT id FROM {from}")).await.unwrap().take_all().await.unwrap(), "id")
}

/// The names of objects, without what the server keeps for itself.
pub(crate) fn objects(server: &Server) -> Vec<String> {
    let root = server.path("data");
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path => found.push(path.strip_prefix(&root).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found.retain(|name| !name.rsplit('/').next().unwrap().starts_with('.'));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_go_to_a_store_and_come_back_in_order() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    for format in ["parquet", "csv", "json"] {
        let copy = format!(
            "COPY (SELECT id, id * 2 AS v FROM range(10000, override_num_blocks => 7)) TO 's3://data/{format}/' \
             STORED AS {format}"
        );
        run(&context, &copy).await;
        let expected: Vec<i64> = (0..10_000).collect();
        // With and without the slash, by glob, and one by one.
        for path in [format!("{format}/"), format.to_owned(), format!("{format}/part-*.{format}")] {
            assert_eq!(ids(&context, &format!("read_{format}('s3://data/{path}')")).await, expected, "{path}");
        }
        assert_eq!(ids(&context, &format!("'s3://data/{format}/'")).await, expected);
    }
    let one = "COPY (SELECT id FROM range(100)) TO 's3://data/one.parquet'";
    run(&context, one).await;
    assert_eq!(ids(&context, "'s3://data/one.parquet'").await.len(), 100);
    let compressed = "COPY (SELECT id FROM range(100)) TO 's3://data/z/' STORED AS CSV OPTIONS (compression 'gzip')";
    run(&context, compressed).await;
    assert_eq!(ids(&context, "'s3://data/z/'").await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_modes_do_in_a_store_what_they_do_on_a_disk() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let copy = |rows: &str, mode: &str| {
        format!("COPY (SELECT id, id % 3 AS k FROM {rows}) TO 's3://data/t/' STORED AS PARQUET OPTIONS (mode '{mode}')")
    };
    run(&context, &copy("range(10, override_num_blocks => 3)", "error")).await;
    let error = sql_error(&context, &copy("range(10)", "error")).await;
    assert!(error.contains("already exists (3 files) and the mode is error"), "{error}");
    run(&context, &copy("range(5)", "ignore")).await;
    assert_eq!(ids(&context, "'s3://data/t/'").await.len(), 10);
    run(&context, &copy("range(5, override_num_blocks => 2)", "append")).await;
    let appended: Vec<i64> = (0..10).chain(0..5).collect();
    assert_eq!(ids(&context, "'s3://data/t/'").await, appended, "what is appended comes behind");
    run(&context, &copy("range(4, override_num_blocks => 1)", "overwrite")).await;
    assert_eq!(ids(&context, "'s3://data/t/'").await, [0, 1, 2, 3]);
    assert_eq!(objects(&server).len(), 1);

    let partitioned =
        "COPY (SELECT id, id % 3 AS k FROM range(99)) TO 's3://data/p/' STORED AS PARQUET PARTITIONED BY (k)";
    run(&context, partitioned).await;
    assert_eq!(rows(&context, "SELECT k, count(*), sum(id) FROM 's3://data/p/' GROUP BY k ORDER BY k").await.len(), 3);
    assert_eq!(objects(&server).iter().filter(|name| name.starts_with("p/k=1/")).count(), 1);
}

/// Google's client speaks the XML API of its store, which has the shape of S3's.
#[tokio::test(flavor = "multi_thread")]
async fn rows_go_to_google_and_come_back() {
    let server = Server::start("data", true);
    let context = context();
    let account = format!(
        r#"{{"gcs_base_url": "{}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#,
        server.endpoint
    );
    let secret =
        format!("CREATE SECRET g (TYPE gcs, SCOPE 'gs://data/', SERVICE_ACCOUNT_KEY '{account}', ALLOW_HTTP 'true')");
    run(&context, &secret).await;
    let copy = |rows: &str, mode: &str| {
        format!(
            "COPY (SELECT id, id % 3 AS k, md5(CAST(id AS VARCHAR)) || md5(CAST(-id AS VARCHAR)) AS t FROM {rows}) TO \
             'gs://data/t/' STORED AS PARQUET PARTITIONED BY (k) OPTIONS (mode '{mode}')"
        )
    };
    run(&context, &copy("range(60000, override_num_blocks => 3)", "error")).await;
    let counted = "SELECT k, count(*), sum(id), count(DISTINCT t) FROM 'gs://data/t/' GROUP BY k ORDER BY k";
    let expected = ["0|20000|599970000|20000", "1|20000|599990000|20000", "2|20000|600010000|20000"];
    assert_eq!(rows(&context, counted).await, expected);
    run(&context, &copy("range(3)", "append")).await;
    assert_eq!(rows(&context, "SELECT count(*) FROM 'gs://data/t/'").await, ["60003"]);
    run(&context, &copy("range(30)", "overwrite")).await;
    assert_eq!(rows(&context, "SELECT count(*) FROM 'gs://data/t/'").await, ["30"]);
    assert_eq!(objects(&server).len(), 3);
    let error = sql_error(&context, &copy("(SELECT 10 / (5 - id) AS id FROM range(10)) r", "append")).await;
    assert!(error.contains("Divide by zero"), "{error}");
    assert_eq!(rows(&context, "SELECT count(*) FROM 'gs://data/t/'").await, ["30"]);
    // In several parts.
    let large = "COPY (SELECT id, md5(CAST(id AS VARCHAR)) || md5(CAST(-id AS VARCHAR)) AS t FROM range(600000, \
                 override_num_blocks => 1)) TO 'gs://data/u/' STORED AS PARQUET OPTIONS (mode 'append', write_id 'once')";
    server.take_requests();
    run(&context, large).await;
    assert!(server.take_requests().iter().any(|request| request.contains("partNumber=2")));
    // Which does nothing when it is run again.
    run(&context, large).await;
    let counted = rows(&context, "SELECT count(DISTINCT t), sum(id) FROM 'gs://data/u/'").await;
    assert_eq!(counted, ["600000|179999700000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_to_be_seen_of_a_write_that_fails() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let failing = "COPY (SELECT 10 / (900 - id) AS v FROM range(1000, override_num_blocks => 10)) TO 's3://data/t/' \
                   STORED AS PARQUET";
    let error = sql_error(&context, failing).await;
    assert!(error.contains("Divide by zero"), "{error}");
    assert_eq!(objects(&server), Vec::<String>::new());
    let requests = server.take_requests();
    let count = |method: &str, part: &str| {
        requests.iter().filter(|request| request.starts_with(method) && request.contains(part)).count()
    };
    // Of those that each of two threads was about to begin nobody knows.
    assert!(count("POST", "uploads") <= count("DELETE", "uploadId") + 2, "uploads are given up: {requests:?}");
    assert_eq!(count("POST", "uploadId"), 0, "none is completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_made_good_and_counted() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let copy = |rows: usize| {
        format!(
            "COPY (SELECT id FROM range({rows}, override_num_blocks => 20)) TO 's3://data/t{rows}/' STORED AS PARQUET"
        )
    };
    run(&context, &copy(2000)).await;
    // Every seventh request in another way. What a POST does twice is another upload.
    server.fail(|number, request| match (number % 7, number / 7 % 3) {
        (3, 0) => Some(Fault::Status(500)),
        (3, 1) => Some(Fault::Status(503)),
        (3, 2) if request.method() == "GET" => Some(Fault::Reset),
        _ => None,
    });
    assert_eq!(ids(&context, "'s3://data/t2000/'").await, (0..2000).collect::<Vec<_>>());
    run(&context, &copy(3000)).await;
    assert_eq!(ids(&context, "'s3://data/t3000/'").await, (0..3000).collect::<Vec<_>>());
    let told = rows(&context, "SELECT store, secret, retries FROM blockyard.stores").await;
    assert!(server.served_faults() > 10);
    assert_eq!(told, [format!("s3://data|here|{}", server.served_faults())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told_with_the_address() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    run(&context, "SET blockyard.store_max_retries = 1").await;
    for (sql, expected) in [
        ("SELECT * FROM read_parquet('s3://data/no/')", "no .parquet files in 's3://data/no/'"),
        ("SELECT * FROM read_parquet('s3://data/no.parquet')", "s3://data/no.parquet"),
        (
            "SELECT * FROM read_parquet('s4://data/no.parquet')",
            "no store is known for 's4://data/': addresses may begin with",
        ),
        ("SELECT * FROM read_csv('gs://data/no.csv')", "gs://data"),
    ] {
        let error = sql_error(&context, sql).await;
        assert!(error.contains(expected), "{sql}: {error}");
    }
    // Another key.
    run(&context, &secret(&server).replace(SECRET, "another")).await;
    let error = sql_error(&context, "SELECT * FROM read_parquet('s3://data/no.parquet')").await;
    assert!(error.contains("403") && error.contains("s3://data/no.parquet") && !error.contains("another"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_told_without_their_values() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let told = rows(&context, "SELECT * FROM blockyard.secrets").await;
    assert_eq!(told, ["here|s3|s3://data|endpoint, region, access_key_id, secret_access_key"]);
    let error = sql_error(&context, &secret(&server).replace("OR REPLACE ", "")).await;
    assert!(error.contains("secret 'here' exists already") && !error.contains(SECRET), "{error}");
    run(&context, "DROP SECRET here").await;
    assert!(sql_error(&context, "DROP SECRET here").await.contains("unknown secret 'here'"));
    run(&context, "DROP SECRET IF EXISTS here").await;
    assert_eq!(rows(&context, "SELECT * FROM blockyard.secrets").await, Vec::<String>::new());
    for (sql, expected) in [
        ("EXPLAIN CREATE SECRET a (TYPE s3, KEY_ID 'hidden')", "EXPLAIN CREATE SECRET"),
        ("CREATE SECRET a (TYPE s4)", "Accepted: s3, gcs"),
        ("CREATE SECRET a (TYPE s3, ENDPIONT 'x')", "Did you mean 'endpoint'?"),
        ("CREATE SECRET a (TYPE s3, SCOPE 'gs://b')", "does not begin with s3://"),
        ("CREATE SECRET a (TYPE s3, KEY_ID 'a', KEY_ID 'b')", "'key_id' twice"),
    ] {
        let error = sql_error(&context, sql).await;
        assert!(error.contains(expected) && !error.contains("hidden"), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_are_reached_as_the_environment_says_or_rust() {
    let server = Server::start("data", false);
    let variables = [
        ("AWS_ENDPOINT", server.endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
        ("HOME", "/"),
    ];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let blockyard = Blockyard { environment, ..Blockyard::default() };
    assert!(!format!("{blockyard:?}").contains(SECRET));
    let context = DataContext::with_config(blockyard, SessionConfig::new().with_target_partitions(2)).unwrap();
    context.range(100).unwrap().write_parquet("s3://data/t/").await.unwrap();
    assert_eq!(context.read_parquet("s3://data/t/").await.unwrap().count().await.unwrap(), 100);

    let plain = crate::fixtures::context();
    let options = variables[..4].iter().map(|(name, value)| (name.to_lowercase(), (*value).to_owned())).collect();
    let options = StoreOptions { kind: "s3".to_owned(), options, ..StoreOptions::default() };
    plain.create_secret("here", options).unwrap();
    assert_eq!(plain.read_parquet("s3://data/t/").await.unwrap().count().await.unwrap(), 100);
    plain.drop_secret("here").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_of_web_servers() {
    let server = Server::start("data", true);
    fs::write(server.path("data").join("a.csv"), "id,name\n1,one\n2,two\n").unwrap();
    let context = context();
    let sql = format!("SELECT * FROM '{}/data/a.csv'", server.endpoint);
    assert_eq!(rows(&context, &sql).await, ["1|one", "2|two"]);
    let missing = format!("SELECT * FROM read_csv('{}/data/b.csv')", server.endpoint);
    let error = sql_error(&context, &missing).await;
    assert!(error.contains("/data/b.csv") && error.contains("404"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn external_tables_are_in_stores_too() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    run(&context, "COPY (SELECT id FROM range(10)) TO 's3://data/t/' STORED AS PARQUET").await;
    run(&context, "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://data/t/'").await;
    run(&context, "INSERT INTO t SELECT id + 10 FROM range(5)").await;
    assert_eq!(ids(&context, "t").await.len(), 15);
    assert_eq!(rows(&context, "SELECT max(id) FROM t").await, ["14"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn external_tables_have_directories_in_stores_too() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let create = "CREATE EXTERNAL TABLE t (id BIGINT, day DATE) STORED AS PARQUET PARTITIONED BY (day) LOCATION \
                  's3://data/days'";
    run(&context, create).await;
    assert_eq!(rows(&context, "SELECT count(*) FROM t").await, ["0"]);
    run(&context, "INSERT INTO t VALUES (1, '2026-01-01'), (2, NULL), (3, '2026-01-02')").await;
    assert_eq!(rows(&context, "SELECT id FROM t WHERE day IS NULL").await, ["2"]);
    assert_eq!(rows(&context, "SELECT id FROM t WHERE day > DATE '2026-01-01'").await, ["3"]);
    assert_eq!(rows(&context, "SELECT count(*) FROM t").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_of_objects_come_in_pieces() {
    let server = Server::start("data", true);
    let objects: Vec<String> = (0..60_000)
        .map(|id| format!("{{\n  \"id\": {id},\n  \"text\": \"a ] , }} \\\" {id}\",\n  \"list\": [1, 2]\n}}"))
        .collect();
    fs::write(server.path("data").join("a.json"), format!("[{}]", objects.join(",\n"))).unwrap();
    fs::write(server.path("data").join("cut.json"), format!("[{}", objects.join(","))).unwrap();
    let context = context();
    let read = |name: &str| {
        format!("SELECT count(*), sum(id), sum(list[2]) FROM read_json('{}/data/{name}')", server.endpoint)
    };
    assert_eq!(rows(&context, &read("a.json")).await, ["60000|1799970000|120000"]);
    let error = sql_error(&context, &read("cut.json")).await;
    assert!(error.contains("closing bracket") && error.contains("cut.json"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_directories_open_no_other_files() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let copy = "COPY (SELECT id, 2015 + id % 10 AS year FROM range(1000)) TO 's3://data/t/' STORED AS PARQUET \
                PARTITIONED BY (year)";
    run(&context, copy).await;
    let opened = |server: &Server| {
        let requests = server.take_requests();
        let files = requests.iter().filter(|request| request.starts_with("GET /data/t/"));
        files
            .map(|request| request.split("year%3D").nth(1).unwrap()[..4].to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    // The first file tells the columns.
    let view = "CREATE VIEW t AS SELECT * FROM read_parquet('s3://data/t/')";
    run(&context, view).await;
    opened(&server);
    for (condition, rows_of, years) in [
        ("year = 2019", 100, vec!["2019"]),
        ("year IN (2017, 2018) AND id % 2 = 0", 100, vec!["2017", "2018"]),
        ("year > 2022 OR year < 2016", 300, vec!["2015", "2023", "2024"]),
        ("year = 1999", 0, vec![]),
        ("year IS NULL", 0, vec![]),
    ] {
        let found = rows(&context, &format!("SELECT count(*) FROM t WHERE {condition}")).await;
        assert_eq!(found, [rows_of.to_string()], "{condition}");
        // Footers that are known are not read again.
        let opened = opened(&server);
        assert!(opened.iter().all(|year| years.contains(&year.as_str())), "{condition}: {opened:?}");
    }
    let plan = rows(&context, "EXPLAIN SELECT id FROM t WHERE year = 2019").await.join(" ");
    assert!(plan.contains("skipped directories=9"), "{plan}");
    let nowhere = rows(&context, "SELECT sum(id), count(*) FROM t WHERE year = 1999").await;
    assert_eq!(nowhere, ["NULL|0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn written_files_are_told_with_their_addresses() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let ds = context.range_in_blocks(1000, 3).unwrap();
    assert_eq!(ds.write_parquet("s3://data/t").await.unwrap(), 1000);
    let written = ds.written_files();
    assert_eq!(written.iter().map(|file| file.rows).collect::<Vec<_>>(), [333, 333, 334]);
    for (file, name) in written.iter().zip(objects(&server)) {
        assert_eq!(file.path, format!("s3://data/{name}"));
        assert_eq!(file.bytes, fs::metadata(server.path("data").join(name)).unwrap().len());
    }
    assert_eq!(rows(&context, "SELECT sum(rows) FROM blockyard.writes").await, ["1000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_called_and_placed_as_rust_says() {
    let server = Server::start("data", false);
    let context = session(&server).await;
    let ds = context.sql("SELECT id, id % 2 AS k FROM range(100, override_num_blocks => 1)").await.unwrap();
    let options = |file_name: &str| WriteOptions {
        partition_by: vec!["k".to_owned()],
        file_name: Some(file_name.to_owned()),
        max_bytes_per_file: Some(1 << 20),
        write_id: Some("night".to_owned()),
        ..WriteOptions::default()
    };
    for _ in 0..2 {
        ds.write_csv_with("s3://data/t", options("{write_id}-{number:02}")).await.unwrap();
    }
    let written = objects(&server);
    let of = |k: usize| written.iter().filter(|name| name.starts_with(&format!("t/k={k}/night-"))).count();
    assert!(of(0) > 0 && of(1) > 0, "{written:?}");
    assert_eq!(rows(&context, "SELECT count(*), sum(k) FROM 's3://data/t/'").await, ["100|50"]);
    let error = ds.write_csv_with("s3://data/u", options("{number}")).await.unwrap_err().to_string();
    assert!(error.contains("has {write_id} in it"), "{error}");
}
