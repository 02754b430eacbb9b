//! What users say of the files of a read beside their paths: which of them are read, in which order, and which columns
//! their paths give.

use datafusion::common::{Result, plan_err};

use crate::block::mix;
use crate::call::{Argument, Value};
use crate::seed::fresh_seed;
use crate::token::text_fingerprint;

/// Which columns the directories of files give.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PathPartitioning {
    /// `key=value` directories are columns.
    #[default]
    Hive,
    /// No columns.
    None,
    /// The directories below the path are the values of these columns, in this order.
    Directories(Vec<String>),
}

impl Argument for PathPartitioning {
    const WHAT: &'static str = "'hive', 'none' or a list of names of columns";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        if let Some(names) = value.list() {
            let names: Option<Vec<String>> = names.iter().map(|name| name.text().map(str::to_owned)).collect();
            return Ok(names.filter(|names| !names.is_empty()).map(Self::Directories));
        }
        Ok(value.text().and_then(|text| match text.to_lowercase().as_str() {
            "hive" => Some(Self::Hive),
            "none" => Some(Self::None),
            _ => None,
        }))
    }

    fn to_value(&self) -> Result<Value> {
        match self {
            Self::Hive => Ok(Value::Text("hive".to_owned())),
            Self::None => Ok(Value::Text("none".to_owned())),
            Self::Directories(names) => names.to_value(),
        }
    }
}

/// Whose columns a read of files has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileSchema {
    /// Those of the first file. What others have beside them is left out, and what they lack is null.
    #[default]
    First,
    /// Those of all files, by name, with types that have room for the values of all. Each file is looked at first.
    Union,
}

impl Argument for FileSchema {
    const WHAT: &'static str = "'first' or 'union'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.text().and_then(|text| match text.to_lowercase().as_str() {
            "first" => Some(Self::First),
            "union" => Some(Self::Union),
            _ => None,
        }))
    }

    fn to_value(&self) -> Result<Value> {
        let name = match self {
            Self::First => "first",
            Self::Union => "union",
        };
        Ok(Value::Text(name.to_owned()))
    }
}

/// What comes in another order than that of the paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileShuffle {
    /// Files, each with its rows in their order.
    Files,
}

impl Argument for FileShuffle {
    const WHAT: &'static str = "'files'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        Ok(value.text().filter(|text| text.eq_ignore_ascii_case("files")).map(|_| Self::Files))
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::Text("files".to_owned()))
    }
}

/// Which of the files are read, and in which order.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileChoice {
    pub(crate) shuffle: Option<FileShuffle>,
    pub(crate) seed: Option<u64>,
    pub(crate) epoch: Option<u64>,
    /// About this part of the files, at least one.
    pub(crate) sample: Option<f64>,
}

impl FileChoice {
    /// The same with a seed, which is drawn where none is said: all scans of a table then read the same.
    ///
    /// # Errors
    ///
    /// Where what is said makes no sense.
    pub(super) fn with_seed(self) -> Result<Self> {
        if let Some(part) = self.sample.filter(|part| !(*part > 0.0 && *part <= 1.0)) {
            return plan_err!("sample_files must be above 0 and at most 1, got {part}");
        }
        let is_random = self.shuffle.is_some() || self.sample.is_some();
        match self {
            Self { seed: None, epoch: Some(_), .. } => plan_err!("an epoch needs a seed"),
            Self { seed: Some(_), .. } if !is_random => {
                plan_err!("a seed is for shuffle => 'files' or sample_files, which are not there")
            }
            choice => Ok(Self { seed: choice.seed.or_else(|| is_random.then(fresh_seed)), ..choice }),
        }
    }

    /// The files that are read, in their order; `path` is that of one.
    pub(super) fn of<T>(&self, mut files: Vec<T>, path: impl Fn(&T) -> String) -> Vec<T> {
        let seed = self.seed.unwrap_or_default();
        let random = |file: &T, salt: u64| mix(mix(seed ^ mix(salt)) ^ text_fingerprint(&path(file)));
        if let Some(part) = self.sample {
            let kept = ((files.len() as f64 * part).ceil() as usize).clamp(1, files.len().max(1));
            let mut drawn: Vec<u64> = files.iter().map(|file| random(file, 0)).collect();
            drawn.sort_unstable();
            let last = drawn.get(kept - 1).copied().unwrap_or(u64::MAX);
            files.retain(|file| random(file, 0) <= last);
        }
        if self.shuffle.is_some() {
            let epoch = self.epoch.unwrap_or_default();
            files.sort_by_cached_key(|file| random(file, epoch + 1));
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: &FileChoice) -> Vec<usize> {
        choice.of((0..1000).collect(), |file| format!("part-{file:04}"))
    }

    #[test]
    fn files_are_drawn_and_shuffled_by_seed_and_epoch() {
        let sample = FileChoice { sample: Some(0.1), seed: Some(1), ..FileChoice::default() };
        let (one, two) = (chosen(&sample), chosen(&FileChoice { seed: Some(2), ..sample.clone() }));
        assert_eq!((one.len(), two.len()), (100, 100));
        assert!(one.is_sorted() && one != two && one == chosen(&sample));
        let shuffled = FileChoice { shuffle: Some(FileShuffle::Files), seed: Some(1), ..FileChoice::default() };
        let next = FileChoice { epoch: Some(1), ..shuffled.clone() };
        assert_ne!(chosen(&shuffled), chosen(&next));
        let mut all = chosen(&next);
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert_eq!(FileChoice { sample: Some(0.001), ..sample }.of(vec![7], |file| file.to_string()), [7]);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let error = |choice: FileChoice| choice.with_seed().unwrap_err().to_string();
        assert!(error(FileChoice { sample: Some(0.0), ..FileChoice::default() }).contains("above 0 and at most 1"));
        assert!(error(FileChoice { epoch: Some(1), ..FileChoice::default() }).contains("needs a seed"));
        assert!(error(FileChoice { seed: Some(1), ..FileChoice::default() }).contains("which are not there"));
    }
}
