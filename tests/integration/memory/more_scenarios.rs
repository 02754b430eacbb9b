//! Plans that read the same rows several times, and those of which a group, a partition or the first rows have much.

use super::{Comparison, Input, Scenario, scenario};

/// Plans that read the same rows several times at once.
pub(super) fn of_several_reads(rows: &Input) -> Vec<Scenario> {
    let read = "read_parquet('{rows}/')";
    let all = "count(*) AS n, sum(v) AS v, min(s) AS s";
    let branches: Vec<_> =
        (0..10).map(|i| format!("SELECT id + {i} AS id, v, s FROM {read} WHERE g % 10 = {i}")).collect();
    let sorted: Vec<_> =
        (0..40).map(|i| format!("SELECT * FROM (SELECT * FROM {read} WHERE g % 40 = {i} ORDER BY v, id)")).collect();
    let shuffled: Vec<_> = (0..24)
        .map(|i| format!("SELECT id, v, s FROM random_shuffle((SELECT * FROM {read} WHERE g % 24 = {i}), seed => {i})"))
        .collect();
    let of = |name, statement: &str| scenario(name, &[rows], statement);
    vec![
        of("union_of_ten", &format!("SELECT {all} FROM ({})", branches.join(" UNION ALL "))),
        of(
            "forty_sorted_branches",
            &format!(
                "SELECT sum(place * v) AS ordered, {all} FROM (SELECT v, s, row_number() OVER () AS place FROM ({}))",
                sorted.join(" UNION ALL ")
            ),
        ),
        of(
            "many_shuffles",
            &format!(
                "SELECT sum(place * (id % 100)) AS ordered, {all} FROM (SELECT *, row_number() OVER () AS place FROM ({}))",
                shuffled.join(" UNION ALL ")
            ),
        ),
        of(
            "local_shuffle",
            &format!(
                "SELECT sum(place * v) AS ordered, {all} FROM (SELECT v, s, row_number() OVER () AS place
                 FROM local_shuffle({read}, 500000, seed => 7))"
            ),
        ),
        of("zip", &format!("SELECT {all}, sum(v_1) AS w, max(s_1) AS t FROM zip({read}, {read})")),
        of("mix", &format!("SELECT {all} FROM mix({read}, {read}, {read})")),
        of("except", &format!("SELECT {all} FROM (SELECT * FROM {read} EXCEPT SELECT * FROM {read} WHERE v % 2 = 0)")),
        of(
            "intersect",
            &format!("SELECT {all} FROM (SELECT * FROM {read} INTERSECT SELECT * FROM {read} WHERE v % 2 = 0)"),
        ),
        of(
            "not_in",
            &format!(
                "SELECT {all} FROM {read} WHERE s NOT IN (SELECT CASE WHEN v >= 0 THEN s END FROM {read} WHERE v % 2 = 0)"
            ),
        ),
    ]
}

/// Aggregates, sorts and windows of which each group, or the first rows, or the partition, has much.
pub(super) fn of_many_values(rows: &Input) -> Vec<Scenario> {
    let read = "read_parquet('{rows}/')";
    let of = |name, statement: &str| scenario(name, &[rows], statement);
    let ordered = |name, statement: &str| Scenario { comparison: Comparison::Ordered, ..of(name, statement) };
    vec![
        of("distinct_texts", &format!("SELECT count(DISTINCT s) AS s, count(*) AS n, avg(v) AS v FROM {read}")),
        ordered(
            "distinct_texts_by_group",
            &format!(
                "SELECT g % 5 AS g, count(DISTINCT s) AS s, count(DISTINCT k) AS k, count(DISTINCT v) AS v
                 FROM {read} GROUP BY g % 5 ORDER BY 1"
            ),
        ),
        of(
            "string_agg",
            &format!(
                "SELECT count(*) AS n, sum(length(t)) AS t FROM (SELECT string_agg(s, ',') AS t FROM {read} GROUP BY g)"
            ),
        ),
        of(
            "array_agg_unnest",
            &format!(
                "SELECT count(*) AS n, min(s) AS s FROM (SELECT unnest(texts) AS s
                 FROM (SELECT array_agg(s) AS texts FROM {read} GROUP BY g))"
            ),
        ),
        ordered("median_by_group", &format!("SELECT g, median(v) AS v FROM {read} GROUP BY g ORDER BY g")),
        of("median", &format!("SELECT median(v) AS v FROM {read}")),
        ordered("deep_offset", &format!("SELECT id, s FROM {read} ORDER BY s, id LIMIT 5 OFFSET 200000")),
        of(
            "first_rows",
            &format!("SELECT count(*) AS n, max(s) AS s FROM (SELECT * FROM {read} ORDER BY v, id LIMIT 150000)"),
        ),
        of(
            "window_all_rows",
            &format!(
                "SELECT count(*) AS n, max(total) AS total, min(s) AS s FROM (SELECT s, sum(price) OVER () AS total FROM {read})"
            ),
        ),
    ]
}
