//! Spilled blocks as files: each batch is an Arrow IPC stream of its own, one after the other, so that a reader can take
//! any batch of the block without the others, and dictionaries may differ from batch to batch.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::ipc::CompressionType;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::SpillFile;
use datafusion::execution::disk_manager::DiskManager;

use crate::block::Block;
use crate::config::SpillCompression;

/// A block in a file, which is deleted with it.
pub(super) struct SpilledBlock {
    schema: SchemaRef,
    file: Arc<dyn SpillFile>,
    /// Where each batch begins, and at last where the file ends.
    offsets: Vec<u64>,
}

impl SpilledBlock {
    /// Writes the block. Fails when the disk or its quota is full.
    pub(super) fn write(block: &Block, disk: &Arc<DiskManager>, compression: SpillCompression) -> Result<Self> {
        let file = disk.create_tmp_file("spilling a block")?;
        let mut writer = Counted { inner: BufWriter::with_capacity(1 << 20, file.open_writer()?), written: 0 };
        let mut offsets = vec![0];
        let options = IpcWriteOptions::default().try_with_compression(match compression {
            SpillCompression::None => None,
            SpillCompression::Lz4 => Some(CompressionType::LZ4_FRAME),
            SpillCompression::Zstd => Some(CompressionType::ZSTD),
        })?;
        for batch in block.batches() {
            let batch = compact_views(batch)?;
            let mut stream = StreamWriter::try_new_with_options(&mut writer, block.schema(), options.clone())?;
            stream.write(&batch)?;
            stream.finish()?;
            drop(stream);
            offsets.push(writer.written);
        }
        writer.inner.flush()?;
        writer.inner.into_inner().map_err(|e| DataFusionError::IoError(e.into_error()))?.finish()?;
        Ok(Self { schema: SchemaRef::clone(block.schema()), file, offsets })
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0) as usize
    }

    /// Reads everything back.
    pub(super) fn read(&self) -> Result<Block> {
        let batches = (0..self.offsets.len() - 1).map(|i| self.read_batch(i)).collect::<Result<Vec<_>>>()?;
        Ok(Block::new(SchemaRef::clone(&self.schema), batches))
    }

    /// Reads the batch at `index` back.
    pub(super) fn read_batch(&self, index: usize) -> Result<RecordBatch> {
        let path = self.file.path().ok_or_else(|| internal_datafusion_err!("a spill file without a path"))?;
        let (begin, end) = (self.offsets[index], self.offsets[index + 1]);
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(begin))?;
        let reader = BufReader::with_capacity(1 << 16, file.take(end - begin));
        let mut stream = StreamReader::try_new(reader, None)?;
        let batch = stream.next().ok_or_else(|| {
            DataFusionError::Execution(format!("spill file {} ends before batch {index}", path.display()))
        })??;
        Ok(batch)
    }

    /// Bytes of the batch at `index` in the file.
    pub(super) fn batch_bytes(&self, index: usize) -> usize {
        (self.offsets[index + 1] - self.offsets[index]) as usize
    }
}

/// Counts what passes.
struct Counted<W> {
    inner: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(buf)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// A slice of a view array drags all of its data buffers along; the file should hold only what its rows use.
fn compact_views(batch: &RecordBatch) -> Result<RecordBatch> {
    let compact = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => Arc::clone(column),
        }
    };
    let has_views = batch.columns().iter().any(|c| matches!(c.data_type(), DataType::Utf8View | DataType::BinaryView));
    match has_views {
        false => Ok(batch.clone()),
        true => Ok(RecordBatch::try_new(batch.schema(), batch.columns().iter().map(compact).collect())?),
    }
}
