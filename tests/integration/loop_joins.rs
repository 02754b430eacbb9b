//! Joins on other conditions than equal keys, beside those of plain DataFusion, which compares each row with each other.

use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{
    Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::prelude::SessionContext;

use crate::fixtures::{JOIN_KINDS, context_with, lines, mib, rows};

/// Conditions, and whether they have bounds by which matches are looked up.
const CONDITIONS: [(&str, bool); 22] = [
    ("l.a BETWEEN r.a AND r.b", true),
    ("r.a BETWEEN l.a AND l.b", true),
    ("l.a <= r.b AND l.b >= r.a", true),
    ("l.a < r.b AND r.a < l.b AND l.id <> r.id", true),
    ("l.a > r.a", true),
    ("l.a >= r.a AND l.a < r.a + 10", true),
    ("l.a > r.a AND l.a > r.b AND l.b <= r.b", true),
    ("l.a < r.a AND l.b < r.b AND l.id < r.id", true),
    ("l.f <= r.f", true),
    ("l.f < r.f AND l.a > r.a", true),
    ("l.s >= r.s AND l.s < r.s || 'c'", true),
    ("l.d > r.d AND l.d < r.a", true),
    ("l.day >= r.day AND l.a < r.n", true),
    ("l.a > r.a AND (l.s = r.s OR l.id % 3 = r.id % 3)", true),
    ("l.a > r.a AND l.id % 2 = 0", true),
    ("l.a <> r.a", false),
    ("abs(l.a - r.a) < 3", false),
    ("l.a < r.a OR l.f > r.f", false),
    ("l.a = r.a OR l.b = r.b", false),
    ("l.a + r.a > 90", false),
    ("l.id > 5 AND r.id > 5", false),
    ("l.id > 0 AND 100 / l.id <= 100 / r.id", true),
];

/// A side of `count` rows whose texts have about `width` bytes. Some of each column are null; numbers are spread by
/// `step`.
fn side(count: i64, step: i64, width: usize) -> RecordBatch {
    let ids = || 1..=count;
    let number = |id: i64, salt: i64| (id * step + salt) * 7919 % 101;
    let some = |salt: i64, every: i64| ids().map(move |id| ((id + salt) % every != 0).then(|| number(id, salt)));
    let float = |value: i64| match value % 25 {
        0 => -0.0,
        1 => 0.0,
        2 => f64::NAN,
        3 => f64::NEG_INFINITY,
        _ => value as f64 / 3.0,
    };
    let text = |value: i64| format!("{}{}", ["a", "ab", "b", ""][value as usize % 4], "c".repeat(value as usize % 3));
    let padding = ids().map(|id| "x".repeat(width) + &id.to_string());
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(ids())) as _, true),
        ("a", Arc::new(some(0, 9).collect::<Int64Array>()) as _, true),
        ("b", Arc::new(some(3, 7).map(|b| b.map(|b| b + 5)).collect::<Int64Array>()) as _, true),
        ("n", Arc::new(some(1, 8).map(|n| n.map(|n| n as i32)).collect::<Int32Array>()) as _, true),
        ("f", Arc::new(some(5, 10).map(|f| f.map(float)).collect::<Float64Array>()) as _, true),
        ("s", Arc::new(some(2, 13).map(|s| s.map(text)).collect::<StringArray>()) as _, true),
        ("d", Arc::new(some(4, 12).map(|d| d.map(i128::from)).collect::<Decimal128Array>()) as _, true),
        ("day", Arc::new(some(6, 11).map(|day| day.map(|day| day as i32 * 100)).collect::<Date32Array>()) as _, true),
        ("wide", Arc::new(StringArray::from_iter_values(padding)) as _, true),
    ])
    .unwrap()
}

/// A query that says of the rows of a join how many there are, and which.
fn digest(kind: &str, condition: &str, [left, right]: [&str; 2]) -> String {
    let of = |side: &str| {
        format!("count({side}.id) AS n{side}, sum({side}.id) AS s{side}, sum(length({side}.wide)) AS w{side}")
    };
    let columns = match kind {
        kind if kind.starts_with("LEFT S") || kind.starts_with("LEFT A") => of("l"),
        kind if kind.starts_with("RIGHT S") || kind.starts_with("RIGHT A") => of("r"),
        _ => format!("{}, {}, sum(l.id * r.id) AS p, sum(l.a * r.b) AS q", of("l"), of("r")),
    };
    format!("SELECT count(*) AS n, {columns} FROM {left} l {kind} {right} r ON {condition}")
}

fn sessions(memory: usize, sides: &[(&str, RecordBatch)]) -> (DataContext, SessionContext) {
    let ours = context_with(2, |options| options.memory_limit = mib(memory));
    let plain = SessionContext::new();
    for (name, rows) in sides {
        for session in [ours.session(), &plain] {
            session.register_batch(*name, rows.clone()).unwrap();
        }
    }
    (ours, plain)
}

async fn check((ours, plain): &(DataContext, SessionContext), sql: &str) {
    let want = lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());
    assert_eq!(rows(ours, sql).await, want, "{sql}");
}

#[tokio::test]
async fn joins_on_any_condition_give_the_rows_of_plain_datafusion() {
    let sides = [("few", side(60, 1, 1)), ("more", side(300, 13, 1)), ("none", side(0, 1, 1))];
    let sessions = sessions(64, &sides);
    for (condition, bounds) in CONDITIONS {
        for sides in [["few", "more"], ["more", "few"], ["none", "few"], ["few", "none"]] {
            for kind in JOIN_KINDS {
                check(&sessions, &digest(kind, condition, sides)).await;
            }
        }
        let joined = |kind: &str| format!("FROM more l {kind} JOIN few r ON {condition}");
        let marks = format!("SELECT id, EXISTS (SELECT 1 FROM few r WHERE {condition}) OR id < 20 AS m FROM more l");
        let (some, none) = (joined("LEFT SEMI"), joined("LEFT ANTI"));
        let want = format!("SELECT l.id, true AS m {some} UNION ALL SELECT l.id, l.id < 20 AS m {none}");
        let [marks, want] =
            [marks, want].map(|rows| format!("SELECT sum(id), count(*), m FROM ({rows}) GROUP BY m ORDER BY m"));
        let want = lines(&sessions.1.sql(&want).await.unwrap().collect().await.unwrap());
        assert_eq!(rows(&sessions.0, &marks).await, want, "{marks}");
        let explained = rows(&sessions.0, &format!("EXPLAIN {}", digest("JOIN", condition, ["few", "more"]))).await;
        let explained = explained.concat();
        assert_eq!(explained.contains("looked up by"), bounds, "{condition}\n{explained}");
    }
}

/// The left side has some times what is held of it, and what is held has matches for rows that the next has none for.
#[tokio::test]
async fn sides_that_do_not_fit_are_joined_part_by_part() {
    let sessions = sessions(8, &[("large", side(40, 1, 60_000))]);
    for (condition, _) in CONDITIONS.iter().step_by(3) {
        for kind in JOIN_KINDS {
            check(&sessions, &digest(kind, condition, ["large", "large"])).await;
        }
    }
    let sql = format!("EXPLAIN ANALYZE {}", digest("FULL JOIN", "l.a > r.a", ["large", "large"]));
    let explained = rows(&sessions.0, &sql).await;
    let join = explained.iter().find(|line| line.contains("LoopJoinExec")).expect("a loop join");
    assert!(join.contains("parts=") && !join.contains("parts=1,"), "{join}");
}

/// What one comparison keeps from another one, which would fail, is not computed either where matches are looked up.
#[tokio::test]
async fn what_fails_for_rows_that_are_kept_out_is_not_looked_up() {
    let sessions = sessions(64, &[("few", side(60, 1, 1)), ("more", side(300, 13, 1))]);
    for condition in [
        "l.a <> 4 AND 100 / (l.a - 4) >= r.a AND l.b < r.b",
        "l.b > r.b AND r.a <> 4 AND l.a < 100 / (r.a - 4)",
        "r.a <> 4 AND l.id < r.b AND l.b > r.a AND l.a < 100 / (r.a - 4)",
    ] {
        let steady = condition.replace("(l.a - 4)", "nullif(l.a - 4, 0)").replace("(r.a - 4)", "nullif(r.a - 4, 0)");
        for kind in JOIN_KINDS {
            for sides in [["few", "more"], ["more", "few"]] {
                let sql = digest(kind, &steady, sides);
                let want = lines(&sessions.1.sql(&sql).await.unwrap().collect().await.unwrap());
                assert_eq!(rows(&sessions.0, &digest(kind, condition, sides)).await, want, "{kind} {condition}");
            }
        }
    }
}

/// As many rows as a batch may have would be 8 GB.
#[tokio::test]
async fn wide_rows_are_given_a_few_at_a_time() {
    let ours = context_with(2, |options| options.memory_limit = mib(256));
    for (left, right) in [("few", "wide"), ("wide", "few")] {
        let sql = format!(
            "WITH few AS (SELECT id, '' AS s FROM range(1000)),
                  wide AS (SELECT id, repeat('y', 1000000) AS s FROM range(20))
             SELECT count(*), sum(length(l.s) + length(r.s)) FROM {left} l FULL JOIN {right} r ON l.id <= r.id AND l.id + 20 > r.id"
        );
        let matches = if left == "few" { 210 } else { 400 };
        let rows = rows(&ours, &sql).await;
        assert!(rows[0].contains(&format!("|{}", matches * 1_000_000)), "{rows:?}");
    }
}
