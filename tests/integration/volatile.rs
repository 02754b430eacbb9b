use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use blockyard::prelude::*;
use datafusion::arrow::array::{AsArray, Float64Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

use crate::fixtures::{context_with, mib};

/// Rows of the table of these tests: enough that a sort of them becomes an exchange.
const ROWS: i64 = 300_000;

/// `ticket()`: each row gets a number of its own, and so a row that is evaluated twice gets two.
#[derive(Debug)]
struct Ticket {
    name: &'static str,
    signature: Signature,
    next: Arc<AtomicI64>,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Ticket {}

impl std::hash::Hash for Ticket {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Ticket {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows as i64;
        let first = self.next.fetch_add(rows, SeqCst);
        // Neighbours are far apart, so that an order by tickets is another one.
        let tickets = (first..first + rows).map(|ticket| ticket * 7919 % 1_000_003);
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from_iter_values(tickets))))
    }
}

/// A session with little memory and a table `t (id)` of files; `ticket()` counts the rows for which it is called.
async fn session(directory: &std::path::Path) -> (DataContext, Arc<AtomicI64>) {
    let context = context_with(2, |options| options.memory_limit = mib(32));
    let next = Arc::<AtomicI64>::default();
    let add = |name, volatility| {
        let signature = Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::Any(1)], volatility);
        let ticket = Ticket { name, signature, next: Arc::clone(&next) };
        context.session().register_udf(ScalarUDF::new_from_impl(ticket));
    };
    add("ticket", Volatility::Volatile);
    // It lies: nobody can know that it gives other values each time.
    add("liar", Volatility::Immutable);
    let to = directory.join("t");
    let rows = context.range_in_blocks(ROWS as u64, 12).unwrap();
    rows.write_parquet(to.to_str().unwrap()).await.unwrap();
    let view = format!("CREATE VIEW t AS SELECT * FROM read_parquet('{}')", to.display());
    context.sql(&view).await.unwrap().take_all().await.unwrap();
    next.store(0, SeqCst);
    (context, next)
}

/// The one number that a query gives.
async fn number(context: &DataContext, sql: &str) -> f64 {
    let batches = context.sql(sql).await.unwrap().take_all().await.unwrap();
    let batch = batches.iter().find(|batch| batch.num_rows() == 1).expect(sql);
    let column = batch.column(0);
    match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().value(0) as f64,
        _ => (column.as_any() as &dyn Any)
            .downcast_ref::<Float64Array>()
            .map_or_else(|| column.as_primitive::<Float64Type>().value(0), |values| values.value(0)),
    }
}

/// The keys by which all tests sort.
const KEYS: &[&str] = &["random()", "uuid()", "ticket()", "ticket(id) % 100, uuid()"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_sorted_by_volatile_keys_are_all_written_and_all_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (context, _) = session(directory.path()).await;
    for (number_of_key, key) in KEYS.iter().enumerate() {
        let to = directory.path().join(format!("out{number_of_key}")).display().to_string();
        let statements = [
            format!("COPY (SELECT * FROM t ORDER BY {key}) TO '{to}' STORED AS PARQUET"),
            format!("CREATE TABLE stored{number_of_key} AS SELECT * FROM t ORDER BY {key}"),
            format!(
                "CREATE VIEW mapped{number_of_key} AS SELECT * FROM map_batches((SELECT * FROM t ORDER BY {key}), 'identity')"
            ),
        ];
        for statement in &statements {
            context.sql(statement).await.unwrap().take_all().await.unwrap();
        }
        let tables =
            [format!("read_parquet('{to}')"), format!("stored{number_of_key}"), format!("mapped{number_of_key}")];
        for table in tables {
            for (what, wanted) in [("count(*)", ROWS), ("count(DISTINCT id)", ROWS), ("sum(id)", ROWS * (ROWS - 1) / 2)]
            {
                let got = number(&context, &format!("SELECT {what} FROM {table}")).await;
                assert_eq!(got, wanted as f64, "{what} by {key} from {table}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volatile_expression_is_evaluated_once_per_row() {
    let directory = tempfile::tempdir().unwrap();
    let (context, next) = session(directory.path()).await;
    let n = ROWS as f64;
    // What is asked, and what must come out whatever the tickets are.
    let cases = [
        ("SELECT count(DISTINCT id) FROM (SELECT id FROM t ORDER BY ticket(id) DESC LIMIT 1000)", 1000.0),
        ("SELECT count(DISTINCT n) FROM (SELECT row_number() OVER (ORDER BY ticket()) AS n FROM t)", n),
        ("SELECT round(sum(1.0 / c)) FROM (SELECT count(*) OVER (PARTITION BY ticket() % 10) AS c FROM t)", 10.0),
        ("SELECT count(*) FROM (SELECT count(*) AS c FROM t GROUP BY ticket() % 10)", 10.0),
        ("SELECT sum(c) FROM (SELECT count(*) AS c FROM t GROUP BY ticket() % 10)", n),
        ("SELECT count(a) FROM (SELECT first_value(id ORDER BY ticket()) AS a FROM t GROUP BY id % 3)", 3.0),
        ("SELECT max(k % 2) FROM (SELECT id, ticket() AS k FROM t) WHERE k % 2 = 0", 0.0),
        ("SELECT count(id) FROM repartition((SELECT id, ticket() AS k FROM t), 4, keys => 'k', sort => true)", n),
        ("SELECT count(id) FROM random_shuffle((SELECT id, ticket() AS k FROM t), seed => 1) WHERE k >= 0", n),
        (
            "SELECT count(*) FROM (SELECT id, ticket() AS k FROM t) AS l \
             JOIN (SELECT id AS number FROM range(1000003)) AS r ON l.k = r.number",
            n,
        ),
    ];
    for spilling in [false, true] {
        context.configure(|options| options.prefer_spilling_joins = spilling).unwrap();
        for (sql, wanted) in cases {
            next.store(0, SeqCst);
            assert_eq!(number(&context, sql).await, wanted, "{sql}");
            assert_eq!(next.load(SeqCst), ROWS, "rows for which it was called: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_on_volatile_keys_sees_one_value_per_row() {
    let directory = tempfile::tempdir().unwrap();
    let (context, next) = session(directory.path()).await;
    for spilling in [false, true] {
        context.configure(|options| options.prefer_spilling_joins = spilling).unwrap();
        let sql = "SELECT count(*) FROM t AS l JOIN range(1000003) AS r ON ticket(l.id) = r.id";
        next.store(0, SeqCst);
        assert_eq!(number(&context, sql).await, ROWS as f64, "{spilling}");
        assert_eq!(next.load(SeqCst), ROWS, "{spilling}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_function_that_lies_about_its_volatility_lose_no_row_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    let (context, _) = session(directory.path()).await;
    let to = directory.path().join("out");
    let copy = format!("COPY (SELECT * FROM t ORDER BY liar(id)) TO '{}' STORED AS PARQUET", to.display());
    let error = context.sql(&copy).await.unwrap().take_all().await.unwrap_err().to_string();
    assert!(error.contains("scheme") || error.contains("range(liar("), "{error}");
    assert!(error.contains(&format!("took {ROWS} rows and gave")), "{error}");
    assert!(crate::fixtures::files(&to).is_empty(), "{:?}", crate::fixtures::files(&to));
}
