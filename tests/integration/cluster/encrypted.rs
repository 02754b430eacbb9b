//! Executors at `tls:`.

use std::path::PathBuf;
use std::sync::Arc;

use blockyard::prelude::*;
use blockyard::{ExecutorOptions, ExecutorServer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixtures::{context_with, lines, rows, sql_error};

const TOKEN: &str = "what-only-executors-know";

fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/integration/cluster/certificates").join(name)
}

/// At a free port of `tls:`, with a certificate, and the key of this name.
fn options(certificate_name: &str, key: &str) -> ExecutorOptions {
    ExecutorOptions {
        listen: "tls:127.0.0.1:0".to_owned(),
        token: Some(TOKEN.to_owned()),
        tls_cert: Some(certificate(certificate_name)),
        tls_key: Some(certificate(key)),
        tls_ca: Some(certificate("authority.pem")),
        ..Default::default()
    }
}

async fn bound(options: ExecutorOptions) -> ExecutorServer {
    ExecutorServer::bind(&context_with(1, |_| {}), options).await.unwrap()
}

/// A session that has the executors at these addresses, and believes what this file has.
fn believing(authorities: &str, addresses: &[String], directory: &tempfile::TempDir) -> DataContext {
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    context_with(2, |options| {
        options.cluster = addresses.join(",");
        options.cluster_token_file = token.display().to_string();
        options.cluster_exchange_min_rows = 0;
        if !authorities.is_empty() {
            options.cluster_tls_ca = certificate(authorities).display().to_string();
        }
    })
}

const JOIN: &str = "SELECT a.k, count(*) AS n, sum(b.id) AS s FROM (SELECT id, id % 100 AS k FROM range(20000)) a JOIN \
                    range(30000) b ON a.id = b.id GROUP BY a.k ORDER BY a.k";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_exchange_rows_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let servers =
        [bound(options("executor.pem", "executor.key")).await, bound(options("executor.pem", "executor.key")).await];
    let there = believing("authority.pem", &servers.each_ref().map(ExecutorServer::address), &directory);
    let expected = rows(&context_with(2, |_| {}), JOIN).await;
    let dataset = there.sql(JOIN).await.unwrap();
    assert_eq!(rows(&there, JOIN).await, expected);
    dataset.take_all().await.unwrap();
    let stats = dataset.stats();
    for server in &servers {
        assert!(server.address().starts_with("tls:127.0.0.1:") && stats.contains(&server.address()), "{stats}");
    }
    assert!(stats.contains("exchange") && !stats.contains("was lost") && !stats.contains("may not"), "{stats}");
}

/// One with a certificate of its own is believed by whoever has that certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_has_signed_is_believed_where_it_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let of_its_own = || ExecutorOptions { tls_ca: None, ..options("own.pem", "own.key") };
    let servers = [bound(of_its_own()).await, bound(of_its_own()).await];
    let there = believing("own.pem", &servers.each_ref().map(ExecutorServer::address), &directory);
    assert_eq!(rows(&there, JOIN).await, rows(&context_with(2, |_| {}), JOIN).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_believed_is_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let server = bound(options("executor.pem", "executor.key")).await;
    let count = "SELECT count(*) FROM range(101) WHERE id > 0";
    let asking = |authorities, address: String| believing(authorities, &[address], &directory);
    let stranger = sql_error(&asking("stranger.pem", server.address()), count).await;
    assert!(stranger.contains(&server.address()) && stranger.contains("invalid peer certificate"), "{stranger}");
    let nobody = sql_error(&asking("", server.address()), count).await;
    assert!(nobody.contains("blockyard.cluster_tls_ca"), "{nobody}");
    let none = sql_error(&asking("executor.key", server.address()), count).await;
    assert!(none.contains("there is no certificate in") && none.contains("executor.key"), "{none}");
    // The certificate is of 127.0.0.1 and localhost.
    let elsewhere = ExecutorOptions { listen: "tls:127.0.0.2:0".to_owned(), ..options("executor.pem", "executor.key") };
    let elsewhere = bound(elsewhere).await;
    let misnamed = sql_error(&asking("authority.pem", elsewhere.address()), count).await;
    assert!(misnamed.contains("not valid for name"), "{misnamed}");
    // Who talks otherwise is not understood, on either side.
    let plain = sql_error(&asking("authority.pem", server.address().replace("tls:", "tcp:")), count).await;
    assert!(plain.contains("none of 1 executors takes the query"), "{plain}");
    assert_eq!(rows(&asking("authority.pem", server.address()), count).await, ["100"]);
}

/// One that does not believe another one gets no rows of it; whoever does has them from both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_does_not_believe_another_one_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let believes = bound(options("executor.pem", "executor.key")).await;
    let wrong =
        ExecutorOptions { tls_ca: Some(certificate("stranger.pem")), ..options("executor.pem", "executor.key") };
    let does_not = bound(wrong).await;
    let there = believing("authority.pem", &[believes.address(), does_not.address()], &directory);
    let dataset = there.sql(JOIN).await.unwrap();
    assert_eq!(lines(&dataset.take_all().await.unwrap()), rows(&context_with(2, |_| {}), JOIN).await);
    let stats = dataset.stats();
    let said = format!("{} cannot ask {}: cannot connect", does_not.address(), believes.address());
    assert!(stats.contains(&said) && stats.contains("invalid peer certificate"), "{stats}");
    assert!(!stats.contains("was lost") && !stats.contains("made again"), "{stats}");
}

/// Where nobody believes all of the others, the one that the fewest believe is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_that_nobody_believes_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let both = directory.path().join("both.pem");
    let texts = ["authority.pem", "own.pem"].map(|name| std::fs::read_to_string(certificate(name)).unwrap());
    std::fs::write(&both, texts.concat()).unwrap();
    let expected = rows(&context_with(2, |_| {}), JOIN).await;
    // Whether it believes them or not: it alone could ask all, and three others could without it.
    for believes in [None, Some(both.clone())] {
        let alone = ExecutorOptions { tls_ca: believes, ..options("own.pem", "own.key") };
        let one = || bound(options("executor.pem", "executor.key"));
        let servers = [one().await, bound(alone).await, one().await, one().await];
        let there = believing(both.to_str().unwrap(), &servers.each_ref().map(ExecutorServer::address), &directory);
        let dataset = there.sql(JOIN).await.unwrap();
        assert_eq!(lines(&dataset.take_all().await.unwrap()), expected);
        let stats = dataset.stats();
        let lost = |server: &ExecutorServer| stats.contains(&format!("was lost, {}", server.address()));
        assert_eq!(servers.each_ref().map(lost), [false, true, false, false], "{stats}");
    }
}

/// Where no two believe each other, one does all that is above an exchange.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_left_where_no_two_believe_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let stranger =
        || ExecutorOptions { tls_ca: Some(certificate("stranger.pem")), ..options("executor.pem", "executor.key") };
    let one = || bound(stranger());
    // Without any of them, none of the others can ask all that are left.
    let servers = [one().await, one().await, one().await, one().await];
    let there = believing("authority.pem", &servers.each_ref().map(ExecutorServer::address), &directory);
    let query = "SELECT id % 1000 AS k, count(*) AS n FROM range(200000) GROUP BY k ORDER BY k";
    let expected = rows(&context_with(2, |_| {}), query).await;
    for _ in 0..5 {
        assert_eq!(rows(&there, query).await, expected);
    }
}

/// A token is not shown to other machines in the clear, unless that is said.
#[tokio::test]
async fn a_token_is_not_said_in_the_clear() {
    let directory = tempfile::tempdir().unwrap();
    let there = believing("", &["tcp:192.0.2.1:1".to_owned()], &directory);
    let error = sql_error(&there, "SELECT count(*) FROM range(101) WHERE id > 0").await;
    assert!(error.contains("is not encrypted") && error.contains("blockyard.cluster_insecure"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_encrypted_is_an_error() {
    let error = async |options| ExecutorServer::bind(&context_with(1, |_| {}), options).await.unwrap_err().to_string();
    let whole = || options("executor.pem", "executor.key");
    let without = error(ExecutorOptions { tls_cert: None, tls_key: None, ..whole() }).await;
    assert!(without.contains("needs a certificate and its key"), "{without}");
    let plain = error(ExecutorOptions { listen: "tcp:127.0.0.1:0".to_owned(), ..whole() }).await;
    assert!(plain.contains("listen at tls:"), "{plain}");
    let mixed = error(options("executor.pem", "own.key")).await;
    assert!(mixed.contains("executor.pem") && mixed.contains("own.key"), "{mixed}");
    let missing = error(options("nothing.pem", "own.key")).await;
    assert!(missing.contains("cannot read certificates from") && missing.contains("nothing.pem"), "{missing}");
    let no_key = error(options("executor.pem", "executor.pem")).await;
    assert!(no_key.contains("there is no key in"), "{no_key}");
    let unsigned = error(ExecutorOptions { tls_ca: None, ..whole() }).await;
    assert!(unsigned.contains("has not signed itself") && unsigned.contains("--tls-ca"), "{unsigned}");
    let no_token = error(ExecutorOptions { token: None, ..whole() }).await;
    assert!(no_token.contains("needs a token"), "{no_token}");
}

/// Passes on what comes, and keeps it.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, seen: Arc<Mutex<Vec<u8>>>) {
    let mut some = [0; 4096];
    while let Ok(bytes @ 1..) = from.read(&mut some).await {
        seen.lock().extend_from_slice(&some[..bytes]);
        if to.write_all(&some[..bytes]).await.is_err() {
            break;
        }
    }
}

/// A port that passes on to another one, and what was said there.
#[expect(clippy::disallowed_methods, reason = "a machine between those of the tests")]
async fn overheard(address: &str) -> (String, Arc<Mutex<Vec<u8>>>) {
    let (kind, target) = address.split_once(':').unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<u8>>>::default());
    let (target, kept) = (target.to_owned(), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let there = TcpStream::connect(&target).await.unwrap();
            let ((here_in, here_out), (there_in, there_out)) = (stream.into_split(), there.into_split());
            tokio::spawn(pass(here_in, there_out, Arc::clone(&kept)));
            tokio::spawn(pass(there_in, here_out, Arc::clone(&kept)));
        }
    });
    (format!("{kind}:127.0.0.1:{port}"), seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_on_the_way_sees_neither_token_nor_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (tls, tcp) = (
        options("executor.pem", "executor.key"),
        ExecutorOptions { listen: "tcp:127.0.0.1:0".to_owned(), token: Some(TOKEN.to_owned()), ..Default::default() },
    );
    let query = "SELECT 'row-' || id FROM range(1000) WHERE id % 10 = 1";
    for (listening, is_seen) in [(tls, false), (tcp, true)] {
        let server = bound(listening).await;
        let (address, seen) = overheard(&server.address()).await;
        assert_eq!(rows(&believing("authority.pem", &[address], &directory), query).await.len(), 100);
        let seen = seen.lock();
        for said in [TOKEN, "row-991", "range(1000)"] {
            let found = seen.windows(said.len()).any(|window| window == said.as_bytes());
            assert_eq!(found, is_seen, "{said}");
        }
    }
}
