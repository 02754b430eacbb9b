//! The values of options: what they mean and how they are written.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use datafusion::common::config::{ConfigField, Visit};
use datafusion::common::{DataFusionError, Result, config_err, plan_err};

use super::machine_memory;
use crate::call::{Argument, Value};

/// Blocks that may be asked for by number. Each costs a few hundred bytes that are not counted, and some time, whatever
/// is in it.
const MAX_BLOCKS: usize = 1_000_000;

/// An error unless `num_blocks`, which the user calls `name`, is a number of blocks that makes sense.
pub(crate) fn check_num_blocks(name: &str, num_blocks: usize) -> Result<()> {
    match num_blocks {
        0 => plan_err!("{name} must be at least 1, got 0"),
        1..=MAX_BLOCKS => Ok(()),
        _ => plan_err!(
            "{name} must be at most {MAX_BLOCKS}, got {num_blocks}; blocks do best with megabytes of rows each"
        ),
    }
}

/// A number of bytes, written with a unit: `64MiB`, `1.5 GB`, `1048576`. `infinite` and 0 mean no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub usize);

impl ByteSize {
    /// A number of mebibytes.
    pub const fn mib(n: usize) -> Self {
        Self(n << 20)
    }

    /// The bytes, or `usize::MAX` where 0 stands for no bound.
    pub fn bound(self) -> usize {
        if self.0 == 0 { usize::MAX } else { self.0 }
    }
}

impl FromStr for ByteSize {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("infinite") {
            return Ok(Self(0));
        }
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let Ok(number) = number.parse::<f64>() else {
            return config_err!("'{text}' is not a size; write for example 64MiB, 1.5GB or 1048576");
        };
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => {
                return config_err!(
                    "unknown unit '{unit}' in size '{text}'; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB"
                );
            }
        };
        Ok(Self((number * scale as f64) as usize))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if bytes >> shift > 0 {
                let value = bytes as f64 / (1u64 << shift) as f64;
                return if bytes.is_multiple_of(1 << shift) {
                    write!(f, "{value}{unit}")
                } else {
                    write!(f, "{value:.1}{unit}")
                };
            }
        }
        write!(f, "{bytes}B")
    }
}

/// An argument of bytes is a number, or a string with a unit.
impl Argument for ByteSize {
    const WHAT: &'static str = "a size like '64MiB'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.plain().and_then(|text| text.parse().ok()))
    }

    // Exact, where sizes that people read are rounded.
    fn to_value(&self) -> Result<Value> {
        Ok(Value::Number(self.0.to_string()))
    }
}

/// How long something takes, written with a unit: `5s`, `500ms`, `3min`; without one in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    /// A number of seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for TimeSpan {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let scale = match unit {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "min" | "m" => 60.0,
            "h" => 3600.0,
            _ => return config_err!("unknown unit '{unit}' in time '{text}'; use ms, s, min or h"),
        };
        let time = number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * scale).ok());
        match time {
            Some(time) if !time.is_zero() => Ok(Self(time)),
            _ => config_err!("'{text}' is not a time; write for example 5s, 500ms or 3min"),
        }
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_nanos() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

/// Block sizes for a kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockSizePreset {
    /// What the options have when nothing is set.
    #[default]
    Default,
    /// Large sequential transformations.
    EtlProcessing,
    /// Large rows that are worked on one by one.
    ImageProcessing,
    /// Scans and aggregations of wide tables.
    LargeAnalytics,
    /// Little memory.
    MemoryConstrained,
    /// Plans that mostly shuffle.
    ShuffleHeavy,
}

impl BlockSizePreset {
    const ALL: [(&str, Self); 6] = [
        ("default", Self::Default),
        ("etl_processing", Self::EtlProcessing),
        ("image_processing", Self::ImageProcessing),
        ("large_analytics", Self::LargeAnalytics),
        ("memory_constrained", Self::MemoryConstrained),
        ("shuffle_heavy", Self::ShuffleHeavy),
    ];

    /// `target_max_block_size`, `target_min_block_size` and `target_shuffle_max_block_size` in MiB, and why.
    pub(super) fn sizes(self) -> (usize, usize, usize, &'static str) {
        match self {
            Self::Default => (128, 1, 1024, "a balance of latency and overhead"),
            Self::EtlProcessing => (256, 64, 1024, "few, large blocks for throughput"),
            Self::ImageProcessing => (128, 32, 1024, "blocks that hold few large rows"),
            Self::LargeAnalytics => (512, 128, 1024, "as few blocks as memory allows"),
            Self::MemoryConstrained => (64, 16, 512, "small blocks, so that little is in memory at once"),
            Self::ShuffleHeavy => (1024, 256, 1024, "few blocks, so that a shuffle has few pieces"),
        }
    }
}

impl FromStr for BlockSizePreset {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let names = Self::ALL.map(|(name, _)| name);
        let found = Self::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text.trim()));
        found.map(|(_, preset)| preset).ok_or_else(|| crate::error::unknown_name("preset", text, "block sizes", &names))
    }
}

impl fmt::Display for BlockSizePreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.into_iter().find(|(_, preset)| preset == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// A memory limit: bytes, or percent of [`machine_memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// This many bytes.
    Bytes(ByteSize),
    /// This share, 1 to 100, of what the machine or the control group has.
    Percent(u8),
}

impl MemoryLimit {
    /// The limit in bytes on this machine; no bound is `usize::MAX`.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bytes(size) => size.bound(),
            Self::Percent(percent) => (machine_memory() as u128 * u128::from(percent) / 100) as usize,
        }
    }
}

impl Default for MemoryLimit {
    fn default() -> Self {
        Self::Percent(60)
    }
}

impl FromStr for MemoryLimit {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return match text.parse()? {
                ByteSize(0) if !text.trim().eq_ignore_ascii_case("infinite") => {
                    config_err!("'{text}' is no memory at all; write infinite for no limit")
                }
                bytes => Ok(Self::Bytes(bytes)),
            };
        };
        match percent.trim().parse::<u8>() {
            Ok(p @ 1..=100) => Ok(Self::Percent(p)),
            _ => config_err!("'{text}' is not a share of memory; write 1% to 100%"),
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(ByteSize(0)) => write!(f, "infinite"),
            Self::Bytes(size) => size.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// How many blocks of a query may be lost; `None` for any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxErroredBlocks(pub Option<usize>);

impl MaxErroredBlocks {
    /// Whether any may be lost.
    pub(crate) fn allows_any(self) -> bool {
        self.0 != Some(0)
    }
}

impl FromStr for MaxErroredBlocks {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "-1" | "infinite" => Ok(Self(None)),
            number => match number.parse() {
                Ok(number) => Ok(Self(Some(number))),
                Err(_) => config_err!("'{text}' is not a number of blocks; write for example 10, or -1 for any number"),
            },
        }
    }
}

impl fmt::Display for MaxErroredBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "-1"),
        }
    }
}

/// The most of a resource that one query may have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ResourceLimit {
    /// No limit of its own.
    #[default]
    Infinite,
    /// A number of CPUs or GPUs, or of bytes.
    Amount(f64),
    /// This percentage of what there is.
    Percent(f64),
}

impl ResourceLimit {
    /// The limit where there is `total`, in the unit of that; `scale` of them make one that is written.
    pub(crate) fn of(self, total: u64, scale: u64) -> u64 {
        match self {
            Self::Infinite => u64::MAX,
            Self::Amount(amount) => (amount * scale as f64) as u64,
            Self::Percent(percent) => (total as f64 * percent / 100.0) as u64,
        }
    }
}

impl FromStr for ResourceLimit {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
        let size = || text.parse::<ByteSize>().ok().filter(|size| size.0 > 0).map(|size| size.0 as f64);
        match text.strip_suffix('%') {
            _ if text.eq_ignore_ascii_case("infinite") => Ok(Self::Infinite),
            Some(percent) if let Some(percent) = number(percent).filter(|p| *p <= 100.0) => Ok(Self::Percent(percent)),
            None if let Some(amount) = number(text).or_else(size) => Ok(Self::Amount(amount)),
            _ => config_err!("'{text}' is not a limit; write for example 80, 8GB, 50% or infinite"),
        }
    }
}

impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infinite => write!(f, "infinite"),
            Self::Amount(amount) => write!(f, "{amount}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Amounts by name, written `name=amount, ..`.
pub(crate) fn parse_resources(text: &str) -> Result<BTreeMap<String, f64>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parsed = parts.map(|part| {
        let amount = part.split_once('=').and_then(|(name, n)| Some((name.trim(), n.trim().parse::<f64>().ok()?)));
        match amount {
            Some((name, amount)) if !name.is_empty() && amount >= 0.0 => Ok((name.to_owned(), amount)),
            _ => config_err!("'{part}' is not an amount of a resource; write for example license=1"),
        }
    });
    parsed.collect()
}

/// How spilled blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpillCompression {
    /// Not at all.
    None,
    /// LZ4 frames: fast.
    #[default]
    Lz4,
    /// Zstandard: smaller.
    Zstd,
}

impl FromStr for SpillCompression {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "none" | "uncompressed" => Ok(Self::None),
            "lz4" | "lz4_frame" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            other => config_err!("unknown compression '{other}'; use none, lz4 or zstd"),
        }
    }
}

impl fmt::Display for SpillCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

macro_rules! config_field {
    ($($type:ty),*) => {$(
        impl ConfigField for $type {
            fn visit<V: Visit>(&self, v: &mut V, key: &str, description: &'static str) {
                v.some(key, self, description)
            }

            fn set(&mut self, _key: &str, value: &str) -> Result<()> {
                *self = value.parse()?;
                Ok(())
            }
        }
    )*};
}

config_field!(BlockSizePreset, ByteSize, MaxErroredBlocks, MemoryLimit, ResourceLimit, SpillCompression, TimeSpan);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1.5 gb", 1_500_000_000), ("7", 7), ("2k", 2048), ("infinite", 0)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        let error = "12 parsecs".parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.contains("unknown unit 'parsecs'"), "{error}");
        let error = "lots".parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.contains("lots"), "{error}");
    }

    #[test]
    fn sizes_print_as_they_are_read() {
        for text in ["64MiB", "1.5GiB", "1023B", "2KiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn limits_are_absolute_or_percent() {
        assert_eq!("50%".parse::<MemoryLimit>().unwrap(), MemoryLimit::Percent(50));
        assert_eq!("1GiB".parse::<MemoryLimit>().unwrap().bytes(), 1 << 30);
        assert!("0%".parse::<MemoryLimit>().is_err());
        assert_eq!("infinite".parse::<MemoryLimit>().unwrap().bytes(), usize::MAX);
        assert!("0".parse::<MemoryLimit>().unwrap_err().to_string().contains("write infinite"));
        assert!("-5".parse::<MemoryLimit>().unwrap_err().to_string().contains("'-5' is not a size"));
        assert!("101%".parse::<MemoryLimit>().is_err());
        assert!(MemoryLimit::Percent(50).bytes() < machine_memory());
    }

    #[test]
    fn limits_of_resources_are_numbers_sizes_or_percent() {
        for (text, limit) in
            [("80", 80_000), ("0.5", 500), ("50%", 1000), ("infinite", u64::MAX), ("1KiB", 1_024_000), ("8e2", 800_000)]
        {
            assert_eq!(text.parse::<ResourceLimit>().unwrap().of(2000, 1000), limit, "{text}");
        }
        for text in ["0", "-1", "101%", "many"] {
            assert!(text.parse::<ResourceLimit>().unwrap_err().to_string().contains("is not a limit"), "{text}");
        }
    }

    #[test]
    fn resources_have_names() {
        let parsed = parse_resources("license=1, slot = 0.5").unwrap();
        assert_eq!(parsed, [("license".to_owned(), 1.0), ("slot".to_owned(), 0.5)].into());
        assert!(parse_resources("license").is_err() && parse_resources("a=-1").is_err());
        assert!(parse_resources("").unwrap().is_empty());
    }
}
