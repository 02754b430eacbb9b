//! Plans on a terminal: EXPLAIN as text of the width of the terminal, instead of a table of the width of its longest
//! line.

use std::io::Write;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::Result;

/// Columns of a terminal that does not say how wide it is.
const COLUMNS: usize = 120;
/// By how much a line that goes on is indented further.
const INDENT: usize = 4;

/// Writes the plans of EXPLAIN one below the other.
pub(super) struct PlanWriter {
    out: Box<dyn Write + Send>,
    columns: usize,
}

impl PlanWriter {
    /// Whether a result is one of EXPLAIN.
    pub(super) fn takes(schema: &SchemaRef) -> bool {
        let fields = schema.fields();
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        names == ["plan_type", "plan"] && fields.iter().all(|field| *field.data_type() == DataType::Utf8)
    }

    /// Writes to a terminal.
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        let columns = console::Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| usize::from(columns));
        Self { out, columns }
    }

    /// Writes some plans.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let (types, plans) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        for (name, plan) in types.iter().zip(plans) {
            writeln!(self.out, "-- {}", name.unwrap_or_default())?;
            for line in plan.unwrap_or_default().lines() {
                for part in wrapped(line, self.columns) {
                    writeln!(self.out, "{part}")?;
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Ends the result.
    pub(super) fn end(mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }
}

/// A line in parts of at most so many columns, if there is room beside its indentation.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let indent = line.chars().take_while(|c| *c == ' ').count() + INDENT;
    if columns < 2 * indent + 2 {
        return vec![line.to_owned()];
    }
    let mut parts = Vec::new();
    let mut rest: Vec<char> = line.chars().collect();
    while rest.len() > columns {
        // After a comma or a space if there is one, but not within the indentation.
        let at = rest[..columns].iter().rposition(|c| *c == ' ' || *c == ',').map(|at| at + 1);
        let at = at.filter(|at| *at > indent).unwrap_or(columns);
        let next = rest.split_off(at);
        parts.push(rest.iter().collect::<String>().trim_end().to_owned());
        let go_on = next.into_iter().skip_while(|c| *c == ' ');
        rest = std::iter::repeat_n(' ', indent).chain(go_on).collect();
    }
    parts.push(rest.into_iter().collect());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_go_on_below() {
        assert_eq!(wrapped("  Filter: a", 40), ["  Filter: a"]);
        assert_eq!(
            wrapped("  ReadExec: aaaa, bbbb, cccc, dddd", 20),
            ["  ReadExec: aaaa,", "      bbbb, cccc,", "      dddd"]
        );
        assert_eq!(wrapped("aaaaaaaaaaaaaaaaaaaa", 12), ["aaaaaaaaaaaa", "    aaaaaaaa"]);
        assert_eq!(wrapped("                    aaaaaaa", 24), ["                    aaaaaaa"]);
    }
}
