//! Which files a path means: a file, a directory, a glob, a URL.

use std::sync::Arc;

use datafusion::common::plan_datafusion_err;
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::nearest;
use crate::sinks::is_visible;

/// A file and its `key=value` directories below the path that was asked for.
#[derive(Debug, Clone)]
pub(super) struct ListedFile {
    pub(super) meta: ObjectMeta,
    pub(super) hive: Vec<(String, String)>,
}

/// The files that some paths mean, sorted by path within each. All must be in the same store, whose URL is returned.
pub(super) async fn list_files(
    runtime: &RuntimeEnv,
    paths: &[String],
    extensions: &[&str],
) -> Result<(ListingTableUrl, Arc<dyn ObjectStore>, Vec<ListedFile>)> {
    let mut files = Vec::new();
    let mut first: Option<(ListingTableUrl, Arc<dyn ObjectStore>)> = None;
    for path in paths {
        check_local(path)?;
        let url = ListingTableUrl::parse(path)?;
        let store = runtime.object_store(url.object_store()).map_err(|_| {
            plan_datafusion_err!(
                "nothing is registered for '{}'; local paths work at once, stores are added by \
                 SessionContext::register_object_store",
                url.object_store()
            )
        })?;
        if let Some((known, _)) = &first
            && known.object_store() != url.object_store()
        {
            return plan_err!("all paths of a read must be in one store, got {known} and {url}");
        }
        let found = list_one(store.as_ref(), &url, extensions).await?;
        if found.is_empty() {
            return match url.get_glob() {
                Some(_) => plan_err!("no files match '{path}'"),
                None => plan_err!("no .{} files in '{path}'", extensions.join(", .")),
            };
        }
        files.extend(found);
        first.get_or_insert((url, store));
    }
    match first {
        Some((url, store)) => Ok((url, store, files)),
        None => plan_err!("a read needs at least one path"),
    }
}

async fn list_one(store: &dyn ObjectStore, url: &ListingTableUrl, extensions: &[&str]) -> Result<Vec<ListedFile>> {
    let prefix = url.prefix();
    if !url.is_collection() && url.get_glob().is_none() {
        let meta = store.head(prefix).await.map_err(DataFusionError::from)?;
        return Ok(vec![ListedFile { meta, hive: Vec::new() }]);
    }
    let mut listed: Vec<ObjectMeta> = store.list(Some(prefix)).try_collect().await.map_err(DataFusionError::from)?;
    listed.retain(|meta| {
        let name = meta.location.filename().unwrap_or_default();
        let wanted = url.get_glob().is_some()
            || name.split('.').skip(1).any(|part| extensions.iter().any(|e| part.eq_ignore_ascii_case(e)));
        wanted && is_visible(prefix, &meta.location) && url.contains(&meta.location, false)
    });
    listed.sort_by(|a, b| a.location.cmp(&b.location));
    Ok(listed.into_iter().map(|meta| ListedFile { hive: hive_values(prefix, &meta.location), meta }).collect())
}

fn hive_values(prefix: &Path, path: &Path) -> Vec<(String, String)> {
    let parts: Vec<String> = path.prefix_match(prefix).into_iter().flatten().map(|p| p.as_ref().to_owned()).collect();
    let directories = &parts[..parts.len().saturating_sub(1)];
    directories.iter().filter_map(|d| d.split_once('=')).map(|(k, v)| (k.to_owned(), decode(v))).collect()
}

/// Undoes the percent-encoding of hive values.
fn decode(text: &str) -> String {
    url::form_urlencoded::parse(format!("v={}", text.replace('+', "%2B")).as_bytes())
        .next()
        .map_or_else(|| text.to_owned(), |(_, value)| value.into_owned())
}

/// A local path that does not exist is an error that suggests its nearest neighbour.
fn check_local(path: &str) -> Result<()> {
    let is_url = path.contains("://");
    if is_url || path.contains(['*', '?', '[']) || std::path::Path::new(path).exists() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hive_directories_become_values() {
        let values = hive_values(&Path::from("data/t"), &Path::from("data/t/year=2024/city=S%C3%A3o/f.parquet"));
        assert_eq!(values[0], ("year".to_owned(), "2024".to_owned()));
        assert_eq!(values[1].0, "city");
        assert!(hive_values(&Path::from("a=1"), &Path::from("a=1/f.parquet")).is_empty());
    }
}
