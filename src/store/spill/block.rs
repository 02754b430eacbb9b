//! A block in a spill file: an Arrow IPC stream whose messages can be read one by one.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::{FileDecoder, StreamDecoder};
use datafusion::arrow::ipc::writer::{IpcWriteOptions, StreamEncoder};
use datafusion::arrow::ipc::{self, CompressionType, MetadataVersion};
use datafusion::common::{DataFusionError, Result, exec_err};

use super::files::Appender;
use super::{SpillFiles, TempFile};
use crate::block::{Block, compact_views};
use crate::config::SpillCompression;

/// Rows of the sample that tells whether to compress a block.
const SAMPLE_ROWS: usize = 1024;
/// A block is compressed when that leaves less than this part of its bytes.
const WORTH: (usize, usize) = (3, 4);
/// What the place of a message in the file is a multiple of, so that its buffers are where their types need them.
const ALIGNMENT: usize = 64;
/// Batches beside each other are read together up to this many bytes.
const READ_BYTES: usize = 1 << 20;
/// The marker that ends a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A block that is on disk. Its bytes there are free when the last block of the file drops.
#[derive(Debug)]
pub(in crate::store) struct SpilledBlock {
    file: Arc<TempFile>,
    /// Columns, where the file has a message for each batch; `None` where each batch is a stream of its own.
    schema: Option<SchemaRef>,
    batches: Vec<Extent>,
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy)]
struct Extent {
    offset: u64,
    length: usize,
    checksum: u32,
}

impl SpilledBlock {
    /// Writes a block. Fails when the disk or its quota is full.
    pub(in crate::store) fn write(block: &Block, files: &SpillFiles, compression: SpillCompression) -> Result<Self> {
        let schema = block.schema();
        let options = options(compression)?;
        let options = if compression != SpillCompression::None && shrinks(block, &options)? {
            options
        } else {
            IpcWriteOptions::default()
        };
        // A dictionary is sent once in a stream, so a batch could not be read without the ones before it.
        let standalone = schema.flattened_fields().iter().any(|f| matches!(f.data_type(), DataType::Dictionary(..)));
        let new_encoder = || StreamEncoder::try_new_with_options(schema, options.clone());
        let (file, (schema, batches)) = files.append(|appender| {
            let mut batches = Vec::with_capacity(block.batches().len());
            let schema_bytes = new_encoder()?.finish()?.iter().map(Buffer::len).sum::<usize>() - END.len();
            let mut encoder = new_encoder()?;
            for batch in block.batches() {
                let batch = compact_views(batch)?;
                let mut buffers = encoder.encode(&batch)?;
                if standalone {
                    buffers.extend(std::mem::replace(&mut encoder, new_encoder()?).finish()?);
                } else if batches.is_empty() {
                    write_out(appender, take_front(&mut buffers, schema_bytes))?;
                }
                batches.push(write_out(appender, buffers)?);
            }
            if !standalone {
                write_out(appender, vec![Buffer::from(&END)])?;
            }
            Ok(((!standalone).then(|| Arc::clone(schema)), batches))
        })?;
        Ok(Self { file, schema, batches })
    }

    /// Bytes of all batches in the file.
    pub(in crate::store) fn file_bytes(&self) -> usize {
        self.batches.iter().map(|extent| extent.length).sum()
    }

    /// Bytes of the batches at `indices` in the file.
    pub(in crate::store) fn batch_bytes(&self, indices: &[usize]) -> usize {
        indices.iter().map(|index| self.batches[*index].length).sum()
    }

    /// Where the block is.
    pub(in crate::store) fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    /// Reads everything back.
    pub(in crate::store) fn read(&self, schema: &SchemaRef) -> Result<Block> {
        let indices: Vec<_> = (0..self.batches.len()).collect();
        let mut batches = Vec::with_capacity(indices.len());
        while batches.len() < indices.len() {
            batches.extend(self.read_first(&indices[batches.len()..])?);
        }
        Ok(Block::new(Arc::clone(schema), batches))
    }

    /// Reads the batch at the first of `indices` back, with those of the next that lie behind it. Uncompressed columns
    /// stay where they were read to.
    pub(in crate::store) fn read_first(&self, indices: &[usize]) -> Result<Vec<RecordBatch>> {
        let Some(Extent { offset, length, .. }) = indices.first().map(|index| self.batches[*index]) else {
            return Ok(Vec::new());
        };
        let (mut end, mut number) = (offset + length as u64, 1);
        for extent in indices[1..].iter().map(|index| self.batches[*index]) {
            let extent_end = extent.offset + extent.length as u64;
            let beside = extent.offset >= end && extent.offset - end < ALIGNMENT as u64;
            if !beside || extent_end - offset > READ_BYTES as u64 {
                break;
            }
            (end, number) = (extent_end, number + 1);
        }
        let bytes = self.file.read(offset, (end - offset) as usize).map_err(|e| self.file.error(&e, "read"))?;
        let of_batch = |index: &usize| {
            let extent = self.batches[*index];
            self.decode(*index, bytes.slice_with_length((extent.offset - offset) as usize, extent.length))
        };
        indices[..number].iter().map(of_batch).collect()
    }

    fn decode(&self, index: usize, bytes: Buffer) -> Result<RecordBatch> {
        let Extent { offset, checksum, .. } = self.batches[index];
        let place = || format!("spill file {} at byte {offset}", self.path().display());
        let found = crc32fast::hash(&bytes);
        if found != checksum {
            return exec_err!(
                "{} is damaged: the checksum of batch {index} is {found:08x} instead of {checksum:08x}",
                place()
            );
        }
        let decoded = match &self.schema {
            Some(schema) => decode_message(schema, &bytes),
            None => decode_stream(bytes),
        };
        match decoded {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => exec_err!("{} has no batch", place()),
            Err(e) => Err(DataFusionError::from(e).context(place())),
        }
    }
}

/// The batch of a message. Whether texts are UTF-8 and offsets in order is not looked at: that takes a fourth of a
/// restore.
#[expect(unsafe_code, reason = "the checksum has told that these are the bytes that were written")]
fn decode_message(schema: &SchemaRef, bytes: &Buffer) -> std::result::Result<Option<RecordBatch>, ArrowError> {
    // A marker, the length of the metadata, and these.
    let [_, _, _, _, a, b, c, d, ..] = bytes.as_slice() else { return Ok(None) };
    let metadata_bytes = 8 + i32::from_le_bytes([*a, *b, *c, *d]);
    let body_bytes = bytes.len() as i64 - i64::from(metadata_bytes);
    // SAFETY: what is decoded was encoded from a valid batch by this process, and its checksum is right.
    let decoder = unsafe { FileDecoder::new(Arc::clone(schema), MetadataVersion::V5).with_skip_validation(true) };
    decoder.read_record_batch(&ipc::Block::new(0, metadata_bytes, body_bytes), bytes)
}

/// The batch of a stream that has no other.
fn decode_stream(mut bytes: Buffer) -> std::result::Result<Option<RecordBatch>, ArrowError> {
    let mut decoder = StreamDecoder::new();
    match decoder.decode(&mut bytes) {
        // The decoder stops at the end of its bytes, before it looks at a body of none: no rows, or nothing but nulls.
        Ok(None) => decoder.decode(&mut Buffer::from(&END)),
        decoded => decoded,
    }
}

fn options(compression: SpillCompression) -> Result<IpcWriteOptions> {
    Ok(IpcWriteOptions::default().try_with_compression(match compression {
        SpillCompression::None => None,
        SpillCompression::Lz4 => Some(CompressionType::LZ4_FRAME),
        SpillCompression::Zstd => Some(CompressionType::ZSTD),
    })?)
}

/// Whether it saves enough to compress a block, by a sample of its largest batch.
fn shrinks(block: &Block, compressed: &IpcWriteOptions) -> Result<bool> {
    let Some(batch) = block.batches().iter().max_by_key(|batch| batch.num_rows()) else {
        return Ok(false);
    };
    let rows = batch.num_rows().min(SAMPLE_ROWS);
    let sample = compact_views(&batch.slice((batch.num_rows() - rows) / 2, rows))?;
    let bytes = |options: &IpcWriteOptions| -> Result<usize> {
        let mut encoder = StreamEncoder::try_new_with_options(block.schema(), options.clone())?;
        Ok(encoder.encode(&sample)?.iter().map(Buffer::len).sum())
    };
    Ok(bytes(compressed)? < bytes(&IpcWriteOptions::default())? / WORTH.1 * WORTH.0)
}

/// Writes buffers; returns where they are.
fn write_out(appender: &mut Appender, buffers: Vec<Buffer>) -> Result<Extent> {
    appender.align(ALIGNMENT)?;
    let offset = appender.offset();
    let mut hasher = crc32fast::Hasher::new();
    for buffer in buffers {
        hasher.update(&buffer);
        appender.append(buffer)?;
    }
    Ok(Extent { offset, length: (appender.offset() - offset) as usize, checksum: hasher.finalize() })
}

/// Removes the buffers that have the first `length` bytes.
fn take_front(buffers: &mut Vec<Buffer>, length: usize) -> Vec<Buffer> {
    let mut bytes = 0;
    let count = buffers.iter().take_while(|buffer| {
        let inside = bytes < length;
        bytes += buffer.len();
        inside
    });
    let count = count.count();
    buffers.drain(..count).collect()
}
