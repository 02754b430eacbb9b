//! Listing without the directories that conditions on their columns rule out.

use datafusion::arrow::datatypes::{FieldRef, Fields};
use datafusion::catalog::Session;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::logical_expr::Expr;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::CONCURRENT_HEADS;
use super::choice::PathPartitioning;
use super::path_filters::{is_of_paths, with_true_paths};
use super::path_values::{decode, typed};
use crate::sinks::is_visible;

/// More directories than can be listed at once are listed one by one only where these are at most one of so many.
const WORTHWHILE_PART: usize = 4;

/// Conditions on the columns that directories give, of a table whose columns are known.
#[derive(Clone, Copy)]
pub(super) struct DirectoryFilters<'a> {
    pub(super) session: &'a dyn Session,
    /// Of the directories, from the outermost on.
    pub(super) columns: &'a [FieldRef],
    pub(super) partitioning: &'a PathPartitioning,
    pub(super) filters: &'a [Expr],
}

/// What is below a directory.
#[derive(Debug, Default)]
pub(super) struct Below {
    pub(super) objects: Vec<ObjectMeta>,
    /// Directories that were not listed, since no file in them can be wanted.
    pub(super) skipped: usize,
}

impl DirectoryFilters<'_> {
    /// Lists what is below `prefix` and can be wanted; nothing where listing all of it is as good.
    pub(super) async fn list(&self, store: &dyn ObjectStore, prefix: &Path) -> Result<Option<Below>> {
        let mut found = Below::default();
        let mut open = vec![directory(prefix.clone())];
        let mut whole = Vec::new();
        for level in 0..self.columns.len() {
            if open.is_empty() || (level..self.columns.len()).all(|later| self.of_level(later).is_empty()) {
                break;
            }
            let mut listed = Vec::with_capacity(open.len());
            for above in &open {
                listed.push(store.list_with_delimiter(Some(&above.object_meta.location)));
            }
            let listed: Vec<_> = stream::iter(listed).buffered(CONCURRENT_HEADS).try_collect().await?;
            let mut candidates = Vec::new();
            for (above, listed) in open.iter().zip(listed) {
                found.objects.extend(listed.objects);
                for path in listed.common_prefixes.into_iter().filter(|path| is_visible(prefix, path)) {
                    match self.value_of(level, &path) {
                        Some(value) => {
                            let values = above.partition_values.iter().cloned().chain([value]).collect();
                            candidates.push(directory(path).with_partition_values(values));
                        }
                        None => whole.push(path),
                    }
                }
            }
            let all = candidates.len();
            let known = Fields::from(&self.columns[..=level]);
            // What cannot be said of a directory is told of its files, if there are any.
            let kept = with_true_paths(self.session, candidates.clone(), &known, &self.of_level(level));
            open = kept.unwrap_or(candidates);
            found.skipped += all - open.len();
            if open.len() > CONCURRENT_HEADS && open.len() * WORTHWHILE_PART > all {
                return Ok(None);
            }
        }
        if found.skipped == 0 {
            return Ok(None);
        }
        whole.extend(open.into_iter().map(|directory| directory.object_meta.location));
        let mut listed = Vec::with_capacity(whole.len());
        for path in &whole {
            listed.push(store.list(Some(path)).try_collect::<Vec<_>>());
        }
        let mut listed = stream::iter(listed).buffered(CONCURRENT_HEADS);
        while let Some(objects) = listed.try_next().await? {
            found.objects.extend(objects);
        }
        Ok(Some(found))
    }

    /// The conditions that can be answered when the column of this level is known, and no sooner.
    fn of_level(&self, level: usize) -> Vec<Expr> {
        let of_first = |filter: &Expr, columns: usize| is_of_paths(filter, &self.columns[..columns]);
        let of_level = self.filters.iter().filter(|filter| of_first(filter, level + 1) && !of_first(filter, level));
        of_level.cloned().collect()
    }

    /// The value that a directory gives the column of its level. One that cannot be read is told when its files are.
    fn value_of(&self, level: usize, path: &Path) -> Option<ScalarValue> {
        let field = &self.columns[level];
        let name = path.filename()?;
        let value = match self.partitioning {
            PathPartitioning::None => return None,
            PathPartitioning::Hive => {
                let (key, value) = name.split_once('=')?;
                (decode(key) == *field.name()).then(|| decode(value))?
            }
            PathPartitioning::Directories(_) => decode(name),
        };
        typed(field, &value)
    }
}

/// A directory in the place of a file.
fn directory(location: Path) -> PartitionedFile {
    let last_modified = Default::default();
    PartitionedFile::new_from_meta(ObjectMeta { location, last_modified, size: 0, e_tag: None, version: None })
}
