use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blockyard::{OnLost, SplitClient, SplitClientOptions, SplitIterator, SplitOptions, SplitServer, WindowSize};

use crate::fixtures::{context, ints};

fn consumer(consumer: usize, server: &SplitServer) -> SplitClientOptions {
    SplitClientOptions { consumer, key: server.key().map(str::to_owned), ..SplitClientOptions::default() }
}

/// The rows of the epochs that a client reads.
async fn epochs(client: &mut SplitClient, wanted: usize) -> Vec<(u64, Vec<i64>)> {
    let mut epochs = Vec::new();
    while epochs.len() < wanted
        && let Some(epoch) = client.next_epoch().await.unwrap()
    {
        let mut rows = Vec::new();
        while let Some(batch) = client.next_batch().await.unwrap() {
            rows.extend(ints(&[batch], "id"));
        }
        epochs.push((epoch, rows));
    }
    epochs
}

/// Where a test listens.
fn addresses(directory: &tempfile::TempDir) -> [String; 2] {
    [format!("unix:{}", directory.path().join("split.sock").display()), "tcp:127.0.0.1:0".to_owned()]
}

#[tokio::test]
async fn clients_get_what_iterators_get() {
    let directory = tempfile::tempdir().unwrap();
    for address in addresses(&directory) {
        let dataset = context().range_in_blocks(1000, 7).unwrap().local_shuffle(50, 3).unwrap();
        let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
        let splits = dataset.streaming_split(3, options.clone()).unwrap();
        let server = SplitServer::bind(&address, splits).await.unwrap();
        let mut clients = Vec::new();
        for index in 0..3 {
            clients.push(SplitClient::connect(&server.address(), consumer(index, &server)).await.unwrap());
        }
        assert_eq!(clients[0].consumers(), 3);
        let dealt = futures::future::join_all(clients.iter_mut().map(|client| epochs(client, 2))).await;
        let mut here = dataset.streaming_split(3, options).unwrap();
        for epoch in 0..2 {
            let entered = futures::future::join_all(here.iter_mut().map(SplitIterator::next_epoch)).await;
            assert!(entered.into_iter().all(|entered| entered.unwrap() == Some(epoch)));
            for (index, iterator) in here.iter_mut().enumerate() {
                let mut rows = Vec::new();
                while let Some(batch) = iterator.next_batch().await.unwrap() {
                    rows.extend(ints(&[batch], "id"));
                }
                assert_eq!(dealt[index][epoch as usize], (epoch, rows), "consumer {index}");
            }
        }
        drop(clients);
        server.finished().await.unwrap();
    }
    assert!(crate::fixtures::entries(directory.path()).is_empty(), "the socket is removed");
}

#[tokio::test]
async fn windows_of_a_pipeline_are_served_until_there_are_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let windows = context().range_in_blocks(20, 10).unwrap().window(WindowSize::Blocks(5)).unwrap();
    let server = SplitServer::bind(&address, windows.split(2, true).unwrap()).await.unwrap();
    let mut clients = Vec::new();
    for index in 0..2 {
        clients.push(SplitClient::connect(&address, consumer(index, &server)).await.unwrap());
    }
    let dealt = futures::future::join_all(clients.iter_mut().map(|client| epochs(client, usize::MAX))).await;
    assert_eq!(dealt[0], [(0, (0..5).collect::<Vec<_>>()), (1, (10..15).collect())]);
    assert_eq!(dealt[1], [(0, (5..10).collect::<Vec<_>>()), (1, (15..20).collect())]);
}

#[tokio::test]
async fn those_who_may_not_connect_are_told_why() {
    let directory = tempfile::tempdir().unwrap();
    let splits = || context().range(100).unwrap().streaming_split(2, SplitOptions::default()).unwrap();
    let [unix, tcp] = addresses(&directory);
    let server = SplitServer::bind(&tcp, splits()).await.unwrap();
    let error = async |options: SplitClientOptions| {
        SplitClient::connect(&server.address(), options).await.unwrap_err().to_string()
    };
    assert!(error(SplitClientOptions::default()).await.contains("the key is not that of the server"));
    let wrong = SplitClientOptions { key: Some("0".into()), ..consumer(0, &server) };
    assert!(error(wrong).await.contains("the key is not that of the server"));
    assert!(error(consumer(2, &server)).await.contains("2 consumers, 0 to 1, and none with number 2"));
    let first = SplitClient::connect(&server.address(), consumer(0, &server)).await.unwrap();
    assert!(error(consumer(0, &server)).await.contains("consumer 0 of the split is here already"));
    let status = SplitClient::status(&server.address(), server.key().map(str::to_owned)).await.unwrap();
    assert!(status.contains(r#""state":"works""#) && status.contains(r#""state":"not connected""#), "{status}");
    drop(first);

    let server = SplitServer::bind(&unix, splits()).await.unwrap();
    let bound = SplitServer::bind(&unix, splits()).await.unwrap_err().to_string();
    assert!(bound.contains("there is something already"), "{bound}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(directory.path().join("split.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    drop(server);
    let gone = SplitClient::connect(&unix, SplitClientOptions::default()).await.unwrap_err().to_string();
    assert!(gone.contains("cannot connect to unix:"), "{gone}");
    let error = SplitServer::bind("tcp:0.0.0.0:0", splits()).await.unwrap_err().to_string();
    assert!(error.contains("on this machine alone"), "{error}");
}

#[tokio::test]
async fn a_client_that_comes_back_goes_on_at_its_first_batch_that_was_not_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let dataset = context().range_in_blocks(300, 4).unwrap();
    let on_lost = OnLost::Wait(Duration::from_secs(600));
    let options = SplitOptions { batch_size: Some(10), on_lost, ..SplitOptions::default() };
    let server = SplitServer::bind(&address, dataset.streaming_split(2, options).unwrap()).await.unwrap();
    let mut clients = Vec::new();
    for index in 0..2 {
        clients.push(SplitClient::connect(&address, consumer(index, &server)).await.unwrap());
    }
    let (mut rows, mut left) = (Vec::new(), 0);
    let mut second = clients.pop().unwrap();
    let mut first = clients.pop().unwrap();
    let (one, other) = tokio::join!(first.next_epoch(), second.next_epoch());
    assert_eq!((one.unwrap(), other.unwrap()), (Some(0), Some(0)));
    while left < 30 {
        let batch = second.next_batch().await.unwrap().unwrap();
        // It leaves behind each batch, every second time with the batch not acknowledged.
        let ids = ints(&[batch], "id");
        left += 1;
        if left % 2 == 0 {
            second.ack().await.unwrap();
            rows.extend(ids);
        }
        if left == 30 {
            break;
        }
        drop(second);
        second = loop {
            // The server may not have seen yet that it left.
            match SplitClient::connect(&address, consumer(1, &server)).await {
                Ok(client) => break client,
                Err(e) => assert!(e.to_string().contains("is here already"), "{e}"),
            }
        };
        assert_eq!(second.next_epoch().await.unwrap(), Some(0));
    }
    while let Some(batch) = first.next_batch().await.unwrap() {
        rows.extend(ints(&[batch], "id"));
    }
    rows.sort_unstable();
    assert_eq!(rows, (0..300).collect::<Vec<_>>(), "what was acknowledged is each row once");
}

/// Who writes a file is done with no row before the file is there.
#[cfg(unix)]
#[test]
fn what_a_killed_process_was_to_write_to_a_file_comes_again() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("split.sock").display());
    let arguments = ["--splits", "1", "--listen", &address, "--batch-size", "100", "--on-lost", "600s"];
    let (mut server, _, _) = serve("SELECT id FROM range(300000)", &arguments);
    let file = directory.path().join("rows.csv");
    let consume = || tool(&["consume", &address, "-o", file.to_str().unwrap()]).spawn().unwrap();
    let mut first = consume();
    // Some of its rows are in the file that is not complete.
    let begun = || {
        std::fs::read_dir(directory.path()).unwrap().flatten().any(|entry| {
            entry.file_name().to_string_lossy().ends_with(".partial")
                && entry.metadata().is_ok_and(|file| file.len() > 0)
        })
    };
    while !begun() {
        assert!(first.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let second = loop {
        // The server may not have seen yet that it left.
        let ended = consume().wait_with_output().unwrap();
        match String::from_utf8_lossy(&ended.stderr).contains("is here already") {
            true => {}
            false => break ended,
        }
    };
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    let rows: Vec<i64> =
        std::fs::read_to_string(&file).unwrap().lines().skip(1).map(|id| id.parse().unwrap()).collect();
    // The first process may have come to its end.
    assert!(rows.into_iter().eq(0..300_000));
    assert!(server.wait().unwrap().success());
}

#[tokio::test]
async fn the_last_consumer_that_is_lost_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let options = SplitOptions {
        batch_size: Some(10),
        deal: blockyard::Deal::Demand,
        on_lost: OnLost::Redistribute,
        ..SplitOptions::default()
    };
    let splits = context().range(1000).unwrap().streaming_split(2, options).unwrap();
    let server = SplitServer::bind(&address, splits).await.unwrap();
    for index in [1, 0] {
        let mut client = SplitClient::connect(&address, consumer(index, &server)).await.unwrap();
        client.next_epoch().await.unwrap();
        assert!(client.next_batch().await.unwrap().is_some());
    }
    let lost = server.finished().await.unwrap_err().to_string();
    assert!(lost.contains("was lost in epoch 0"), "{lost}");
}

/// One that was told that there are no more epochs leaves before the others ask.
#[tokio::test]
async fn the_end_is_no_loss_of_those_who_have_left() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let pipeline = context().range(100).unwrap().repeat(Some(2)).unwrap();
    let splits = pipeline.streaming_split(2, SplitOptions { batch_size: Some(10), ..SplitOptions::default() }).unwrap();
    let server = SplitServer::bind(&address, splits).await.unwrap();
    let mut clients = Vec::new();
    for index in 0..2 {
        clients.push(SplitClient::connect(&address, consumer(index, &server)).await.unwrap());
    }
    let dealt = futures::future::join_all(clients.iter_mut().map(|client| epochs(client, 2))).await;
    assert_eq!(dealt.iter().flatten().map(|(_, rows)| rows.len()).sum::<usize>(), 200);
    for mut client in clients {
        assert_eq!(client.next_epoch().await.unwrap(), None);
        drop(client);
    }
    server.finished().await.unwrap();
}

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Serves a query in another process; where.
fn serve(query: &str, arguments: &[&str]) -> (Child, String, String) {
    let mut server = tool(&["serve", "-", "--threads", "2"]).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    server.stdin.take().unwrap().write_all(query.as_bytes()).unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    (server, said["address"].as_str().unwrap().to_owned(), said["key"].as_str().unwrap_or_default().to_owned())
}

/// Four processes, of which one is killed in the middle of an epoch: the others are told which, and where they can all
/// go on.
#[cfg(unix)]
#[test]
fn a_process_that_is_killed_is_named_to_the_others() {
    let query = "SELECT id, repeat('x', 1000) AS payload FROM range(40000, override_num_blocks => 8)";
    let arguments = [
        "--splits",
        "4",
        "--listen",
        "tcp:127.0.0.1:0",
        "--batch-size",
        "100",
        "--buffer",
        "1KiB",
        "--memory",
        "64MiB",
    ];
    let (server, address, key) = serve(query, &arguments);
    let consume =
        |index: &str| tool(&["consume", &address, "--key", &key, "--index", index, "--format", "csv"]).spawn().unwrap();
    // Nobody reads what they write, so they stop in the middle, after all have begun.
    let mut children = ["0", "1", "2", "3"].map(consume);
    let outputs = children.each_mut().map(|child| {
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 10]).unwrap();
        out
    });
    let [first, second, third, mut killed] = children;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let lost = "consumer 3 of the split was lost in epoch 0 behind ";
    for (child, mut out) in [first, second, third].into_iter().zip(outputs) {
        std::io::copy(&mut out, &mut std::io::sink()).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(lost) && error.contains("can go on there with this token: {"), "{error}");
    }
    let output = server.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(lost), "{error}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_tool_serves_and_consumes() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let query = "CREATE TABLE t AS SELECT id FROM range(1000); SELECT * FROM t WHERE id % 2 = 0";
    let (server, at, key) = serve(query, &["--splits", "2", "--listen", &address, "--global-batch-size", "64"]);
    assert_eq!((at.as_str(), key.as_str()), (address.as_str(), ""));
    let consume =
        |index: &str| tool(&["consume", &at, "--index", index, "--format", "csv", "--epochs", "2"]).spawn().unwrap();
    let (first, second) = (consume("0"), consume("1"));
    let rows = [first, second].map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().skip(1).map(|line| line.parse::<i64>().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!([rows[0].len(), rows[1].len()], [500, 500]);
    assert_eq!(rows[0][..33], (0..32).map(|k| 2 * k).chain([128]).collect::<Vec<_>>());
    assert_eq!(rows[1][0], 64);
    assert!(server.wait_with_output().unwrap().status.success());
    let (server, ..) = serve("SELECT id AS a FROM range(0)", &["--splits", "1", "--listen", &address]);
    let output = tool(&["consume", &at, "--format", "csv"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "a\n", "the columns of no rows");
    assert!(server.wait_with_output().unwrap().status.success());
    for (arguments, said) in [
        (vec!["serve", "-", "--splits", "2", "--listen", "nowhere"], "unix:PATH, tcp:HOST:PORT"),
        (vec!["serve", "-", "--splits", "0", "--listen", "tcp:127.0.0.1:0"], "0 is not in 1.."),
        (
            vec!["serve", "-", "--splits", "2", "--listen", "tcp:127.0.0.1:0", "--on-lost", "later"],
            "a time is a number",
        ),
        (vec!["serve", "-", "--splits", "2", "--listen", "tcp:127.0.0.1:0", "--barrier", "window"], "needs a pipeline"),
        (vec!["consume", &at], "cannot connect to"),
        (vec!["consume", "tcp:127.0.0.1:1", "--key-file", "nothing/here"], "cannot read the key of 'nothing/here'"),
    ] {
        let mut child = tool(&arguments).stdin(Stdio::piped()).spawn().unwrap();
        // It may have ended before.
        let _written = child.stdin.take().unwrap().write_all(b"SELECT id FROM range(10)");
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(said), "{error}");
    }
}

/// What `repeat` and `windows` of SQL make is served as the pipeline that it is, also with columns and filters above, and
/// a seed gives another order in each epoch where that is asked for.
#[test]
fn pipelines_of_sql_are_served_epoch_by_epoch_and_window_by_window() {
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let consumed = |query: &str, arguments: &[&str], epochs: &[&str]| {
        let (mut server, at, _) = serve(query, &[&["--splits", "1", "--listen", &address], arguments].concat());
        let output = tool(&[&["consume", &at, "--format", "csv"], epochs].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        server.kill().unwrap();
        server.wait().unwrap();
        let _gone = std::fs::remove_file(address.trim_start_matches("unix:"));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().skip(1).map(|line| line.parse::<i64>().unwrap()).collect::<Vec<_>>()
    };
    let repeated = "SELECT id FROM repeat(range(4), 3) WHERE id <> 2";
    assert_eq!(consumed(repeated, &[], &["--epochs", "1"]), [0, 1, 3], "an epoch is one time");
    assert_eq!(consumed(repeated, &[], &["--epochs", "9"]), [[0, 1, 3]; 3].concat(), "there are no more");
    let windows = "SELECT id FROM windows(range(6), rows_per_window => 2)";
    assert_eq!(consumed(windows, &["--barrier", "window"], &["--epochs", "2"]), [0, 1, 2, 3]);

    let shuffled = "SELECT id FROM random_shuffle(range(40), seed => 3, reseed_after_execution => true)";
    let both = consumed(shuffled, &[], &["--epochs", "2"]);
    let (first, second) = both.split_at(40);
    assert!(first != second, "another order in each epoch");
    assert_eq!(consumed(shuffled, &[], &["--epochs", "2"]), both, "and the same ones again");
}

/// A client that does not keep to the protocol is told so, and its consumer is lost at once.
#[cfg(unix)]
#[tokio::test]
async fn a_client_that_talks_nonsense_is_lost() {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
    let directory = tempfile::tempdir().unwrap();
    let [address, _] = addresses(&directory);
    let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
    let splits = context().range(100_000).unwrap().streaming_split(2, options).unwrap();
    let server = SplitServer::bind(&address, splits).await.unwrap();
    let path = address.strip_prefix("unix:").unwrap();
    // Before it has begun an epoch, another one may have its place.
    for (text, said) in [
        ("hello\n", "cannot be read"),
        ("{\"protocol\":2,\"consumer\":0}\n", "the server speaks version 1, and the client 2"),
        ("{\"protocol\":1}\n", "the first line says which consumer it is"),
        ("{\"protocol\":1,\"consumer\":0}\n{\"ack\":5}\n", "has acknowledged 5 batches, and was sent 0"),
        ("{\"protocol\":1,\"consumer\":0}\nnonsense\n", "cannot be read"),
    ] {
        let mut stream = tokio::io::BufReader::new(tokio::net::UnixStream::connect(path).await.unwrap());
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answers = String::new();
        while !answers.contains("error") {
            assert!(stream.read_line(&mut answers).await.unwrap() > 0, "{answers}");
        }
        assert!(answers.contains(said), "{text} {answers}");
    }
    let mut first = SplitClient::connect(&address, consumer(0, &server)).await.unwrap();
    let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
    first.next_epoch().await.unwrap();
    stream.write_all(b"{\"protocol\":1,\"consumer\":1}\n{\"next_epoch\":true}\n{\"ack\":1000}\n").await.unwrap();
    let error = loop {
        match first.next_batch().await {
            Ok(batch) => assert!(batch.is_some(), "the other is lost in the epoch"),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("consumer 1 of the split was lost in epoch 0"), "{error}");
    drop((first, stream));
    assert!(server.finished().await.is_err());
}
