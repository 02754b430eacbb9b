//! The trait of table functions, and the same without types.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, config_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};

use super::{Arguments, Parameter, Values};

/// How many tables a function takes, before its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// None.
    None,
    /// One.
    One,
    /// Two or more; its other arguments are given by name.
    Several,
}

impl Tables {
    /// The fewest that a call gives.
    pub fn min(self) -> usize {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Several => 2,
        }
    }

    /// The most that a call gives.
    pub fn max(self) -> usize {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Several => usize::MAX,
        }
    }
}

/// A function that stands in FROM: `name(tables, arguments)`.
///
/// Applications register theirs with
/// [`DataContext::register_table_function`](crate::DataContext::register_table_function).
pub trait TableFunction: Debug + Send + Sync + 'static {
    /// Its arguments: a struct made by [`arguments!`](crate::arguments).
    type Arguments: Arguments;

    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// What it does, in a sentence for its users.
    fn about(&self) -> &'static str;

    /// The tables that it takes.
    fn tables(&self) -> Tables {
        Tables::None
    }

    /// Whether a call with so many arguments by position and by name is for this function. A function of DataFusion
    /// with the same name gets the others.
    fn takes(&self, _by_position: usize, _by_name: usize) -> bool {
        true
    }

    /// Gives a call what it does not say and is known elsewhere.
    ///
    /// # Errors
    ///
    /// Where that is not to be found.
    fn complete(&self, _values: &mut Values, _session: &SessionState) -> Result<()> {
        Ok(())
    }

    /// The plan of a call.
    ///
    /// # Errors
    ///
    /// Where the arguments make no sense together.
    fn plan(&self, arguments: Self::Arguments, planning: Planning<'_>) -> Result<LogicalPlan>;

    /// The call that gives such a plan: its tables and its arguments. `None` where the root of the plan is nothing of
    /// this function.
    ///
    /// # Errors
    ///
    /// Where the plan is of this function and no call can give it.
    fn call_of(&self, _plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, Self::Arguments)>> {
        Ok(None)
    }
}

/// What a call is planned with.
#[derive(Debug)]
pub struct Planning<'a> {
    /// The tables of the call, as many as the function takes.
    pub tables: Vec<LogicalPlan>,
    /// Settings, object stores and extensions of the session.
    pub session: &'a SessionState,
    /// What the rows are called where the query does not say: the relation of the columns.
    pub relation: &'a str,
}

impl Planning<'_> {
    /// The table of a function that takes one.
    ///
    /// # Errors
    ///
    /// Where the call has none.
    pub fn table(self) -> Result<LogicalPlan> {
        match self.tables.into_iter().next() {
            Some(table) => Ok(table),
            None => plan_err!("a table is missing"),
        }
    }

    /// The scan of a table.
    ///
    /// # Errors
    ///
    /// Where the table has columns that no plan can have, like two of one name.
    pub fn scan(&self, table: Arc<dyn TableProvider>) -> Result<LogicalPlan> {
        LogicalPlanBuilder::scan(TableReference::bare(self.relation), provider_as_source(table), None)?.build()
    }
}

/// An extension of a session.
pub(crate) fn extension_of<T: Send + Sync + 'static>(session: &SessionState) -> Result<Arc<T>> {
    match session.config().get_extension::<T>() {
        Some(extension) => Ok(extension),
        None => config_err!("the session has no {}", std::any::type_name::<T>()),
    }
}

/// A call of a table function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Call {
    /// The tables.
    pub tables: Vec<LogicalPlan>,
    /// The values of the arguments, and the name of the function.
    pub values: Values,
    /// The arguments that the function has.
    pub parameters: Vec<Parameter>,
}

/// A [`TableFunction`] whose arguments are values.
pub(crate) trait AnyTableFunction: Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn tables(&self) -> Tables;
    fn takes(&self, by_position: usize, by_name: usize) -> bool;
    fn parameters(&self) -> Vec<Parameter>;
    /// Fails where values are missing or not of the types of their arguments.
    fn check(&self, values: &Values, session: &SessionState) -> Result<()>;
    fn plan(&self, values: &Values, planning: Planning<'_>) -> Result<LogicalPlan>;
    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<Call>>;
}

/// What values mean, with what they do not say.
fn arguments_of<T: TableFunction>(function: &T, values: &Values, session: &SessionState) -> Result<T::Arguments> {
    let mut values = values.clone();
    function.complete(&mut values, session)?;
    T::Arguments::from_values(&values)
}

impl<T: TableFunction> AnyTableFunction for T {
    fn name(&self) -> &'static str {
        TableFunction::name(self)
    }

    fn about(&self) -> &'static str {
        TableFunction::about(self)
    }

    fn tables(&self) -> Tables {
        TableFunction::tables(self)
    }

    fn takes(&self, by_position: usize, by_name: usize) -> bool {
        TableFunction::takes(self, by_position, by_name)
    }

    fn parameters(&self) -> Vec<Parameter> {
        T::Arguments::parameters()
    }

    fn check(&self, values: &Values, session: &SessionState) -> Result<()> {
        arguments_of(self, values, session).map(|_| ())
    }

    fn plan(&self, values: &Values, planning: Planning<'_>) -> Result<LogicalPlan> {
        TableFunction::plan(self, arguments_of(self, values, planning.session)?, planning)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<Call>> {
        let Some((tables, arguments)) = TableFunction::call_of(self, plan)? else {
            return Ok(None);
        };
        let mut values = Values::new(TableFunction::name(self));
        arguments.to_values(&mut values)?;
        Ok(Some(Call { tables, values, parameters: T::Arguments::parameters() }))
    }
}
