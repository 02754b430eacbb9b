//! Filters that dictionaries are asked, against the same ones of decoded rows.

use std::fs::File;
use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int16Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, Encoding};
use datafusion::parquet::file::properties::{WriterProperties, WriterVersion};
use datafusion::parquet::schema::types::ColumnPath;
use proptest::prelude::*;

use crate::fixtures::{context, rows};

const FILES: u64 = 8;

/// How the files are written.
#[derive(Debug, Clone)]
struct Shape {
    seed: u64,
    rows: usize,
    /// Different values of a column.
    values: u64,
    /// One in so many values is null; 0 for none.
    nulls: u64,
    is_v2: bool,
    is_compressed: bool,
    row_group_rows: usize,
    page_rows: usize,
    /// Bytes of a dictionary, behind which pages have no codes.
    dictionary_bytes: usize,
}

fn shape() -> impl Strategy<Value = Shape> {
    let data = (any::<u64>(), 1_usize..1500, 1_u64..400, 0_u64..6);
    let files = (any::<bool>(), any::<bool>(), 100_usize..900, 20_usize..900, prop_oneof![Just(200), Just(1 << 20)]);
    (data, files).prop_map(|((seed, rows, values, nulls), (is_v2, is_compressed, groups, pages, dictionary_bytes))| {
        Shape {
            seed,
            rows,
            values,
            nulls,
            is_v2,
            is_compressed,
            row_group_rows: groups,
            page_rows: pages,
            dictionary_bytes,
        }
    })
}

/// A condition, most of which are about one column.
fn condition() -> impl Strategy<Value = String> {
    let number = 0_i64..400;
    prop_oneof![
        number.clone().prop_map(|n| format!("a < {n}")),
        number.clone().prop_map(|n| format!("a % 7 = {}", n % 7)),
        number.clone().prop_map(|n| format!("s = 'word {n}'")),
        number.clone().prop_map(|n| format!("s IN ('word {n}', 'word 1', 'word 2')")),
        number.clone().prop_map(|n| format!("s NOT LIKE '%{}%'", n % 10)),
        number.clone().prop_map(|n| format!("d >= DATE '1970-01-01' + INTERVAL '{n}' DAY")),
        number.clone().prop_map(|n| format!("m BETWEEN {n}.5 AND {}.25", n + 90)),
        number.clone().prop_map(|n| format!("f < {n}")),
        number.clone().prop_map(|n| format!("t <> TIMESTAMP '1970-01-01 00:00:00.{n:06}'")),
        number.clone().prop_map(|n| format!("(k = {n} OR k IS NULL)")),
        number.clone().prop_map(|n| format!("coalesce(s, 'word {n}') = 'word {n}'")),
        number.prop_map(|n| format!("a + id > {n}")),
        Just("s IS NULL".to_owned()),
        Just("a IS NOT NULL".to_owned()),
        Just("f = 0".to_owned()),
        Just("isnan(f)".to_owned()),
        Just("b".to_owned()),
        Just("b IS NOT TRUE".to_owned()),
        Just("1000 / nullif(k, 0) > 2".to_owned()),
    ]
}

/// Rows of a file. What decides a value is all the same where it comes from.
fn batch(shape: &Shape, file: u64) -> RecordBatch {
    let mut state = shape.seed ^ file.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut column = |make: &mut dyn FnMut(u64) -> u64| -> Vec<Option<u64>> {
        let of_row = |_| match shape.nulls > 0 && next() % shape.nulls == 0 {
            true => None,
            false => Some(make(next() % shape.values)),
        };
        (0..shape.rows).map(of_row).collect()
    };
    let mut as_it_is = |value| value;
    let (a, s, d, m) = (column(&mut as_it_is), column(&mut as_it_is), column(&mut as_it_is), column(&mut as_it_is));
    let (f, t, k, b) = (column(&mut as_it_is), column(&mut as_it_is), column(&mut as_it_is), column(&mut as_it_is));
    let float = |value: u64| match value % 50 {
        0 => -0.0,
        1 => f64::NAN,
        _ => value as f64 - 1.0,
    };
    let int = |values: &[Option<u64>]| -> Vec<Option<i64>> { values.iter().map(|v| v.map(|v| v as i64)).collect() };
    let decimals = Decimal128Array::from_iter(m.iter().map(|v| v.map(|v| i128::from(v) * 50)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..shape.rows as i64))),
        ("a", Arc::new(Int64Array::from(int(&a)))),
        ("s", Arc::new(StringArray::from_iter(s.iter().map(|v| v.map(|v| format!("word {v}")))))),
        ("d", Arc::new(Date32Array::from_iter(d.iter().map(|v| v.map(|v| v as i32))))),
        ("m", Arc::new(decimals.with_precision_and_scale(12, 2).unwrap())),
        ("f", Arc::new(Float64Array::from_iter(f.iter().map(|v| v.map(float))))),
        ("t", Arc::new(TimestampMicrosecondArray::from(int(&t)))),
        ("k", Arc::new(Int16Array::from_iter(k.iter().map(|v| v.map(|v| v as i16))))),
        ("b", Arc::new(BooleanArray::from_iter(b.iter().map(|v| v.map(|v| v % 2 == 0))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, name != "id")))
        .unwrap()
}

fn write(shape: &Shape, directory: &std::path::Path) {
    let version = if shape.is_v2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    let compression = if shape.is_compressed { Compression::SNAPPY } else { Compression::UNCOMPRESSED };
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(compression)
        .set_max_row_group_row_count(Some(shape.row_group_rows))
        .set_data_page_row_count_limit(shape.page_rows)
        .set_write_batch_size(shape.page_rows.min(64))
        .set_dictionary_page_size_limit(shape.dictionary_bytes)
        .set_column_dictionary_enabled(ColumnPath::from("id"), false)
        .set_column_encoding(ColumnPath::from("id"), Encoding::PLAIN)
        .build();
    for file in 0..FILES {
        let rows = batch(shape, file);
        let path = directory.join(format!("{file}.parquet"));
        let mut writer =
            ArrowWriter::try_new(File::create(path).unwrap(), rows.schema(), Some(properties.clone())).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
    }
}

/// The rows of a query with dictionaries asked, and without.
async fn both(context: &DataContext, query: &str) -> [Vec<String>; 2] {
    let asked = rows(context, query).await;
    let set = |value: bool| format!("SET blockyard.optimize_late_materialization = {value}");
    context.sql(&set(false)).await.unwrap();
    let decoded = rows(context, query).await;
    context.sql(&set(true)).await.unwrap();
    [asked, decoded]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dictionaries_tell_the_rows_that_decoding_would(
        shape in shape(),
        conditions in proptest::collection::vec(condition(), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let (context, directory) = (context(), tempfile::tempdir().unwrap());
            write(&shape, directory.path());
            let from = format!("read_parquet('{}')", directory.path().display());
            let query = format!("SELECT * FROM {from} WHERE {}", conditions.join(" AND "));
            let [asked, decoded] = both(&context, &query).await;
            prop_assert_eq!(asked, decoded, "{}", query);
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_left_out_by_what_dictionaries_say() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let shape = Shape {
        seed: 1,
        rows: 1000,
        values: 20,
        nulls: 5,
        is_v2: false,
        is_compressed: true,
        row_group_rows: 300,
        page_rows: 100,
        dictionary_bytes: 1 << 20,
    };
    write(&shape, directory.path());
    let from = format!("read_parquet('{}')", directory.path().display());
    for (condition, is_asked) in [
        ("s = 'word 3'", Some(true)),
        ("k > 4 AND s IN ('word 3', 'word 4')", Some(true)),
        // What a join finds out may come when these few rows have been read.
        ("a IN (SELECT id FROM range(3))", None),
        // Of two columns, and of one without a dictionary.
        ("a + k = 3", Some(false)),
        ("id < 100", Some(false)),
    ] {
        let query = format!("SELECT * FROM {from} WHERE {condition}");
        let [mut asked, mut decoded] = both(&context, &query).await;
        if is_asked.is_none() {
            // Joins give rows as they come.
            asked.sort();
            decoded.sort();
        }
        assert_eq!(asked, decoded, "{condition}");
        assert!(!asked.is_empty(), "{condition}");
        let told = context.sql(&format!("EXPLAIN ANALYZE {query}")).await.unwrap().take_all().await.unwrap();
        let told = pretty_format_batches(&told).unwrap().to_string();
        let pruned = told.contains("rows_pruned_by_dictionary=") && !told.contains("rows_pruned_by_dictionary=0");
        assert!(is_asked.is_none_or(|is_asked| is_asked == pruned), "{condition}: {told}");
    }
}
