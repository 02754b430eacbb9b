//! Which files paths mean: files, directories, globs, URLs.

use std::sync::Arc;

use datafusion::common::plan_datafusion_err;
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::choice::PathPartitioning;
use super::directories::{Below, DirectoryFilters};
use super::glob::{Glob, split_glob};
use super::path_values::path_values;
use super::pinned::{Bodies, PinnedStore, is_far};
use crate::error::{ErrorContext, nearest};
use crate::sinks::{ends_as, is_visible, without_compression};

/// A file and the columns that its directories below the path that was asked for give, with their values.
#[derive(Debug, Clone)]
pub(crate) struct ListedFile {
    pub(crate) meta: ObjectMeta,
    pub(crate) hive: Vec<(String, String)>,
}

/// What files are looked for, and what is wanted of them.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    /// How names of files end that a directory is searched for, if not as those of the format. None means all files.
    pub(super) extensions: Option<&'a [String]>,
    pub(super) of_format: &'static [&'static str],
    pub(super) partitioning: &'a PathPartitioning,
    pub(super) missing: Missing,
    /// What was read of small files already.
    pub(super) bodies: &'a Bodies,
    /// Directories of which these are not true are not listed.
    pub(super) directories: Option<DirectoryFilters<'a>>,
}

/// Whether a path may mean no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Fails,
    /// As long as another does.
    IsPassedOver,
    /// All of them may.
    IsEmpty,
}

/// The files that some paths mean at one moment: at least one, or none where directories were skipped, or nothing has
/// to be there.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The store of all of them.
    pub(crate) url: ListingTableUrl,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// In the order of the paths, and sorted within each.
    pub(crate) files: Vec<ListedFile>,
    /// The same store, where it answers only for files that are as they were listed.
    pub(crate) pinned: Option<Arc<PinnedStore>>,
    /// Whether the same paths may mean more files later.
    pub(crate) may_grow: bool,
    /// Directories that were not listed, since no file in them can be wanted.
    pub(crate) skipped: usize,
}

impl Listing {
    /// How the files are compressed, by the name of the first.
    pub(crate) fn compression(&self) -> FileCompressionType {
        let name = self.files.first().and_then(|file| file.meta.location.filename());
        without_compression(name.unwrap_or_default()).1
    }
}

impl Lookup<'_> {
    fn extensions(&self) -> Vec<&str> {
        match self.extensions {
            Some(said) => said.iter().map(String::as_str).collect(),
            None => self.of_format.to_vec(),
        }
    }

    /// The files that some paths mean, sorted by path within each. All must be in the same store.
    pub(super) async fn files(self, runtime: &RuntimeEnv, paths: &[String]) -> Result<Listing> {
        list_files(runtime, paths, self).await
    }
}

async fn list_files(runtime: &RuntimeEnv, paths: &[String], lookup: Lookup<'_>) -> Result<Listing> {
    let extensions = lookup.extensions();
    let mut files = Vec::new();
    let (mut may_grow, mut skipped) = (paths.len() > 1, 0);
    let mut first: Option<(ListingTableUrl, Arc<dyn ObjectStore>)> = None;
    for path in paths {
        let (url, glob) = match place_of(path) {
            Err(_) if lookup.missing == Missing::IsPassedOver && !path.contains("://") => continue,
            Err(_) if lookup.missing == Missing::IsEmpty => (ListingTableUrl::parse(path)?, None),
            place => place?,
        };
        let store = runtime.object_store(url.object_store())?;
        if let Some((known, _)) = &first
            && known.object_store() != url.object_store()
        {
            return plan_err!("all paths of a read must be in one store, got {known} and {url}");
        }
        may_grow |= url.is_collection() || glob.is_some();
        let found = list_one(store.as_ref(), &url, glob.as_ref(), lookup).await;
        let (found, without) = match found.while_doing(|| format!("listing '{path}'")) {
            Err(e) if lookup.missing != Missing::Fails && is_not_found(&e) => (Vec::new(), 0),
            found => found?,
        };
        skipped += without;
        let is_missing = found.is_empty() && without == 0;
        if is_missing && lookup.missing == Missing::IsPassedOver {
            continue;
        }
        if is_missing && lookup.missing == Missing::Fails {
            return match glob {
                Some(_) => plan_err!("no files match '{path}'"),
                None if extensions.is_empty() => plan_err!("no files in '{path}'"),
                None => plan_err!("no .{} files in '{path}'", extensions.join(", .")),
            };
        }
        files.extend(found);
        first.get_or_insert((url, store));
    }
    match first {
        Some((url, store)) if is_far(&url.object_store()) => {
            let metas = files.iter().map(|file: &ListedFile| file.meta.clone());
            let pinned = Arc::new(PinnedStore::new(store, &url.object_store(), metas, lookup.bodies.clone()));
            Ok(Listing { url, store: Arc::clone(&pinned) as _, files, pinned: Some(pinned), may_grow, skipped })
        }
        Some((url, store)) => Ok(Listing { url, store, files, pinned: None, may_grow, skipped }),
        None if !paths.is_empty() => plan_err!("none of the paths is there: {}", paths.join(", ")),
        None => plan_err!("a read needs at least one path"),
    }
}

fn is_not_found(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::ObjectStore(e) => matches!(e.as_ref(), object_store::Error::NotFound { .. }),
        _ => false,
    }
}

/// The place that a path names, and the glob below it. What is there under just this name is meant by it.
fn place_of(path: &str) -> Result<(ListingTableUrl, Option<Glob>)> {
    let is_url = path.contains("://");
    let literal = std::path::Path::new(path);
    if !is_url && literal.exists() {
        let absolute = std::path::absolute(literal)?;
        let url = match literal.is_dir() {
            true => url::Url::from_directory_path(&absolute),
            false => url::Url::from_file_path(&absolute),
        };
        let url = url.map_err(|()| plan_datafusion_err!("'{path}' cannot be a URL"))?;
        return Ok((ListingTableUrl::try_new(url, None)?, None));
    }
    let Some((directory, pattern)) = split_glob(path) else {
        check_local(path)?;
        return Ok((ListingTableUrl::parse(path)?, None));
    };
    let directory = if directory.is_empty() { "./" } else { directory };
    check_local(directory)?;
    Ok((ListingTableUrl::parse(directory)?, Some(Glob::parse(path, pattern)?)))
}

/// The files that one path means, and how many directories were not looked into.
async fn list_one(
    store: &dyn ObjectStore,
    url: &ListingTableUrl,
    glob: Option<&Glob>,
    lookup: Lookup<'_>,
) -> Result<(Vec<ListedFile>, usize)> {
    let (extensions, partitioning) = (lookup.extensions(), lookup.partitioning);
    let prefix = url.prefix();
    // Stores have no directories, and nobody has to say that a name stands for what is below it.
    let is_name = !url.is_collection() && glob.is_none();
    let may_be_directory = is_name && is_listable(url) && !prefix.filename().unwrap_or_default().contains('.');
    let is_directory = may_be_directory && store.list(Some(prefix)).try_next().await?.is_some();
    if is_name && !is_directory {
        let meta = store.head(prefix).await.map_err(DataFusionError::from)?;
        let hive = match partitioning {
            // There is no directory below it.
            PathPartitioning::Directories(_) => path_values(prefix, &meta.location, partitioning)?,
            _ => Vec::new(),
        };
        return Ok((vec![ListedFile { meta, hive }], 0));
    }
    let has_extension = |meta: &ObjectMeta| {
        let name = meta.location.filename().unwrap_or_default();
        extensions.is_empty() || extensions.iter().any(|extension| ends_as(name, extension))
    };
    let visible = |meta: &ObjectMeta| is_visible(prefix, &meta.location);
    let mut listed: Vec<ObjectMeta> = Vec::new();
    let mut skipped = 0;
    if let Some(glob) = glob.filter(|glob| glob.is_of_one_level()) {
        // What is below other directories need not be listed.
        listed = store.list_with_delimiter(Some(prefix)).await.map_err(DataFusionError::from)?.objects;
        listed.retain(|meta| visible(meta) && glob.matches(&below(prefix, &meta.location)));
    }
    if listed.is_empty() {
        let all = all_below(store, prefix, lookup.directories.filter(|_| glob.is_none())).await?;
        skipped = all.skipped;
        let all: Vec<ObjectMeta> = all.objects.into_iter().filter(visible).collect();
        listed = match glob {
            None => all.into_iter().filter(has_extension).collect(),
            Some(glob) => {
                let (files, others): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|meta| glob.matches(&below(prefix, &meta.location)));
                // A glob that means no files may mean directories.
                let in_directory = |meta: &ObjectMeta| glob.matches_directory_of(&below(prefix, &meta.location));
                let directories =
                    || others.into_iter().filter(|meta| has_extension(meta) && in_directory(meta)).collect();
                if files.is_empty() { directories() } else { files }
            }
        };
    }
    listed.sort_by(|a, b| a.location.cmp(&b.location));
    let file = |meta: ObjectMeta| Ok(ListedFile { hive: path_values(prefix, &meta.location, partitioning)?, meta });
    Ok((listed.into_iter().map(file).collect::<Result<_>>()?, skipped))
}

/// What is below a directory and can be wanted.
async fn all_below(store: &dyn ObjectStore, prefix: &Path, directories: Option<DirectoryFilters<'_>>) -> Result<Below> {
    if let Some(directories) = directories
        && let Some(wanted) = directories.list(store, prefix).await?
    {
        return Ok(wanted);
    }
    let objects = store.list(Some(prefix)).try_collect().await?;
    Ok(Below { objects, skipped: 0 })
}

/// Whether a store without directories can say what begins with a name. Web servers say nothing of that.
fn is_listable(url: &ListingTableUrl) -> bool {
    !matches!(url.scheme(), "file" | "http" | "https")
}

/// The first file of a directory of a store, or one that a glob there means; a name in place of it where it is one.
pub(crate) async fn first_file(runtime: &RuntimeEnv, path: &str) -> Result<Option<String>> {
    let (url, _) = place_of(path)?;
    if !is_listable(&url) {
        return Ok(None);
    }
    let store = runtime.object_store(url.object_store())?;
    let mut listed = store.list(Some(url.prefix()));
    while let Some(meta) = listed.try_next().await? {
        if is_visible(url.prefix(), &meta.location) {
            return Ok(Some(full_path(&url, &meta.location)));
        }
    }
    Ok(None)
}

/// The part of a path that is below a directory.
fn below(prefix: &Path, path: &Path) -> String {
    let parts: Vec<_> = path.prefix_match(prefix).into_iter().flatten().map(|part| part.as_ref().to_owned()).collect();
    parts.join("/")
}

/// A path that can be read again: absolute on local disks, a URL elsewhere.
pub(crate) fn full_path(url: &ListingTableUrl, location: &Path) -> String {
    match url.scheme() {
        "file" => format!("/{location}"),
        _ => format!("{}{location}", url.object_store()),
    }
}

/// A local path that does not exist is an error that suggests its nearest neighbour. Of one with wildcards nothing is
/// known before it is listed.
pub(crate) fn check_local(path: &str) -> Result<()> {
    let is_elsewhere = path.contains("://") || split_glob(path).is_some();
    if is_elsewhere || std::path::Path::new(path).exists() {
        return Ok(());
    }
    let path = std::path::Path::new(path);
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let neighbours: Vec<String> = std::fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let hint = nearest(&name, neighbours.iter().map(String::as_str))
        .map_or(String::new(), |n| format!(" Did you mean '{}'?", directory.join(n).display()));
    Err(plan_datafusion_err!("path '{}' does not exist.{hint}", path.display()))
}
