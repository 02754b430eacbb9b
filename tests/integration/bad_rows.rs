//! Lines of text that do not fit the columns, and what becomes of them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use blockyard::functions::{MaxErrors, OnError};
use blockyard::{ReadCsvOptions, ReadJsonOptions};
use datafusion::arrow::datatypes::DataType;
use futures::{StreamExt, TryStreamExt};

use crate::fixtures::{context, ints, rows, sql_error};

/// A file with so many lines, of which some are broken in one way or another.
fn write_csv(path: &Path, lines: usize, is_bad: impl Fn(usize) -> bool) {
    let mut text = "id,v,name\n".to_owned();
    for line in 0..lines {
        let how = if is_bad(line) { line % 4 + 1 } else { 0 };
        let written = match how {
            0 => writeln!(text, "{line},{}.5,n{line}", line * 2),
            1 => writeln!(text, "{line},x{line},n{line}"),
            2 => writeln!(text, "{line},1.5"),
            3 => writeln!(text, "{line},1.5,n,more"),
            _ => writeln!(text, "no,\"1.5,n{line}"),
        };
        written.unwrap();
    }
    fs::write(path, text).unwrap();
}

fn types() -> Vec<(String, DataType)> {
    vec![("id".to_owned(), DataType::Int64), ("v".to_owned(), DataType::Float64)]
}

#[tokio::test(flavor = "multi_thread")]
async fn good_rows_are_all_there_and_bad_ones_are_kept_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    let is_bad = |line: usize| line.is_multiple_of(20) || (5000..5100).contains(&line);
    write_csv(&path, 50_000, is_bad);
    let good: Vec<i64> = (0..50_000).filter(|line| !is_bad(*line as usize)).collect();
    let context = context();
    for tasks in [1, 7] {
        let options = ReadCsvOptions {
            types: types(),
            override_num_blocks: Some(tasks),
            on_error: OnError::Divert("bad".to_owned()),
            ..Default::default()
        };
        let ds = context.read(path.to_str().unwrap(), options).await.unwrap();
        assert_eq!(ints(&ds.take_all().await.unwrap(), "id"), good, "{tasks} tasks");
        let bad = context.diverted("bad").unwrap().take_all().await.unwrap();
        context.register_dataset(&format!("bad_{tasks}"), &context.diverted("bad").unwrap()).unwrap();
        assert_eq!(bad.iter().map(|batch| batch.num_rows()).sum::<usize>(), 50_000 - good.len());
        // The first line of the file is its header.
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let told = rows(&context, &format!("SELECT _line, _raw, _byte FROM bad_{tasks}")).await;
        for told in &told {
            let (line, rest) = told.split_once('|').unwrap();
            let (raw, byte) = rest.rsplit_once('|').unwrap();
            assert_eq!(raw, lines[line.parse::<usize>().unwrap() - 1]);
            assert!(text[byte.parse::<usize>().unwrap()..].starts_with(raw), "{told}");
        }
        let first = rows(&context, &format!("SELECT _error, _file FROM bad_{tasks} WHERE _line = 5006")).await;
        assert!(first[0].contains("'x5004' as type 'Float64' for column 'v'"), "{first:?}");
        assert!(first[0].ends_with("t.csv"), "{first:?}");
    }
}

#[tokio::test]
async fn bad_lines_are_left_out_or_become_nulls_or_are_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    write_csv(&path, 100, |line| [9, 10, 11, 12].contains(&line));
    let path = path.to_str().unwrap();
    let read = |more: &str| format!("read_csv('{path}', types => 'id bigint, v double', {more})");
    let context = context();
    let skipped = read("on_error => 'skip'");
    assert_eq!(rows(&context, &format!("SELECT count(*), count(v) FROM {skipped}")).await, ["96|96"]);
    assert_eq!(rows(&context, &format!("SELECT count(*) FROM {skipped} WHERE name = 'n7'")).await, ["1"]);
    let nulls = read("on_error => 'null'");
    let found = rows(&context, &format!("SELECT id, v, name FROM {nulls} WHERE v IS NULL")).await;
    // A value that does not fit is null, or all of the line where nobody knows which is which.
    assert_eq!(found, ["NULL|NULL|NULL", "NULL|NULL|NULL", "NULL|NULL|NULL", "12|NULL|n12"]);
    let few = read("on_error => 'skip', max_errors => 3");
    let error = sql_error(&context, &format!("SELECT * FROM {few}")).await;
    assert!(error.contains("4 of 100 lines do not fit the columns, and max_errors is 3"), "{error}");
    assert!(error.contains("in line 14 of ") && error.contains("t.csv"), "{error}");
    assert_eq!(
        rows(&context, &format!("SELECT count(*) FROM {}", read("on_error => 'skip', max_errors => 4"))).await,
        ["96"]
    );
    let percent = read("on_error => 'skip', max_errors => '3%'");
    let error = sql_error(&context, &format!("SELECT * FROM {percent}")).await;
    assert!(error.contains("max_errors is 3%"), "{error}");
    for (more, expected) in [
        ("on_error => 'divert'", "divert_to => 'name'"),
        ("max_errors => 3", "max_errors needs on_error"),
        ("on_error => 'drop'", "'drop'"),
    ] {
        let error = sql_error(&context, &format!("SELECT * FROM {}", read(more))).await;
        assert!(error.contains(expected), "{more}: {error}");
    }
    let failing = sql_error(&context, &format!("SELECT * FROM {}", read("override_num_blocks => 1"))).await;
    assert!(failing.contains("t.csv"), "{failing}");
}

#[tokio::test]
async fn text_in_another_encoding_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.txt");
    fs::write(&path, b"one\n\xff two\n\nth\xc3\xa4t\r\n\xc3").unwrap();
    let path = path.to_str().unwrap();
    let context = context();
    let read = |more: &str| format!("SELECT text FROM read_text('{path}', {more})");
    assert_eq!(rows(&context, &read("on_error => 'skip'")).await, ["one", "th\u{e4}t"]);
    assert_eq!(rows(&context, &read("on_error => 'skip', keep_empty_lines => true")).await, ["one", "", "th\u{e4}t"]);
    rows(&context, &read("on_error => 'divert', divert_to => 'bad'")).await;
    let bad = rows(&context, "SELECT _line, _byte, _error FROM diverted('bad')").await;
    assert_eq!(bad.len(), 2);
    assert!(bad[0].starts_with("2|4|") && bad[0].contains("byte 1 of the line is not UTF-8"), "{bad:?}");
    assert!(bad[1].starts_with("5|18|"), "{bad:?}");
    let error = sql_error(&context, &read("on_error => 'null'")).await;
    assert!(error.contains("a line of text is one value"), "{error}");
    let error = sql_error(&context, &read("on_error => 'skip', max_errors => 1")).await;
    assert!(error.contains("in line 5 of"), "{error}");
}

#[tokio::test]
async fn lines_of_json_are_told_apart_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.json");
    let lines = ["{\"a\": 1}", "{\"a\": \"x\"}", "", "{\"a\": 2", "{\"a\": 3, \"b\": 1}", "nothing", "{\"a\": 4.0}"];
    fs::write(&path, lines.join("\n")).unwrap();
    let context = context();
    let options = ReadJsonOptions {
        types: vec![("a".to_owned(), DataType::Int64)],
        on_error: OnError::Divert("bad".to_owned()),
        ..Default::default()
    };
    let read = |options| context.read(path.to_str().unwrap(), options);
    let ds = read(options.clone()).await;
    let ds = match ds {
        Ok(ds) => ds,
        Err(e) => panic!("{}", e.strip_backtrace()),
    };
    assert_eq!(ints(&ds.select_columns(&["a"]).unwrap().take_all().await.unwrap(), "a"), [1, 3, 4]);
    context.register_dataset("bad", &context.diverted("bad").unwrap()).unwrap();
    assert_eq!(rows(&context, "SELECT _line, _raw FROM bad").await, ["2|{\"a\": \"x\"}", "4|{\"a\": 2", "6|nothing"]);
    let few = ReadJsonOptions { max_errors: Some(MaxErrors::Rows(2)), ..options };
    let error = read(few).await.unwrap().take_all().await.unwrap_err().strip_backtrace();
    assert!(error.contains("max_errors is 2") && error.contains("in line 6 of"), "{error}");
}

/// Lines without a number are kept apart.
fn diverting(tasks: usize) -> ReadCsvOptions {
    ReadCsvOptions {
        types: vec![("id".to_owned(), DataType::Int64)],
        override_num_blocks: Some(tasks),
        on_error: OnError::Divert("bad".to_owned()),
        ..Default::default()
    }
}

/// What becomes of a line depends on it alone: not on the lines that are decoded with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_is_good_or_bad_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    // What is behind a number, and whether the line is a row, is wrong, or is nothing.
    let kinds: [(&str, Option<bool>); 10] = [
        (",plain", Some(true)),
        (",\"in, quotes\"", Some(true)),
        (",\"two \"\"quotes\"\"\"", Some(true)),
        (",", Some(true)),
        (",\"open", Some(false)),
        (",a,b", Some(false)),
        ("", Some(false)),
        ("x,a", Some(false)),
        ("\",a", Some(false)),
        ("", None),
    ];
    for (end, last) in [("\n", "\n"), ("\r\n", "\r\n"), ("\n", "")] {
        // Runs of good lines between bad ones, of many lengths.
        let kind = |line: usize| match (line.wrapping_mul(2_654_435_761) >> 7) & 31 {
            kind @ 0..10 => kind,
            _ => line % 4,
        };
        let (mut text, mut good, mut bad) = (format!("id,name{end}"), Vec::new(), 0);
        for line in 0..3000 {
            let (rest, fate) = kinds[kind(line)];
            if line > 0 {
                text.push_str(end);
            }
            match fate {
                None => text.push_str(rest),
                Some(is_good) => {
                    write!(text, "{line}{rest}").unwrap();
                    bad += usize::from(!is_good);
                    good.extend(is_good.then_some(line as i64));
                }
            }
        }
        text.push_str(last);
        let path = directory.path().join("t.csv");
        fs::write(&path, text).unwrap();
        for (batch_size, tasks) in [(1, 1), (7, 3), (100, 1), (8192, 4)] {
            let context = context();
            context.sql(&format!("SET datafusion.execution.batch_size = {batch_size}")).await.unwrap();
            let ds = context.read(path.to_str().unwrap(), diverting(tasks)).await.unwrap();
            let said = format!("{end:?}, {last:?}, batches of {batch_size}, {tasks} tasks");
            assert_eq!(ints(&ds.take_all().await.unwrap(), "id"), good, "{said}");
            let diverted = context.diverted("bad").unwrap().count().await.unwrap();
            assert_eq!(diverted, bad, "{said}");
        }
    }
}

/// Lines of more bytes than are decoded at once, behind short ones, and behind a mark of the encoding.
#[tokio::test(flavor = "multi_thread")]
async fn long_lines_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    let long = "b".repeat(3 << 20);
    fs::write(&path, format!("\u{feff}id,name\n1,{}\n2,{long}\nx,a\n3,c\n4,a\rb\n", "a".repeat(200))).unwrap();
    let context = context();
    for tasks in [1, 3] {
        let ds = context.read(path.to_str().unwrap(), diverting(tasks)).await.unwrap();
        context.register_dataset(&format!("t_{tasks}"), &ds).unwrap();
        let found = rows(&context, &format!("SELECT id, length(name) FROM t_{tasks} ORDER BY id")).await;
        assert_eq!(found, ["1|200".to_owned(), format!("2|{}", 3 << 20), "3|1".to_owned()], "{tasks} tasks");
        context.register_dataset(&format!("bad_{tasks}"), &context.diverted("bad").unwrap()).unwrap();
        let bad = rows(&context, &format!("SELECT _line, _raw FROM bad_{tasks} ORDER BY _line")).await;
        assert_eq!(bad, ["4|x,a", "6|4,a\rb"], "{tasks} tasks");
    }
}

#[tokio::test]
async fn values_of_json_that_do_not_fit_are_nulls_by_themselves() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = directory.path().join("t.json");
    let lines = [
        r#"{"id": 1, "v": 1, "s": {"a": 1}}"#,
        r#"{"id": 2, "v": "oops", "s": {"a": 2}, "more": true}"#,
        r#"{"id": 3, "v": 3.5, "s": {"a": "x"}}"#,
        r#"{"id": 4, "v": "#,
        r#"[5]"#,
        r#"{"id": 6, "v": 12345678901234567, "s": null}"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let read = format!("read_json('{}', types => 'id bigint, v bigint', on_error => 'null')", path.display());
    let found = rows(&context, &format!("SELECT id, v, s['a'] FROM {read}")).await;
    assert_eq!(
        found,
        ["1|1|1", "2|NULL|2", "3|NULL|x", "NULL|NULL|NULL", "NULL|NULL|NULL", "6|12345678901234567|NULL"]
    );
}

/// Values of several lines, also of very many, and at the end of a file that does not end with a line.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_many_lines_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    let like_rows = "1,2\n".repeat(500_000);
    let mut text = format!("id,name\n1,a\n2,\"{like_rows}\"\nx,b\n");
    for (last, lines) in [("3,\"x\n\"", 1), ("3,\"x\ny\"\n", 1), ("3,\"\n\"\"\n\"", 2)] {
        fs::write(&path, format!("{text}{last}")).unwrap();
        let context = context();
        for on_error in [OnError::Skip, OnError::Null, OnError::Divert("bad".to_owned())] {
            let nulls = usize::from(on_error == OnError::Null);
            let types = types()[..1].to_vec();
            let options = ReadCsvOptions { on_error, newlines_in_values: true, types, ..Default::default() };
            let ds = context.read(path.to_str().unwrap(), options).await.unwrap();
            context.session().deregister_table("t").unwrap();
            context.register_dataset("t", &ds).unwrap();
            let found = rows(&context, "SELECT id, length(name) - length(replace(name, chr(10), '')) FROM t").await;
            let mut expected = vec!["1|0".to_owned(), "2|500000".to_owned(), format!("3|{lines}")];
            if nulls == 1 {
                expected.insert(2, "NULL|0".to_owned());
            }
            assert_eq!(found, expected, "{last:?}");
        }
        assert_eq!(context.diverted("bad").unwrap().count().await.unwrap(), 1, "{last:?}");
        text = text.replace("1,a", "1,b");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quotes_that_do_not_end_swallow_no_lines() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = directory.path().join("q.csv").display().to_string();
    let of_line = |line: usize| match line {
        700 => "700,\"open".to_owned(),
        2300 => "2300,\"in quotes\"".to_owned(),
        _ => format!("{line},text {line}"),
    };
    let lines: Vec<String> = std::iter::once("a,b".to_owned()).chain((2..=3000).map(of_line)).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    let count = |more: String| format!("SELECT count(*) FROM read_csv('{path}'{more})");
    for more in
        ["override_num_blocks => 1", "newlines_in_values => true", "override_num_blocks => 1, schema => 'union'"]
    {
        let error = sql_error(&context, &count(format!(", {more}"))).await;
        assert!(error.contains("begins in line 700 of '") && error.contains("seems to end in line 2300"), "{error}");
        assert!(error.contains("'i' follows") && error.contains("on_error => 'skip'"), "{error}");
    }
    let error = sql_error(&context, &count(", override_num_blocks => 9".to_owned())).await;
    assert!(error.contains("line 700 of '") && error.contains("newlines_in_values => true"), "{error}");
    let skipped = count(", on_error => 'skip', override_num_blocks => 9".to_owned());
    assert_eq!(rows(&context, &skipped).await, ["2998"]);
    // Values of several lines are rows as ever, and a header whose quotes do not end names no columns.
    fs::write(&path, "\"a\n1\",b\n1,\"x\n2,y\"\n3,z\nbad\n4,\"u\n\n\"\n").unwrap();
    for on_error in ["skip", "null"] {
        let sql = format!("SELECT sum(length(b)) FROM read_csv('{path}', on_error => '{on_error}')");
        assert_eq!(rows(&context, &sql).await, [(5 + 1 + 3).to_string()], "{on_error}");
    }
    fs::write(&path, "a,\"b\n1,x\n2,y\n").unwrap();
    let error = sql_error(&context, &count(", on_error => 'skip'".to_owned())).await;
    assert!(error.contains("quotes of the first line do not end"), "{error}");
    fs::write(&path, "a,b\r1,x\r2,y\r").unwrap();
    let error = sql_error(&context, &count(", on_error => 'skip'".to_owned())).await;
    assert!(error.contains("carriage return alone"), "{error}");
    assert_eq!(rows(&context, &count(String::new())).await, ["2"]);
    // One in the last line, of which the end of the file is not the end.
    fs::write(&path, "a,b\n1,x\n2,\"y").unwrap();
    let error = sql_error(&context, &count(String::new())).await;
    assert!(error.contains("begins in line 3 of '") && error.contains("does not end"), "{error}");
    assert_eq!(rows(&context, &count(", on_error => 'skip'".to_owned())).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn line_breaks_in_values_are_rows_or_an_error() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = directory.path().join("v.csv").display().to_string();
    let lines: Vec<String> = (0..500).map(|row| format!("{row},\"first\nsecond \"\"{row}\"\"\r\nthird\"\n")).collect();
    fs::write(&path, format!("a,b\n{}", lines.concat())).unwrap();
    let sql = |more: String| format!("SELECT count(*), sum(a), sum(length(b)) FROM read_csv('{path}'{more})");
    let whole = rows(&context, &sql(", newlines_in_values => true".to_owned())).await;
    assert_eq!(whole, ["500|124750|12390"]);
    assert_eq!(rows(&context, &sql(", newlines_in_values => true, on_error => 'skip'".to_owned())).await, whole);
    for on_error in ["fail", "skip", "null"] {
        let mut failed = 0;
        for blocks in 1..40 {
            let sql = sql(format!(", override_num_blocks => {blocks}, on_error => '{on_error}'"));
            match context.sql(&sql).await.unwrap().take_all().await {
                Ok(found) => assert_eq!(crate::fixtures::lines(&found), whole, "{blocks} blocks"),
                Err(e) => {
                    failed += 1;
                    let e = e.to_string();
                    // The task that begins in the middle may fail first, if it fails at what it finds there.
                    assert!(e.contains("v.csv") && (on_error == "fail" || e.contains("newlines_in_values")), "{e}");
                }
            }
        }
        assert!(failed < 39, "a file in one piece can be read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_say_no_columns_are_passed_over() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    for (ending, without, with) in [("json", "[]", "[{\"a\":1},{\"a\":2}]"), ("csv", "\n", "a\n1\n2\n")] {
        let place = directory.path().join(ending);
        fs::create_dir(&place).unwrap();
        fs::write(place.join(format!("a.{ending}")), without).unwrap();
        fs::write(place.join(format!("b.{ending}")), with).unwrap();
        let sql = format!("SELECT * FROM read_{ending}('{}') ORDER BY a", place.display());
        assert_eq!(rows(&context, &sql).await, ["1", "2"], "{ending}");
    }
    let path = directory.path().join("c.csv").display().to_string();
    for end in ["", "\n"] {
        fs::write(&path, format!("a,b\n#x\n1,2\n#last{end}")).unwrap();
        for more in ["", ", on_error => 'null'", ", newlines_in_values => true"] {
            let sql = format!("SELECT * FROM read_csv('{path}', comment => '#'{more})");
            assert_eq!(rows(&context, &sql).await, ["1|2"], "{more}");
        }
    }
}

/// What was compressed in several pieces is all there.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_files_have_all_their_members() {
    use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    for (ending, kind) in [
        ("gz", FileCompressionType::GZIP),
        ("bz2", FileCompressionType::BZIP2),
        ("xz", FileCompressionType::XZ),
        ("zst", FileCompressionType::ZSTD),
    ] {
        let compressed = async |text: String| {
            let one = futures::stream::iter([Ok(bytes::Bytes::from(text))]).boxed();
            let pieces: Vec<bytes::Bytes> = kind.convert_to_compress_stream(one).unwrap().try_collect().await.unwrap();
            pieces.concat()
        };
        let numbers: String = (0..1000).map(|n| format!("{{\"a\":{n}}}\n")).collect();
        let members = [compressed(numbers.clone()).await, compressed(numbers).await].concat();
        for name in ["json", "txt"] {
            fs::write(directory.path().join(format!("m.{name}.{ending}")), &members).unwrap();
        }
        let numbers: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let members = [compressed("a\n".to_owned()).await, compressed(numbers).await].concat();
        fs::write(directory.path().join(format!("m.csv.{ending}")), members).unwrap();
        let place = directory.path().display();
        for (sql, expected) in [
            (format!("SELECT count(*), sum(a) FROM read_json('{place}/m.json.{ending}')"), "2000|999000"),
            (
                format!("SELECT count(*), sum(a) FROM read_json('{place}/m.json.{ending}', on_error => 'skip')"),
                "2000|999000",
            ),
            (format!("SELECT count(*) FROM read_text('{place}/m.txt.{ending}')"), "2000"),
            (format!("SELECT count(*), sum(a) FROM read_csv('{place}/m.csv.{ending}')"), "1000|499500"),
        ] {
            assert_eq!(rows(&context, &sql).await, [expected], "{sql}");
        }
    }
}
