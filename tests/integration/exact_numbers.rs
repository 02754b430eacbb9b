//! Whole numbers are what they are on paper, or an error.

use blockyard::prelude::*;
use proptest::prelude::*;

use crate::fixtures::{context_with, mib, rows};

/// Columns of whole numbers, of types with ever more room.
const KINDS: [(&str, &str, u32); 4] =
    [("a", "TINYINT", 8), ("b", "SMALLINT", 16), ("c", "INT", 32), ("d", "BIGINT", 64)];

/// A computation of columns and literals.
#[derive(Debug, Clone)]
enum Number {
    Column(usize),
    Literal(i64),
    Minus(Box<Number>),
    Of(Box<Number>, char, Box<Number>),
}

impl Number {
    fn text(&self) -> String {
        match self {
            Self::Column(column) => KINDS[*column].0.to_owned(),
            Self::Literal(value) => format!("({value})"),
            Self::Minus(of) => format!("(-({}))", of.text()),
            Self::Of(left, op, right) => format!("({} {op} {})", left.text(), right.text()),
        }
    }

    /// The number on paper, the bits of its type, and whether all on the way to it has room.
    fn value(&self, row: &[i64; 4]) -> (i128, u32, bool) {
        let fits = |value: i128, bits: u32| (-(1_i128 << (bits - 1))..1 << (bits - 1)).contains(&value);
        match self {
            Self::Column(column) => (row[*column].into(), KINDS[*column].2, true),
            Self::Literal(value) => (i128::from(*value), 64, true),
            Self::Minus(of) => {
                let (value, bits, has_room) = of.value(row);
                (-value, bits, has_room && fits(-value, bits))
            }
            Self::Of(left, op, right) => {
                let ((left, left_bits, left_fits), (right, right_bits, right_fits)) =
                    (left.value(row), right.value(row));
                let value = match op {
                    '+' => left.saturating_add(right),
                    '-' => left.saturating_sub(right),
                    _ => left.saturating_mul(right),
                };
                let bits = left_bits.max(right_bits);
                (value, bits, left_fits && right_fits && fits(value, bits))
            }
        }
    }
}

fn number() -> impl Strategy<Value = Number> {
    let literals = prop_oneof![-3_i64..4, Just(i64::MAX), Just(i64::from(i32::MAX)), Just(1 << 40)];
    let leaf = prop_oneof![4 => (0_usize..4).prop_map(Number::Column), 1 => literals.prop_map(Number::Literal)];
    leaf.prop_recursive(3, 12, 2, |inner| {
        let of = (inner.clone(), proptest::sample::select(vec!['+', '-', '*']), inner.clone());
        prop_oneof![
            4 => of.prop_map(|(left, op, right)| Number::Of(Box::new(left), op, Box::new(right))),
            1 => inner.prop_map(|of| Number::Minus(Box::new(of))),
        ]
    })
}

/// A number of a type with so many bits: small mostly, or one of those at its ends.
fn of_bits(bits: u32) -> impl Strategy<Value = i64> {
    let (least, most) = (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits));
    prop_oneof![6 => -9_i64..10, 1 => Just(least), 1 => Just(most), 1 => least..=most]
}

fn row() -> impl Strategy<Value = [i64; 4]> {
    (of_bits(8), of_bits(16), of_bits(32), of_bits(64)).prop_map(|(a, b, c, d)| [a, b, c, d])
}

/// A relation of such rows.
fn table(given: &[[i64; 4]]) -> String {
    let cast = |at: usize, value: &i64| format!("CAST('{value}' AS {})", KINDS[at].1);
    let row = |(id, row): (usize, &[i64; 4])| {
        let values: Vec<String> = row.iter().enumerate().map(|(at, value)| cast(at, value)).collect();
        format!("({id}, {})", values.join(", "))
    };
    let all: Vec<String> = given.iter().enumerate().map(row).collect();
    format!("(VALUES {}) AS t(id, a, b, c, d)", all.join(", "))
}

/// The numbers of a query as texts, or what has failed.
async fn asked(context: &DataContext, query: &str) -> datafusion::error::Result<Vec<String>> {
    let batches = context.sql(query).await?.take_all().await?;
    let texts = batches.iter().flat_map(|batch| {
        let texts = datafusion::arrow::compute::cast(batch.column(0), &datafusion::arrow::datatypes::DataType::Utf8);
        let texts = texts.unwrap();
        let texts = datafusion::arrow::array::AsArray::as_string::<i32>(&texts).clone();
        texts.iter().map(|text| text.unwrap_or("NULL").to_owned()).collect::<Vec<_>>()
    });
    Ok(texts.collect())
}

fn is_of_room(error: &datafusion::error::DataFusionError) -> bool {
    let text = error.to_string();
    text.contains("exceeds") || text.contains("Overflow happened on")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn computed_numbers_are_those_on_paper(given in proptest::collection::vec(row(), 1..5), number in number()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(64));
            let (text, table) = (number.text(), table(&given));
            let values: Vec<_> = given.iter().map(|row| number.value(row)).collect();
            let (expected, have_room) = (values.iter().map(|of| of.0.to_string()), values.iter().all(|of| of.2));
            let expected: Vec<String> = expected.collect();
            let queries = [
                format!("SELECT {text} AS x FROM {table} ORDER BY id"),
                format!("SELECT max(x) FROM (SELECT id, {text} AS x FROM {table}) GROUP BY id ORDER BY id"),
                format!("SELECT max({text}) FROM {table} GROUP BY id ORDER BY id"),
                format!("SELECT max({text}) OVER (PARTITION BY id) FROM {table} ORDER BY id"),
            ];
            for query in queries {
                match asked(&context, &query).await {
                    Ok(found) => prop_assert_eq!(&found, &expected, "{}", query),
                    Err(error) => prop_assert!(!have_room && is_of_room(&error), "{}: {}", query, error),
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn sums_are_those_on_paper(
        of_groups in proptest::collection::vec(proptest::collection::vec(of_bits(64), 1..6), 1..4),
        kind in proptest::sample::select(vec!["BIGINT", "DECIMAL(38, 0)"]),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(64));
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().display();
            let of_group = |(k, values): (usize, &Vec<i64>)| {
                values.iter().map(move |value| format!("({k}, CAST('{value}' AS {kind}))")).collect::<Vec<_>>()
            };
            let all: Vec<String> = of_groups.iter().enumerate().flat_map(of_group).collect();
            let table = format!("(VALUES {}) AS t(k, x)", all.join(", "));
            rows(&context, &format!("COPY (SELECT * FROM {table}) TO '{path}/t/' STORED AS PARQUET")).await;
            let sum = |values: &Vec<i64>| values.iter().map(|value| i128::from(*value)).sum::<i128>().to_string();
            let expected: Vec<String> = of_groups.iter().map(sum).collect();
            // However they are put together, no sum on the way is greater.
            let greatest = |values: &Vec<i64>| values.iter().map(|value| i128::from(*value).abs()).sum::<i128>();
            let have_room = kind != "BIGINT" || of_groups.iter().all(|of| greatest(of) <= i64::MAX.into());
            let from = format!("read_parquet('{path}/t/')");
            let queries = [
                format!("SELECT sum(x) FROM {from} GROUP BY k ORDER BY k"),
                format!("SELECT max(s) FROM (SELECT k, sum(x) OVER (PARTITION BY k) AS s FROM {from}) GROUP BY k ORDER BY k"),
                format!("SELECT sum(x) FROM {from} GROUP BY ROLLUP (k) HAVING grouping(k) = 0 ORDER BY k"),
            ];
            for query in queries {
                match asked(&context, &query).await {
                    Ok(found) => prop_assert_eq!(&found, &expected, "{}", query),
                    // The sum of all may have no room.
                    Err(error) => prop_assert!(
                        (!have_room || query.contains("ROLLUP")) && is_of_room(&error), "{}: {}", query, error
                    ),
                }
            }
            Ok(())
        })?;
    }
}
