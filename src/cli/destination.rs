//! Where results go and how they are written: checked before anything runs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::arguments::Format;
use crate::sinks::without_compression;

/// Bytes that are written without looking whether anybody still wants them.
const PIECE_BYTES: usize = 64 << 10;
/// Small writes are put together to so many bytes; what is larger is not copied.
const BUFFER_BYTES: usize = 64 << 10;

/// Where results go.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) format: Format,
    pub(super) file: Option<PathBuf>,
    /// Whether more may lie in a pipe than its reader has asked for.
    pub(super) fills_pipes: bool,
}

impl Destination {
    /// The destination that the options ask for: the ending of a file says its format, unless an option does.
    pub(super) fn new(format: Option<Format>, file: Option<&Path>, fills_pipes: bool) -> Result<Self, String> {
        let Some(path) = file else {
            return match format {
                Some(Format::Parquet) => Err("--format parquet needs --output FILE".to_owned()),
                format => Ok(Self { format: format.unwrap_or(Format::Table), file: None, fills_pipes }),
            };
        };
        let shown = path.display();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if without_compression(&name).1.is_compressed() {
            return Err(format!("--output does not compress; COPY (..) TO '{shown}' does"));
        }
        let format = match format {
            Some(format) => format,
            None => format_of(path)?,
        };
        if path.is_dir() {
            return Err(format!("cannot write to '{shown}': it is a directory; --output takes a file"));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            return Err(format!("cannot write to '{shown}': there is no directory '{}'", directory.display()));
        }
        Ok(Self { format, file: Some(path.to_owned()), fills_pipes })
    }

    /// Whether each batch is with whoever reads them once it is written, and not only all of them at the end.
    pub(super) fn hands_on_batches(&self) -> bool {
        self.file.is_none() && matches!(self.format, Format::Arrow | Format::Csv | Format::Tsv | Format::Ndjson)
    }

    /// Begins to write.
    pub(super) fn begin(&self) -> std::io::Result<Destined> {
        let Some(path) = &self.file else {
            return Ok(Destined { out: stdout(self.fills_pipes)?, staged: None });
        };
        // Devices and pipes are written as they are; a file appears when it is complete.
        if path.exists() && !path.is_file() {
            return Ok(Destined { out: Box::new(File::create(path)?), staged: None });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        remove_abandoned(path, &name);
        let hidden = path.with_file_name(format!(".{name}.{}{PARTIAL}", std::process::id()));
        let out = File::create(&hidden)?;
        if let Ok(replaced) = path.metadata() {
            // Who may not read the old one may not read the new one.
            out.set_permissions(replaced.permissions())?;
        }
        let out = Box::new(out);
        Ok(Destined { out, staged: Some(Staged { hidden, path: path.clone() }) })
    }
}

/// What names of files end with that are not complete.
const PARTIAL: &str = ".partial";

/// Removes what processes that are gone have left beside a file of this name.
fn remove_abandoned(path: &Path, name: &str) {
    // Who is still there is only known where processes are files.
    if !Path::new("/proc/self").exists() {
        return;
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let found = entry.file_name();
        let found = found.to_string_lossy();
        let process = found.strip_prefix(&format!(".{name}.")).and_then(|rest| rest.strip_suffix(PARTIAL));
        let is_gone =
            |process: &str| process.parse::<u32>().is_ok_and(|id| !Path::new(&format!("/proc/{id}")).exists());
        if process.is_some_and(is_gone) {
            // Nothing more can be done if this fails.
            let _removed = std::fs::remove_file(entry.path());
        }
    }
}

/// Standard output as a file: that of the standard library looks for the ends of lines in all that it writes. A pipe
/// may take more than the system's 64 KiB, so that reader and writer wait less for each other.
#[cfg(unix)]
fn stdout(fills_pipes: bool) -> std::io::Result<Box<dyn Write + Send>> {
    use std::os::fd::AsFd;
    let out = std::io::stdout().as_fd().try_clone_to_owned()?;
    #[cfg(target_os = "linux")]
    if fills_pipes {
        // What is no pipe has no such size.
        let _size = nix::fcntl::fcntl(&out, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20));
    }
    #[cfg(not(target_os = "linux"))]
    let _of_linux = fills_pipes;
    Ok(Box::new(File::from(out)))
}

#[cfg(not(unix))]
fn stdout(_fills_pipes: bool) -> std::io::Result<Box<dyn Write + Send>> {
    Ok(Box::new(std::io::stdout()))
}

fn format_of(path: &Path) -> Result<Format, String> {
    let Some(ending) = path.extension() else {
        return Ok(Format::Table);
    };
    Ok(match ending.to_string_lossy().to_lowercase().as_str() {
        "txt" | "text" | "out" | "log" | "md" => Format::Table,
        "csv" => Format::Csv,
        "tsv" | "tab" => Format::Tsv,
        "json" => Format::Json,
        "ndjson" | "jsonl" => Format::Ndjson,
        "arrow" | "arrows" => Format::Arrow,
        "parquet" | "pq" => Format::Parquet,
        other => {
            return Err(format!(
                "cannot tell from '.{other}' how '{}' is to be written; say it with --format, or end the name with .txt, \
                 .csv, .tsv, .json, .ndjson, .arrow or .parquet",
                path.display()
            ));
        }
    })
}

/// A destination that is being written.
pub(super) struct Destined {
    out: Box<dyn Write + Send>,
    staged: Option<Staged>,
}

impl Destined {
    /// What takes the bytes until `stop` is set, and the file that is to appear at the end.
    pub(super) fn into_parts(self, stop: Arc<AtomicBool>) -> (Box<dyn Write + Send>, Option<Staged>) {
        (Box::new(BufWriter::with_capacity(BUFFER_BYTES, Stoppable { out: self.out, stop })), self.staged)
    }
}

/// A file that is not there yet. What is staged goes when this drops.
#[derive(Debug)]
pub(super) struct Staged {
    hidden: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Makes the file visible.
    pub(super) fn publish(self) -> std::io::Result<()> {
        std::fs::rename(&self.hidden, &self.path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // It is gone when it was published.
        let _removed = std::fs::remove_file(&self.hidden);
    }
}

/// Takes no more bytes when nobody wants them.
struct Stoppable {
    out: Box<dyn Write + Send>,
    stop: Arc<AtomicBool>,
}

impl Write for Stoppable {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.stop.load(Relaxed) {
            return Err(std::io::Error::other("cancelled"));
        }
        self.out.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
