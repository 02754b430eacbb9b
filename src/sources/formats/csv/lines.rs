//! Lines of CSV, each of which is a row.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::csv::reader::Decoder;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::CsvOptions;
use datafusion::common::{DataFusionError, Result, exec_err};
use memchr::{memchr, memchr_iter};

use super::dialect::{decoder_of, typed};
use super::messages::{with_name, without_line};
use super::quotes::{Quotes, is_whole, row_length};
use crate::error::one_message;
use crate::sources::formats::tolerant::{DecodeLines, LineDecoder, all_null};

/// Decodes lines of CSV.
pub(super) struct CsvLines {
    pub(super) options: CsvOptions,
}

impl CsvLines {
    /// The values of a line without quotes. Of what is in quotes nothing is seen at a glance.
    fn values<'a>(&self, line: &'a [u8]) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        let delimiter = self.options.delimiter;
        memchr(self.options.quote, line).is_none().then(|| line.split(move |byte| *byte == delimiter))
    }

    /// Whether a row cannot have so many values.
    fn has_other_width(&self, found: usize, expected: usize) -> bool {
        found > expected || found < expected && !self.options.truncated_rows.unwrap_or(false)
    }

    fn csv_decoder(&self, columns: &SchemaRef, most: usize) -> CsvDecoder {
        let builder = decoder_of(&self.options, columns, most);
        let (decoder, quotes) = (builder.build_decoder(), Quotes::new(&self.options));
        CsvDecoder { decoder, quotes, columns: Arc::clone(columns), most, rows: 0 }
    }
}

impl DecodeLines for CsvLines {
    fn decoder(&self, columns: &SchemaRef, most: usize) -> Result<Box<dyn LineDecoder>> {
        Ok(Box::new(self.csv_decoder(columns, most)))
    }

    fn row_length(&self, text: &[u8]) -> Option<usize> {
        row_length(text, &Quotes::new(&self.options))
    }

    fn check_header(&self, row: &[u8]) -> Result<()> {
        let is_of_line_end = |place: usize| row.get(place + 1).is_none_or(|next| *next == b'\n');
        if !is_whole(row, &Quotes::new(&self.options)) {
            return exec_err!("the quotes of the first line do not end");
        }
        match memchr_iter(b'\r', row).all(is_of_line_end) {
            true => Ok(()),
            false => exec_err!("lines end with a carriage return alone, by which on_error does not tell them apart"),
        }
    }

    /// A line of blanks has a value.
    fn is_row(&self, line: &[u8]) -> bool {
        line.first().is_some_and(|first| self.options.comment != Some(*first))
    }

    fn misfit(&self, line: &[u8], columns: &Schema) -> Option<String> {
        let (expected, found) = (columns.fields().len(), memchr_iter(self.options.delimiter, line).count() + 1);
        let has_other = self.has_other_width(found, expected);
        let is_misfit = self.is_row(line) && has_other && memchr(self.options.quote, line).is_none();
        is_misfit.then(|| format!("incorrect number of fields: expected {expected} got {found}"))
    }

    fn is_suspect(&self, line: &[u8], columns: &Schema) -> bool {
        let is_number = |value: &[u8]| str::from_utf8(value).is_ok_and(|text| text.parse::<f64>().is_ok());
        let mut kinds = columns.fields().iter().map(|field| field.data_type());
        let (mut found, mut is_quoted) = (0, false);
        let values = line.split(|byte| {
            is_quoted ^= *byte == self.options.quote;
            *byte == self.options.delimiter && !is_quoted
        });
        for value in values {
            found += 1;
            let quote = &[self.options.quote];
            let value = value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote)).unwrap_or(value);
            match kinds.next() {
                Some(kind) if kind.is_numeric() && !value.is_empty() && !is_number(value) => return true,
                _ => {}
            }
        }
        self.has_other_width(found, columns.fields().len())
    }

    fn with_nulls(&self, line: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        let texts: Vec<Field> = columns.fields().iter().map(|f| Field::new(f.name(), DataType::Utf8, true)).collect();
        let values: Vec<ArrayRef> = match self.values(line).map(Iterator::collect::<Vec<_>>) {
            Some(values) if values.len() == texts.len() => {
                let text =
                    |value: &&[u8]| str::from_utf8(value).ok().filter(|text| !text.is_empty()).map(str::to_owned);
                values.iter().map(|value| Arc::new(StringArray::from_iter([text(value)])) as ArrayRef).collect()
            }
            // It has more values than there are columns, or fewer.
            Some(_) => return all_null(columns),
            None => match self.csv_decoder(&Arc::new(Schema::new(texts)), 2).decode(line) {
                Ok((values, _)) if values.num_rows() == 1 => values.columns().to_vec(),
                _ => return all_null(columns),
            },
        };
        let typed = values.iter().zip(columns.fields()).map(|(value, field)| cast(value, field.data_type()));
        Ok(RecordBatch::try_new(Arc::clone(columns), typed.collect::<Result<_, _>>()?)?)
    }

    fn explain(&self, error: &DataFusionError, columns: &Schema) -> String {
        let message = one_message(error);
        let message = without_line(&message).map_or(message, |(message, _)| message);
        // The line itself is told beside it. Of a decoder that goes on the number of the line is one of no file.
        let message = message.split(". Row data").next().unwrap_or_default();
        let message = match message.split_once(" for line ") {
            Some((before, rest)) => {
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{before}{}", rest.strip_prefix(',').map_or_else(|| rest.to_owned(), |rest| format!(":{rest}")))
            }
            None => message.to_owned(),
        };
        with_name(&message, columns).unwrap_or(message)
    }
}

/// Decodes some lines at once.
struct CsvDecoder {
    decoder: Decoder,
    /// How quotes are followed, from the beginning of a row on.
    quotes: Quotes,
    columns: SchemaRef,
    most: usize,
    /// Rows into which lines were taken apart last.
    rows: usize,
}

impl LineDecoder for CsvDecoder {
    fn decode(&mut self, text: &[u8]) -> Result<(RecordBatch, usize)> {
        let mut read = 0;
        while read < text.len() {
            match self.decoder.decode(&text[read..])? {
                0 => break,
                bytes => read += bytes,
            }
        }
        if read == text.len() && !text.ends_with(b"\n") {
            // The end of the text would be taken for the end of a value.
            if !is_whole(text, &self.quotes) {
                return exec_err!("a value in quotes does not end");
            }
            // The end of the text does not end a comment.
            self.decoder.decode(b"\n")?;
        }
        // It stops in the middle of such an end.
        if text[..read].ends_with(b"\r") && text.get(read) == Some(&b'\n') {
            read += 1;
        }
        self.rows = self.most - self.decoder.capacity();
        let rows = match self.decoder.flush()? {
            Some(rows) => typed(rows, &self.columns)?,
            None => RecordBatch::new_empty(Arc::clone(&self.columns)),
        };
        Ok((rows, read))
    }

    /// A value that does not fit is found when the lines have been taken apart, each of them a row.
    fn survives(&self, error: &DataFusionError, text: &[u8]) -> bool {
        let is_of_value =
            matches!(error.find_root(), DataFusionError::ArrowError(e, _) if matches!(**e, ArrowError::ParseError(_)));
        is_of_value && text.ends_with(b"\n") && memchr_iter(b'\n', text).count() == self.rows
    }
}
