//! `DECLARE c CURSOR FOR query`, `FETCH n FROM c`, `CLOSE c`.

use datafusion::common::{Result, not_impl_err, plan_datafusion_err, plan_err};
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::{
    CloseCursor, Declare, DeclareType, FetchDirection, Query, Statement, ValueWithSpan,
};

use super::names::text_of;

/// What is done with a cursor.
pub(super) enum CursorStatement {
    Declare(String, Box<Query>),
    /// So many rows.
    Fetch(String, usize),
    Close(String),
    CloseAll,
}

/// What a statement does with a cursor, if it is for one.
pub(super) fn cursor_statement(statement: &DFStatement) -> Result<Option<CursorStatement>> {
    let DFStatement::Statement(statement) = statement else { return Ok(None) };
    Ok(Some(match statement.as_ref() {
        Statement::Declare { stmts } => match stmts.as_slice() {
            [declared] => declare(declared)?,
            _ => return plan_err!("DECLARE takes one cursor: DECLARE name CURSOR FOR query"),
        },
        Statement::Fetch { into: Some(_), .. } => return not_impl_err!("FETCH .. INTO"),
        Statement::Fetch { name, direction, .. } => CursorStatement::Fetch(text_of(name), rows(direction)?),
        Statement::Close { cursor: CloseCursor::All } => CursorStatement::CloseAll,
        Statement::Close { cursor: CloseCursor::Specific { name } } => CursorStatement::Close(text_of(name)),
        _ => return Ok(None),
    }))
}

fn declare(declared: &Declare) -> Result<CursorStatement> {
    match declared {
        Declare { scroll: Some(true), .. } => not_impl_err!("a cursor that scrolls back; they go forward"),
        Declare { declare_type: Some(DeclareType::Cursor), names, for_query: Some(query), .. } => {
            match names.as_slice() {
                [name] => Ok(CursorStatement::Declare(text_of(name), query.clone())),
                _ => plan_err!("DECLARE takes one cursor: DECLARE name CURSOR FOR query"),
            }
        }
        _ => not_impl_err!("DECLARE of anything but a cursor: DECLARE name CURSOR FOR query"),
    }
}

/// How many rows are fetched.
fn rows(direction: &FetchDirection) -> Result<usize> {
    let number = |limit: &ValueWithSpan| {
        let text = limit.value.to_string();
        text.parse::<usize>().map_err(|_| plan_datafusion_err!("FETCH takes a number of rows, got {text}"))
    };
    match direction {
        FetchDirection::Count { limit } | FetchDirection::Forward { limit: Some(limit) } => number(limit),
        FetchDirection::Next | FetchDirection::Forward { limit: None } => Ok(1),
        FetchDirection::All | FetchDirection::ForwardAll => Ok(usize::MAX),
        other => not_impl_err!("FETCH {other}: cursors go forward"),
    }
}
