use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::fixtures::{context_with, lines, mib};

const FACTS: [&str; 4] = ["id", "shop", "item", "v"];
const SHOPS: [&str; 3] = ["s_id", "s_kind", "s_name"];
const ITEMS: [&str; 3] = ["i_id", "i_kind", "i_size"];

/// How a table stands in FROM: plain DataFusion reads it as it is.
#[derive(Debug, Clone)]
enum Through {
    Table,
    Map,
    Shuffle,
    Repartition,
    /// Filtered to a constant, sorted, and filtered again.
    Filtered(i64),
}

/// A join with another table.
#[derive(Debug, Clone)]
struct Join {
    table: &'static str,
    kind: &'static str,
    through: Through,
}

/// A query. Columns are drawn from those of the tables that it has.
#[derive(Debug, Clone)]
struct Query {
    facts: Through,
    joins: Vec<Join>,
    filters: Vec<(Index, &'static str, i64)>,
    groups: Option<Vec<Index>>,
    having: bool,
    order: Vec<(Index, bool)>,
    limit: Option<usize>,
}

fn through() -> impl Strategy<Value = Through> {
    prop_oneof![
        Just(Through::Table),
        Just(Through::Map),
        Just(Through::Shuffle),
        Just(Through::Repartition),
        (0i64..3).prop_map(Through::Filtered),
    ]
}

fn join(table: &'static str) -> impl Strategy<Value = Join> {
    let kind = select(vec!["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
    (kind, through()).prop_map(move |(kind, through)| Join { table, kind, through })
}

fn query() -> impl Strategy<Value = Query> {
    let joins = prop_oneof![
        Just(Vec::new()),
        join("shops").prop_map(|join| vec![join]),
        (join("shops"), join("items")).prop_map(|(shops, items)| vec![shops, items]),
        (join("items"), join("shops")).prop_map(|(items, shops)| vec![items, shops]),
    ];
    let operator = select(vec!["=", "=", "=", "<", ">=", "IS NOT DISTINCT FROM"]);
    let filters = proptest::collection::vec((any::<Index>(), operator, 0i64..4), 0..4);
    let groups = proptest::option::of(proptest::collection::vec(any::<Index>(), 1..4));
    let order = proptest::collection::vec((any::<Index>(), any::<bool>()), 0..4);
    let limit = proptest::option::of(1usize..20);
    (through(), joins, filters, groups, any::<bool>(), order, limit).prop_map(
        |(facts, joins, filters, groups, having, order, limit)| Query {
            facts,
            joins,
            filters,
            groups,
            having,
            order,
            limit,
        },
    )
}

impl Through {
    fn relation(&self, table: &str, ours: bool) -> String {
        let first = match table {
            "facts" => "shop",
            "shops" => "s_kind",
            _ => "i_kind",
        };
        match self {
            Self::Filtered(n) => {
                // DataFusion would take the column for constant, also where an outer join pads it with nulls, and sort
                // wrongly.
                let (source, value) = match ours {
                    true => (format!("map_batches({table}, 'identity')"), first.to_owned()),
                    false => (table.to_owned(), format!("abs({first})")),
                };
                format!("(SELECT * FROM (SELECT * FROM {source} WHERE {value} = {n} ORDER BY {first}) AS f) AS {table}")
            }
            Self::Map if ours => format!("map_batches({table}, 'identity') AS {table}"),
            Self::Shuffle if ours => format!("random_shuffle({table}, seed => 7) AS {table}"),
            Self::Repartition if ours => format!("repartition({table}, 3) AS {table}"),
            _ => table.to_owned(),
        }
    }
}

impl Query {
    fn sql(&self, ours: bool) -> String {
        let mut columns = FACTS.to_vec();
        let mut from = self.facts.relation("facts", ours);
        for join in &self.joins {
            let (on, of_table) = match join.table {
                "shops" => ("shop = s_id", &SHOPS),
                _ => ("item = i_id", &ITEMS),
            };
            columns.extend(of_table);
            from = format!("{from} {} {} ON {on}", join.kind, join.through.relation(join.table, ours));
        }
        let names: Vec<&str> = match &self.groups {
            Some(groups) => {
                let mut keys: Vec<&str> = groups.iter().map(|key| *key.get(&columns)).collect();
                keys.sort_unstable();
                keys.dedup();
                keys
            }
            None => columns.clone(),
        };
        let text = |name: &&str| ["s_name", "i_size"].contains(name);
        let filters = self.filters.iter().map(|(column, operator, value)| match column.get(&columns) {
            name if text(name) => format!("({name} {operator} '{value}')"),
            name => format!("({name} {operator} {value})"),
        });
        let filters: Vec<String> = filters.collect();
        let mut sql = format!("SELECT {}", names.join(", "));
        let mut outputs = names.clone();
        if self.groups.is_some() {
            sql = format!("{sql}, sum(v) AS total, count(*) AS n");
            outputs.extend(["total", "n"]);
        }
        sql = format!("{sql} FROM {from}");
        if !filters.is_empty() {
            sql = format!("{sql} WHERE {}", filters.join(" AND "));
        }
        if self.groups.is_some() {
            sql = format!("{sql} GROUP BY {}", names.join(", "));
            if self.having {
                sql = format!("{sql} HAVING count(*) = 1");
            }
        }
        let mut order: Vec<(&str, bool)> = self.order.iter().map(|(key, down)| (*key.get(&outputs), *down)).collect();
        if self.limit.is_some() {
            // All columns, so that what is cut off does not depend on anything else.
            order.extend(outputs.iter().map(|name| (*name, false)));
        }
        let mut seen = Vec::new();
        order.retain(|(name, _)| {
            !seen.contains(name) && {
                seen.push(*name);
                true
            }
        });
        if !order.is_empty() {
            let keys = order.iter().map(|(name, down)| format!("{name} {}", if *down { "DESC" } else { "ASC" }));
            sql = format!("{sql} ORDER BY {}", keys.collect::<Vec<_>>().join(", "));
        }
        match self.limit {
            Some(limit) => format!("{sql} LIMIT {limit}"),
            None => sql,
        }
    }
}

/// Two batches of each table. Numbers are few, so that each is met often; some are null.
fn tables() -> Vec<(&'static str, Vec<RecordBatch>)> {
    let number = |row: i64, factor: i64, kinds: i64| match (row * factor) % 11 {
        10 => None,
        n => Some(n % kinds),
    };
    let table = |columns: [&str; 4], rows: std::ops::Range<i64>, unique: bool| {
        let half = (rows.start + rows.end) / 2;
        let batch = |rows: std::ops::Range<i64>| {
            let ints = |factor, kinds| Arc::new(rows.clone().map(|r| number(r, factor, kinds)).collect::<Int64Array>());
            let texts = rows.clone().map(|r| number(r, 3, 4).map(|n| n.to_string())).collect::<StringArray>();
            let key = Arc::new(rows.clone().map(Some).collect::<Int64Array>()) as ArrayRef;
            let arrays: Vec<(&str, ArrayRef)> = match unique {
                true => vec![(columns[0], key), (columns[1], ints(5, 3)), (columns[2], Arc::new(texts))],
                false => {
                    vec![
                        (columns[0], key),
                        (columns[1], ints(3, 6)),
                        (columns[2], ints(7, 6)),
                        (columns[3], ints(2, 4)),
                    ]
                }
            };
            RecordBatch::try_from_iter_with_nullable(arrays.into_iter().map(|(name, array)| (name, array, true)))
                .unwrap()
        };
        vec![batch(rows.start..half), batch(half..rows.end)]
    };
    vec![
        ("facts", table(FACTS, 0..120, false)),
        ("shops", table([SHOPS[0], SHOPS[1], SHOPS[2], ""], 0..5, true)),
        ("items", table([ITEMS[0], ITEMS[1], ITEMS[2], ""], 0..7, true)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is constant, and whatever the rules do: the query is planned, and gives the rows of plain DataFusion.
    #[test]
    fn random_star_queries_equal_plain_datafusion(
        query in query(),
        threads in 1usize..4,
        fuse in any::<bool>(),
        spilling_joins in any::<bool>(),
        limit in prop_oneof![Just(16usize), Just(4096)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(threads, |o| {
                o.optimize_fuse_stages = fuse;
                o.prefer_spilling_joins = spilling_joins;
                o.memory_limit = mib(limit);
            });
            let oracle = SessionContext::new();
            for (name, batches) in tables() {
                let table = MemTable::try_new(batches[0].schema(), vec![batches.clone()]).unwrap();
                oracle.register_table(name, Arc::new(table)).unwrap();
                context.register_dataset(name, &context.from_batches(batches).unwrap()).unwrap();
            }
            let (ours, plain) = (query.sql(true), query.sql(false));
            let got = async { context.sql(&ours).await?.take_all().await }.await;
            prop_assert!(got.is_ok(), "{ours}\n{}", got.unwrap_err());
            let (mut got, mut want) = (lines(&got.unwrap()), lines(&oracle.sql(&plain).await.unwrap().collect().await.unwrap()));
            if query.limit.is_none() {
                got.sort();
                want.sort();
            }
            prop_assert_eq!(got, want, "{}", ours);
            Ok(())
        })?;
    }
}
