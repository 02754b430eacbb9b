use blockyard::arguments;
use blockyard::call::{Planning, TableFunction, Tables};
use blockyard::prelude::*;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};

use crate::fixtures::{context, ints};

arguments! {
    /// Which rows stay.
    #[derive(Debug)]
    pub struct EveryArguments {
        /// One row of so many.
        pub n: u64,
        /// The column that numbers the rows.
        pub column: String,
        /// The number of the first row that stays.
        pub from: Option<u64>,
        /// Whether the others stay instead.
        pub others: bool = default,
    }
}

/// `every(t, n, column)`.
#[derive(Debug)]
struct Every;

impl TableFunction for Every {
    type Arguments = EveryArguments;

    fn name(&self) -> &'static str {
        "every"
    }

    fn about(&self) -> &'static str {
        "One row of n."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: EveryArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let EveryArguments { n, column, from, others } = arguments;
        let number = col(column) - lit(from.unwrap_or(0) as i64);
        let stays = number.clone().gt_eq(lit(0_i64)).and((number % lit(n as i64)).eq(lit(0_i64)));
        let stays = if others { !stays } else { stays };
        LogicalPlanBuilder::from(planning.table()?).filter(stays)?.alias("every")?.build()
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, EveryArguments)>> {
        let LogicalPlan::SubqueryAlias(alias) = plan else { return Ok(None) };
        let LogicalPlan::Filter(filter) = alias.input.as_ref() else { return Ok(None) };
        let arguments = EveryArguments { n: 10, column: "id".to_owned(), from: None, others: false };
        Ok(Some((vec![filter.input.as_ref().clone()], arguments)))
    }
}

async fn rows(context: &DataContext, sql: &str) -> Vec<i64> {
    ints(&context.sql(sql).await.unwrap().take_all().await.unwrap(), "id")
}

#[tokio::test]
async fn a_table_function_of_an_application_is_like_those_that_are_there() {
    let context = context();
    context.register_table_function(Every).unwrap();
    assert_eq!(
        rows(&context, "SELECT * FROM every(range(40), 10, 'id', from => 7) ORDER BY id").await,
        [7, 17, 27, 37]
    );
    let over_calls =
        "SELECT * FROM EVERY(random_shuffle(range(5)), n => 2, column => 'id', others => true) ORDER BY id";
    assert_eq!(rows(&context, over_calls).await, [1, 3]);
    // Ours take what it gives, and it has the name of its table.
    let joined = "SELECT range.id FROM every(range(20), 10, 'id'), range(15) WHERE range.id = range_2.id ORDER BY 1";
    assert_eq!(rows(&context, joined).await, [0, 10]);
    for (call, text) in [
        ("every(range(5), 2, colum => 'id')", "unknown argument 'colum' of every. Did you mean 'column'?"),
        ("every(range(5), 2)", "every needs the argument 'column'"),
        (
            "every(range(5), 'two', 'id')",
            "argument 'n' of every must be a whole number that is not negative, got 'two'",
        ),
        ("every(2, 3, 'id')", "every needs a table"),
        ("evry(range(5), 2, 'id')", "Did you mean 'every'?"),
    ] {
        let error = context.sql(&format!("SELECT * FROM {call}")).await.unwrap_err().to_string();
        assert!(error.contains(text), "{call}: {error}");
    }
    let taken = context.register_table_function(Every).unwrap_err().to_string();
    assert!(taken.contains("there is a table function 'every' already"), "{taken}");
}

#[tokio::test]
async fn its_plan_goes_back_to_sql_as_its_call() {
    let context = context();
    context.register_table_function(Every).unwrap();
    let dataset = context.sql("SELECT * FROM every(range(30, override_num_blocks => 3), 10, 'id')").await.unwrap();
    let sql = dataset.to_sql().unwrap();
    assert!(sql.contains("FROM range(30, override_num_blocks => 3)), 10, 'id')"), "{sql}");
    assert_eq!(rows(&context, &sql).await, [0, 10, 20]);
}

#[tokio::test]
async fn sql_and_rust_take_the_same_options() {
    use blockyard::call::{Arguments, Value, Values};
    use blockyard::{ReadCsvOptions, ShuffleOptions};

    let mut values = Values::new("read_csv");
    values.put("delimiter", Value::Text(";".to_owned()));
    values.put("types", Value::Text("a double, \"B\" varchar".to_owned()));
    let options = ReadCsvOptions::from_values(&values).unwrap();
    assert_eq!((options.delimiter, options.types.len(), options.types[1].0.as_str()), (Some(';'), 2, "B"));
    let mut again = Values::new("read_csv");
    options.to_values(&mut again).unwrap();
    assert_eq!(again.get("delimiter"), values.get("delimiter"));
    assert_eq!(again.get("include_paths"), None, "what is not said is not written");

    let mut values = Values::new("random_shuffle");
    values.put("epoch", Value::Number("1".to_owned()));
    let error = ShuffleOptions::from_values(&values).unwrap_err().to_string();
    assert!(error.contains("random_shuffle needs a seed for an epoch"), "{error}");
}
