//! Which files tell the columns of all.

use datafusion::arrow::datatypes::Schema;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, plan_err};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use super::CONCURRENT_HEADS;
use super::columns::union_of;
use super::listing::{ListedFile, Listing, full_path};
use crate::error::ErrorContext;
use crate::sources::formats::ReadFormat;

/// The file that tells the columns: one without bytes has none to tell, if the format has such files.
pub(super) fn telling<'a>(format: &dyn ReadFormat, listing: &'a Listing) -> &'a ListedFile {
    let telling = listing.files.iter().find(|file| file.meta.size > 0 || !format.may_be_empty());
    telling.unwrap_or(&listing.files[0])
}

/// The columns of the first file that has any, and that file. A text without a row may have none.
pub(super) async fn first_columns(
    session: &dyn Session,
    format: &dyn ReadFormat,
    listing: &Listing,
) -> Result<(ObjectMeta, Schema)> {
    let told = &telling(format, listing).meta;
    let columns = format.columns(session, listing, told).await?;
    if !columns.fields().is_empty() || !format.may_be_empty() {
        return Ok((told.clone(), columns));
    }
    for file in listing.files.iter().map(|file| &file.meta).filter(|file| file.size > 0 && *file != told) {
        let _read = listing.pinned.as_ref().map(|pinned| pinned.reading(&file.location));
        let columns = format.columns(session, listing, file).await?;
        if !columns.fields().is_empty() {
            return Ok((file.clone(), columns));
        }
    }
    Ok((told.clone(), columns))
}

/// The columns of all files, by name.
pub(super) async fn columns_of_all(
    session: &dyn Session,
    format: &dyn ReadFormat,
    listing: &Listing,
) -> Result<Schema> {
    if !format.has_names() {
        return plan_err!(
            "{} of files without headers tells columns apart by their place, so these cannot have different ones; schema \
             must be 'first'",
            format.read_name()
        );
    }
    let with_columns = listing.files.iter().filter(|file| file.meta.size > 0 || !format.may_be_empty());
    let columns = |file: ObjectMeta| async move {
        let _read = listing.pinned.as_ref().map(|pinned| pinned.reading(&file.location));
        let columns = format.columns(session, listing, &file).await?;
        Ok::<_, DataFusionError>((file, columns))
    };
    let files = with_columns.map(|file| file.meta.clone()).collect::<Vec<_>>();
    let mut found = stream::iter(files).map(columns).buffered(CONCURRENT_HEADS);
    let mut all = Schema::empty();
    while let Some((file, columns)) = found.try_next().await? {
        let union = union_of(&all, &columns, |one, other| format.common_type(one, other));
        all = union.while_doing(|| format!("reading the columns of '{}'", full_path(&listing.url, &file.location)))?;
    }
    Ok(all)
}
