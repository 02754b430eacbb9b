//! A format of your own that datasets are written in: tables of Markdown, from SQL and from Rust.
//!
//! ```sh
//! cargo run --example custom_write_format
//! ```

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use blockyard::prelude::*;
use blockyard::sinks::{EncodeRows, WriteFormat};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};

/// Tables of Markdown. Nulls are shown as this text.
#[derive(Debug)]
struct Markdown {
    null: String,
}

impl WriteFormat for Markdown {
    fn name(&self) -> &'static str {
        "Markdown"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["md"]
    }

    // COPY t TO 'tables/' STORED AS MD OPTIONS (null 'none')
    fn with_options(&self, options: &HashMap<String, String>) -> Result<Option<Arc<dyn WriteFormat>>> {
        let mut format = Self { null: self.null.clone() };
        for (option, value) in options {
            match option.as_str() {
                "null" => format.null.clone_from(value),
                _ => return Err(DataFusionError::Plan(format!("Markdown files have no option '{option}', only null"))),
            }
        }
        Ok(Some(Arc::new(format)))
    }

    fn encoder(
        &self,
        schema: &SchemaRef,
        mut file: Box<dyn Write + Send>,
        _buffer_bytes: usize,
    ) -> Result<Box<dyn EncodeRows>> {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        writeln!(file, "| {} |\n|{}", names.join(" | "), "---|".repeat(names.len()))?;
        Ok(Box::new(MarkdownRows { file, null: self.null.clone(), rows: 0 }))
    }
}

struct MarkdownRows {
    file: Box<dyn Write + Send>,
    null: String,
    rows: usize,
}

impl EncodeRows for MarkdownRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let options = FormatOptions::default().with_null(&self.null);
        let columns = rows.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..rows.num_rows() {
            let values: Vec<String> =
                columns.iter().map(|column| column.value(row).to_string().replace('|', "\\|")).collect();
            writeln!(self.file, "| {} |", values.join(" | "))?;
        }
        self.rows += rows.num_rows();
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<usize> {
        self.file.flush()?;
        Ok(self.rows)
    }
}

/// Writes a table into `directory` from Rust, and then another in its place from SQL, which it returns.
pub(crate) async fn run(directory: &str) -> Result<String> {
    let context = DataContext::new()?;
    context.register_write_format(Markdown { null: String::new() })?;
    let rows = context.range(3)?.write("md", directory).await?;
    assert_eq!(rows, 3);
    let copy = format!(
        "COPY (VALUES (1, 'a|b'), (2, NULL)) TO '{directory}/' STORED AS MD OPTIONS (mode 'overwrite', null 'none')"
    );
    context.sql(&copy).await?.take_all().await?;
    let mut tables = String::new();
    for file in std::fs::read_dir(directory)? {
        tables += &std::fs::read_to_string(file?.path())?;
    }
    Ok(tables)
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join("blockyard-markdown");
    println!("{}", run(&directory.to_string_lossy()).await?);
    Ok(())
}
