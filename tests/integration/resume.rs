use blockyard::prelude::*;
use blockyard::{ResumeToken, Resumes};
use futures::StreamExt;

use crate::fixtures::{context_with, lines, mib};

/// Rows of each batch that is still to come, and the token behind each of the batches.
async fn read(
    context: &DataContext,
    sql: &str,
    batch_size: usize,
    resume: Option<ResumeToken>,
) -> (Vec<Vec<String>>, Vec<ResumeToken>) {
    let dataset = context.sql(sql).await.unwrap();
    let options = IterOptions { batch_size: Some(batch_size), epoch: Some(3), resume, ..IterOptions::default() };
    let mut batches = dataset.iter_batches(options).await.unwrap();
    let (mut read, mut tokens) = (Vec::new(), vec![batches.token().unwrap()]);
    while let Some(batch) = batches.next().await {
        read.push(lines(&[batch.unwrap()]));
        tokens.push(batches.token().unwrap());
    }
    (read, tokens)
}

/// A session with files: 100,000 rows in 7 files, and one with the same columns and fewer rows.
async fn session(directory: &str, threads: usize, memory: usize) -> DataContext {
    let context = context_with(threads, |options| options.memory_limit = mib(memory));
    for (name, from, to, blocks) in [("t", 0, 100_000, 7), ("u", 500_000, 560_000, 5)] {
        let path = format!("{directory}/{name}");
        if !std::path::Path::new(&path).exists() {
            let rows = format!(
                "SELECT id + {from} AS id, id % 13 AS k, repeat('x', CAST(id % 17 AS INT)) AS x FROM range({})",
                to - from
            );
            let dataset = context.sql(&rows).await.unwrap().repartition(blocks).unwrap();
            dataset.write_parquet(&path).await.unwrap();
        }
        let read = format!("CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')");
        context.sql(&read).await.unwrap().take_all().await.unwrap();
    }
    context
}

const PLANS: &[(&str, &str)] = &[
    ("seeks", "SELECT * FROM t"),
    ("seeks", "SELECT id * 2 AS twice, x FROM t WHERE k > 3"),
    ("seeks", "SELECT * FROM map_batches(t, 'identity')"),
    ("seeks", "SELECT * FROM map_batches(t, 'identity', concurrency => 2) WHERE k < 9"),
    ("seeks", "SELECT * FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (4)"),
    ("seeks", "SELECT * FROM t WHERE k > 2 LIMIT 43210"),
    ("seeks", "SELECT * FROM t UNION ALL SELECT * FROM u"),
    ("seeks", "SELECT * FROM mix(t, u)"),
    (
        "seeks",
        "SELECT * FROM mix((SELECT * FROM t WHERE k > 5), u, weights => [3, 1], stopping_condition => 'shortest')",
    ),
    ("seeks", "SELECT * FROM zip((SELECT id FROM t WHERE id % 2 = 0), (SELECT x FROM t WHERE id % 2 = 1))"),
    ("seeks", "SELECT * FROM local_shuffle(t, 500, seed => 5)"),
    ("seeks", "SELECT * FROM split(t, 1, parts => 2)"),
    ("seeks", "SELECT * FROM streaming_split((SELECT * FROM t WHERE k > 1), 3, 1, global_batch_size => 1000)"),
    ("seeks", "SELECT * FROM train_test_split(local_shuffle(t, 900, seed => 3), 'train', 0.3)"),
    ("seeks", "SELECT * FROM local_shuffle((SELECT * FROM t WHERE k <> 4), 7000, seed => 5) WHERE k < 12"),
    ("seeks", "SELECT * FROM local_shuffle((SELECT * FROM mix(t, u) UNION ALL SELECT * FROM u), 2000, seed => 5)"),
    ("seeks", "SELECT * FROM local_shuffle(randomize_block_order(t, seed => 8), 900, seed => 5)"),
    ("seeks", "SELECT * FROM windows(repartition(t, target_bytes_per_block => '4KiB'), blocks_per_window => 30)"),
    ("replays", "SELECT * FROM random_shuffle(t, seed => 6)"),
    ("replays", "SELECT * FROM t ORDER BY k, id DESC"),
    ("replays", "SELECT * FROM t ORDER BY k LIMIT 5000"),
    ("replays", "SELECT * FROM local_shuffle(random_shuffle(t, seed => 6), 500, seed => 1)"),
    ("replays", "SELECT * FROM map_batches(repartition(t, 3), 'identity')"),
    ("replays", "SELECT * FROM repartition(t, num_blocks => 3, keys => 'k')"),
    (
        "seeks",
        "SELECT * FROM repeat(rewindow(windows(t, rows_per_window => 30000), rows_per_window => 40000), times => 2)",
    ),
    (
        "seeks",
        "SELECT * FROM random_shuffle_each_window(windows((SELECT * FROM t ORDER BY k, id), bytes_per_window => 300000), \
         seed => 1)",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_iterator_goes_on_where_another_one_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let first = session(path, 2, 512).await;
    let others = [session(path, 1, 64).await, session(path, 4, 48).await, session(path, 2, 512).await];
    for (number, (way, sql)) in PLANS.iter().enumerate() {
        let resumes = first.sql(sql).await.unwrap().resumes().await.unwrap();
        assert!(resumes.to_string().starts_with(way), "{sql} {resumes}");
        let (batches, tokens) = read(&first, sql, 1000, None).await;
        let cuts = [0, 1, batches.len() / 3, batches.len() * 9 / 10, batches.len()];
        for (cut, other) in cuts.into_iter().zip(others.iter().cycle().skip(number)) {
            let token = tokens[cut].to_string();
            assert!(token.len() <= 512, "{token}");
            let (rest, after) = read(other, sql, 1000, Some(token.parse().unwrap())).await;
            assert!(rest == batches[cut..], "{sql} from batch {cut} of {}, {token}", batches.len());
            assert_eq!(after.last().unwrap().rows(), tokens.last().unwrap().rows());
            // Tokens of a resumed iterator hold as well.
            let again = after[rest.len() / 2].clone();
            let (rest, _) = read(&first, sql, 1000, Some(again)).await;
            assert!(rest == batches[batches.len() - rest.len()..], "{sql} from batch {cut} twice");
        }
    }
}

/// Plans with so many rows that operators cut them into several tasks of their own.
const LARGE_PLANS: &[&str] = &[
    "SELECT * FROM rewindow(windows(range(700000), rows_per_window => 250000), rows_per_window => 200000)",
    "SELECT * FROM (SELECT * FROM range(900000) LIMIT 500000) UNION ALL (SELECT * FROM range(900000) LIMIT 300000)",
    "SELECT * FROM local_shuffle(range(700000), 500, seed => 5)",
    "SELECT * FROM zip(range(600000), (SELECT id AS b FROM range(1000000) WHERE id < 600000))",
    "SELECT * FROM mix(range(600000), range(3000), weights => [1, 20])",
    "SELECT * FROM mix(range(600000), range(400000), weights => [300, 1])",
    "SELECT * FROM (SELECT * FROM range(900000) LIMIT 650000)",
    "SELECT * FROM local_shuffle(zip(range(600000), (SELECT id AS b FROM range(600000))), 900, seed => 1)",
    "SELECT * FROM random_shuffle(range(700000), seed => 3)",
    "SELECT * FROM local_shuffle((SELECT id * 2 AS id FROM random_shuffle(range(600000), seed => 3) WHERE id % 3 <> 0), \
     700, seed => 1)",
    "SELECT * FROM random_shuffle(random_shuffle(range(600000), seed => 3), seed => 4) UNION ALL \
     (SELECT * FROM random_shuffle(range(9000), seed => 5))",
    "SELECT * FROM repartition((SELECT id, id % 97 AS k FROM range(600000)), num_blocks => 9, keys => 'k')",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_iterator_that_was_resumed_is_resumed_again() {
    let context = context_with(2, |options| options.memory_limit = mib(512));
    for sql in LARGE_PLANS {
        let (batches, tokens) = read(&context, sql, 50_000, None).await;
        // Far behind the first of its tasks, and then right behind the first batches of the second iterator.
        let first = batches.len() - 5;
        let (rest, after) = read(&context, sql, 50_000, Some(tokens[first].clone())).await;
        assert!(rest == batches[first..], "{sql}");
        for second in 0..=4 {
            let token = after[second].to_string();
            let (rest, _) = read(&context, sql, 50_000, Some(token.parse().unwrap())).await;
            assert!(rest == batches[first + second..], "{sql}, {second} batches behind the first cut, {token}");
        }
    }
}

/// The second iterator begins behind the last row of a task, which has no more rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_iterator_that_began_at_the_end_of_a_task_is_resumed_again() {
    let context = context_with(2, |options| options.memory_limit = mib(512));
    for (sql, rows) in LARGE_PLANS.iter().map(|sql| (*sql, 1 << 18)).chain([
        (LARGE_PLANS[0], 200_000),
        (LARGE_PLANS[1], 500_000),
        ("SELECT * FROM repeat(windows(range(300000), rows_per_window => 100000), times => 2)", 100_000),
        ("SELECT * FROM range(100000) UNION ALL SELECT * FROM range(200000)", 100_000),
    ]) {
        let (batches, tokens) = read(&context, sql, rows / 4, None).await;
        for first in [4, 8].into_iter().filter(|first| *first + 1 < batches.len()) {
            let (rest, after) = read(&context, sql, rows / 4, Some(tokens[first].clone())).await;
            assert!(rest == batches[first..], "{sql} {first}");
            let (rest, _) = read(&context, sql, rows / 4, Some(after[1].clone())).await;
            assert!(rest == batches[first + 1..], "{sql} {first} and one more, {}", after[1]);
        }
    }
}

#[tokio::test]
async fn plans_without_an_order_have_no_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let context = session(directory.path().to_str().unwrap(), 2, 512).await;
    for (sql, said) in [
        ("SELECT k, count(*) FROM t GROUP BY k", "groups have no order"),
        ("SELECT t.id FROM t JOIN u ON t.k = u.k LIMIT 10", "the rows of a join have no order"),
        ("SELECT id, random() AS r FROM t", "gives something else each time"),
    ] {
        let dataset = context.sql(sql).await.unwrap();
        let resumes = dataset.resumes().await.unwrap();
        assert!(matches!(resumes, Resumes::DoesNot { .. }) && resumes.to_string().contains(said), "{sql}: {resumes}");
        let batches = dataset.iter_batches(IterOptions::default()).await.unwrap();
        let error = batches.token().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    context.configure(|options| options.preserve_order = false).unwrap();
    let resumes = context.sql("SELECT * FROM t").await.unwrap().resumes().await.unwrap().to_string();
    assert!(resumes.contains("blockyard.preserve_order = false"), "{resumes}");
}

#[tokio::test]
async fn tokens_of_something_else_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = session(path, 2, 512).await;
    let options = |resume: &ResumeToken| IterOptions { resume: Some(resume.clone()), ..IterOptions::default() };
    let dataset = context.sql("SELECT * FROM t").await.unwrap();
    let mut batches = dataset.iter_batches(IterOptions::default()).await.unwrap();
    batches.next().await.unwrap().unwrap();
    let token = batches.token().unwrap();
    assert_eq!((token.rows(), token.epoch()), (256, 0));
    assert_eq!(token.to_string().parse::<ResumeToken>().unwrap(), token);

    let other = context.sql("SELECT id FROM t").await.unwrap();
    let error = other.iter_batches(options(&token)).await.unwrap_err().to_string();
    assert!(error.contains("the resume token is of another plan"), "{error}");
    let error = IterOptions { epoch: Some(1), ..options(&token) };
    let error = dataset.iter_batches(error).await.unwrap_err().to_string();
    assert!(error.contains("the token is of epoch 0, and epoch 1 is asked for"), "{error}");
    for (text, said) in [
        ("", "this is not a resume token"),
        ("{}", "this is not a resume token"),
        ("{\"version\":2}", "the resume token has version 2, and this program reads version 1"),
    ] {
        let error = text.parse::<ResumeToken>().unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    let beyond = token.to_string().replace("\"s\":256", "\"s\":300000");
    let mut batches = dataset.iter_batches(options(&beyond.parse().unwrap())).await.unwrap();
    let error = batches.next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("the place is behind the last row"), "{error}");

    let more = context.sql("SELECT * FROM t LIMIT 5").await.unwrap();
    more.write_parquet_with(
        &format!("{path}/t"),
        WriteOptions { mode: Some(SaveMode::Append), ..WriteOptions::default() },
    )
    .await
    .unwrap();
    let dataset = context.sql("SELECT * FROM t").await.unwrap();
    let error = dataset.iter_batches(options(&token)).await.unwrap_err().to_string();
    assert!(error.contains("files have changed since the resume token was taken: 7 files with"), "{error}");
}

/// The ids that can be read of an Arrow stream, whole batches only.
fn ids_of(stream: &mut impl std::io::Read, batches: usize) -> Vec<i64> {
    let mut read = datafusion::arrow::ipc::reader::StreamReader::try_new(stream, None).unwrap();
    let whole = read.by_ref().take(batches).map_while(Result::ok);
    whole.flat_map(|batch| crate::fixtures::ints(&[batch], "id")).collect()
}

#[test]
fn the_tool_goes_on_where_a_killed_one_was() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("token");
    let sql = "SELECT * FROM local_shuffle(range(3000000), 1000, seed => 5)";
    let tool = |threads: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_blockyard"));
        command.args(["sql", sql, "--format", "arrow", "--batch-size", "1000", "--threads", threads, "--save-token"]);
        command.arg(&saved).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        command
    };
    let whole = tool("2").output().unwrap();
    let expected = ids_of(&mut whole.stdout.as_slice(), usize::MAX);
    assert_eq!(expected.len(), 3_000_000);
    let end: ResumeToken = std::fs::read_to_string(&saved).unwrap().parse().unwrap();
    assert_eq!(end.rows(), 3_000_000);

    let mut child = tool("1").spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let read = ids_of(&mut stdout, 40);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(read, expected[..40_000]);
    let token: ResumeToken = std::fs::read_to_string(&saved).unwrap().parse().unwrap();
    let rows = token.rows() as usize;
    assert!(rows < 3_000_000 && rows.is_multiple_of(1000), "{rows}");
    assert!(rows >= 39_000, "the token behind {rows} rows is older than that before the last batch that was read");

    let rest = tool("2").arg("--resume").arg(&saved).output().unwrap();
    assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
    assert_eq!(ids_of(&mut rest.stdout.as_slice(), usize::MAX), expected[rows..]);
    let of_another = std::process::Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["sql", "SELECT 1 AS id", "--resume"])
        .arg(&saved)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&of_another.stderr).into_owned();
    assert!(!of_another.status.success() && error.contains("the resume token is of another plan"), "{error}");
}

#[tokio::test]
async fn a_token_is_refused_where_other_rows_would_come() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = context_with(2, |_| ());
    for name in ["a", "b"] {
        context.range(10).unwrap().write_parquet(&format!("{path}/{name}")).await.unwrap();
    }
    for (then, now) in [
        ("SELECT * FROM range(2000)".to_owned(), "SELECT * FROM range(1000)".to_owned()),
        (
            format!("SELECT * FROM read_parquet(['{path}/a/', '{path}/b/'])"),
            format!("SELECT * FROM read_parquet(['{path}/b/', '{path}/a/'])"),
        ),
    ] {
        let (_, tokens) = read(&context, &then, 5, None).await;
        let options = IterOptions { resume: Some(tokens[1].clone()), epoch: Some(3), ..IterOptions::default() };
        let error = context.sql(&now).await.unwrap().iter_batches(options).await.unwrap_err().to_string();
        let said = ["what the dataset reads has changed", "the resume token is of another plan"];
        assert!(said.iter().any(|said| error.contains(said)), "{now}: {error}");
    }
    let sql = "SELECT * FROM repartition(range(1000), keys => 'id')";
    let error = context.sql(sql).await.unwrap().resumes().await.unwrap().to_string();
    assert!(error.contains("does not") && error.contains("say num_blocks"), "{error}");
}

/// What a shuffle has given is not kept when it goes on: it is read again, and left out as it is routed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shuffle_that_goes_on_keeps_what_is_left() {
    let context = context_with(2, |options| options.memory_limit = mib(512));
    for (sql, parts) in [
        ("SELECT * FROM random_shuffle(range(400000), seed => 3, num_blocks => 20)", 20),
        ("SELECT * FROM repartition(range(400000), num_blocks => 20, keys => 'id')", 20),
    ] {
        let (batches, tokens) = read(&context, sql, 20_000, None).await;
        let dataset = context.sql(sql).await.unwrap();
        let resume = Some(tokens[18].clone());
        let options = IterOptions { batch_size: Some(20_000), epoch: Some(3), resume, ..IterOptions::default() };
        let mut rest = dataset.iter_batches(options).await.unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = rest.next().await {
            rows.push(lines(&[batch.unwrap()]));
        }
        assert!(rows == batches[18..], "{sql}");
        // Of the twenty tasks those before the position are not there.
        let stats = dataset.stats();
        let reduce = stats.split("Stage ").find(|stage| stage.contains("Reduce")).unwrap();
        let tasks = reduce.split(": ").nth(1).unwrap();
        let given: usize = tasks.split('/').next().unwrap().parse().unwrap();
        assert!((1..=3).contains(&given) && given < parts, "{sql}: {stats}");
        assert_eq!(dataset.resumes().await.unwrap().to_string().split(':').next(), Some("replays"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sql_goes_on_at_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let (first, second) = (session(directory, 2, 512).await, session(directory, 3, 64).await);
    for (_, sql) in PLANS {
        let (batches, tokens) = read(&first, sql, 1000, None).await;
        let cut = batches.len() * 2 / 3;
        let resumed = format!("SELECT * FROM resume(({sql}), '{}')", tokens[cut]);
        let rows = second.sql(&resumed).await.unwrap().take_all().await;
        let rows = rows.unwrap_or_else(|e| panic!("{resumed}: {e}"));
        assert!(lines(&rows) == batches[cut..].concat(), "{resumed}");
        // As a table among others, of which not all columns are asked for.
        let counted = second.sql(&format!("SELECT count(*) FROM ({resumed}) WHERE 1 = 1")).await.unwrap();
        let left: usize = batches[cut..].iter().map(Vec::len).sum();
        assert_eq!(lines(&counted.take_all().await.unwrap()), [left.to_string()], "{resumed}");
    }
}

#[tokio::test]
async fn sql_does_not_go_on_at_a_token_of_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let context = session(directory, 2, 512).await;
    let (_, tokens) = read(&context, "SELECT * FROM t", 1000, None).await;
    let error = |sql: String| {
        let context = context.clone();
        async move {
            match context.sql(&sql).await {
                Ok(dataset) => dataset.take_all().await.unwrap_err().to_string(),
                Err(e) => e.to_string(),
            }
        }
    };
    let other = error(format!("SELECT * FROM resume((SELECT * FROM t WHERE k = 1), '{}')", tokens[3])).await;
    assert!(other.contains("of another plan"), "{other}");
    let text = error("SELECT * FROM resume(t, 'behind the third batch')".to_owned()).await;
    assert!(text.contains("this is not a resume token"), "{text}");
    let rows = "SELECT id + 7 AS id, id AS k, 'y' AS x FROM range(100)";
    context.sql(rows).await.unwrap().write_parquet(&format!("{directory}/t")).await.unwrap();
    let again = format!("CREATE OR REPLACE VIEW t AS SELECT * FROM read_parquet('{directory}/t')");
    context.sql(&again).await.unwrap().take_all().await.unwrap();
    let changed = error(format!("SELECT * FROM resume((SELECT * FROM t), '{}')", tokens[3])).await;
    assert!(changed.contains("files have changed"), "{changed}");
}

#[tokio::test]
async fn functions_that_give_something_else_each_time_have_no_tokens() {
    let context = context_with(2, |_| ());
    let options = MapOptions { deterministic: false, ..MapOptions::default() };
    let mapped = context.range(100).unwrap().map_batches_with("identity", options).unwrap();
    let sql = mapped.to_sql().unwrap();
    assert!(sql.contains("deterministic => false"), "{sql}");
    for dataset in [mapped, context.sql(&sql).await.unwrap()] {
        let resumes = dataset.resumes().await.unwrap();
        let Resumes::DoesNot { operator, remedy } = resumes else { panic!("{resumes}") };
        assert!(
            operator.contains("MapBatches(identity)") && remedy.contains("not deterministic"),
            "{operator} {remedy}"
        );
        let batches = dataset.iter_batches(IterOptions::default()).await.unwrap();
        assert!(batches.token().unwrap_err().to_string().contains("not deterministic"));
    }
}
