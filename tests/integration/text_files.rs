use std::fs;

use blockyard::prelude::*;
use blockyard::{ReadTextOptions, TextEncoding};

use crate::fixtures::{context, context_with, lines, mib, rows, sql_error};

async fn texts(context: &DataContext, path: &str, options: ReadTextOptions) -> Vec<String> {
    lines(&context.read(path, options).await.unwrap().take_all().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_those_of_the_file_however_it_is_cut() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = directory.path().join("a.txt").display().to_string();
    // Lines of all lengths, some empty, some with other ends, and the last one without.
    let of_row = |row: usize| match row % 5 {
        0 => String::new(),
        1 => format!("{row}\r"),
        _ => format!("{row} {}", "é€".repeat(row * 7 % 50)),
    };
    let all: Vec<String> = (0..3000).map(of_row).collect();
    fs::write(&path, all.join("\n")).unwrap();
    let expected: Vec<String> = all.iter().map(|line| line.trim_end_matches('\r').to_owned()).collect();
    let filled: Vec<String> = expected.iter().filter(|line| !line.is_empty()).cloned().collect();
    for blocks in [None, Some(1), Some(7), Some(300)] {
        let plain = ReadTextOptions { override_num_blocks: blocks, ..ReadTextOptions::default() };
        assert_eq!(texts(&context, &path, plain.clone()).await, filled);
        assert_eq!(texts(&context, &path, ReadTextOptions { keep_empty_lines: true, ..plain }).await, expected);
    }
    let count = rows(&context, &format!("SELECT count(*) FROM read_text('{path}')")).await;
    assert_eq!(count, [filled.len().to_string()]);
    let back = context.read_text(path.as_str()).await.unwrap().to_sql().unwrap();
    assert!(back.contains("read_text("), "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_are_told_with_their_line() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = directory.path().join("a.txt").display().to_string();
    let mut bytes = b"one\ntwo\n".repeat(1000);
    bytes.extend_from_slice(b"caf\xe9\nlast\n");
    fs::write(&path, &bytes).unwrap();
    for blocks in [1, 9] {
        let sql = format!("SELECT * FROM read_text('{path}', override_num_blocks => {blocks})");
        let error = sql_error(&context, &sql).await;
        assert!(error.contains("byte 4 of line 2001 of") && error.contains("a.txt' is not UTF-8"), "{error}");
    }
    let latin = ReadTextOptions { encoding: TextEncoding::Latin1, ..ReadTextOptions::default() };
    assert_eq!(texts(&context, &path, latin).await[2000], "café");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_rows_with_their_bytes() {
    let (context, directory) =
        (context_with(2, |options| options.memory_limit = mib(64)), tempfile::tempdir().unwrap());
    for (name, bytes) in [("a.bin", vec![0, 255, 7]), ("b", Vec::new()), ("c.png", vec![9; 3 << 20])] {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let path = directory.path().display();
    let sql = format!(
        "SELECT regexp_replace(path, '.*/', '') AS name, octet_length(bytes) AS size
         FROM read_binary_files('{path}/', include_paths => true) ORDER BY 1"
    );
    assert_eq!(rows(&context, &sql).await, ["a.bin|3", "b|0", "c.png|3145728"]);
    let dataset = context.read_binary_files(format!("{path}/a.bin").as_str()).await.unwrap();
    assert_eq!(lines(&dataset.take_all().await.unwrap()), ["00ff07"]);
    assert_eq!(dataset.count().await.unwrap(), 1);
}
