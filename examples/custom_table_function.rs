//! A table function of your own, `every(t, n, column)`, called from SQL.
//!
//! ```sh
//! cargo run --example custom_table_function
//! ```

use blockyard::arguments;
use blockyard::call::{Planning, TableFunction, Tables};
use blockyard::prelude::*;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};

arguments! {
    /// Which rows are left out.
    #[derive(Debug)]
    pub struct EveryArguments {
        /// One row of so many stays.
        pub n: u64,
        /// The column that numbers the rows.
        pub column: String,
        /// The number of the first row that stays; 0 if not said.
        pub from: Option<u64>,
    }
}

/// `every(t, n, column => 'id')`: rows whose number leaves nothing when it is divided by n.
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
        let EveryArguments { n, from, column } = arguments;
        let number = col(column) - lit(from.unwrap_or(0) as i64);
        let stays = number.clone().gt_eq(lit(0_i64)).and((number % lit(n as i64)).eq(lit(0_i64)));
        LogicalPlanBuilder::from(planning.table()?).filter(stays)?.build()
    }
}

/// A call of it, and the error of a wrong one.
pub(crate) async fn run() -> Result<String> {
    let context = DataContext::new()?;
    context.register_table_function(Every)?;
    let rows =
        context.sql("SELECT count(*) AS n, sum(id) AS sum FROM every(range(1000), 100, 'id', from => 7)").await?;

    // Its errors are those of every table function.
    let wrong = context.sql("SELECT * FROM every(range(1000), 100, column => 'id', form => 7)").await;
    let wrong = wrong.err().map_or("no error".to_owned(), |e| e.to_string());
    Ok(format!("{}\n{wrong}", rows.show(5).await?))
}

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", run().await?);
    Ok(())
}
