//! The trait behind every map operator, and functions made of closures.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, plan_datafusion_err};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{one_message, panic_text};

/// A function from a batch of rows to a batch of rows; it may return more or fewer rows than it got.
///
/// It is called from several threads at once. A panic becomes an error which names the function.
pub trait BatchFunction: Send + Sync {
    /// Short name, which plans and stats show.
    fn name(&self) -> &str;

    /// Transforms one batch. It is never called with a batch of another schema than it was planned with.
    ///
    /// # Errors
    ///
    /// Any error is the error of the query, unless the options of the call tolerate it.
    fn call(&self, batch: RecordBatch) -> Result<RecordBatch>;

    /// Columns of what it returns for this input, where that is declared; otherwise the engine calls the function on an
    /// empty batch at plan time.
    fn declared_schema(&self, _input: &SchemaRef) -> Option<Result<SchemaRef>> {
        None
    }

    /// Columns of what it returns for this input, where they are not declared: what comes of an empty batch.
    ///
    /// # Errors
    ///
    /// What the function returns for an empty batch.
    fn infer_schema(&self, input: &SchemaRef) -> Result<SchemaRef> {
        Ok(self.call(RecordBatch::new_empty(Arc::clone(input)))?.schema())
    }

    /// Whether it always returns as many rows as it got, so that a limit may move below it.
    fn preserves_row_count(&self) -> bool {
        false
    }

    /// Whether it gives the same rows for the same batch whenever it is called. Without that an iterator has no resume
    /// token.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// Whether it keeps state on the thread that calls it, and so has to run on actors; see [`actor`](crate::actor).
    fn is_stateful(&self) -> bool {
        false
    }

    /// Whether calls are made by [`BatchFunction::call_async`], several of them in flight at once.
    fn is_async(&self) -> bool {
        false
    }

    /// Transforms one batch without holding up a thread while it waits.
    fn call_async(&self, batch: RecordBatch) -> BoxFuture<'static, Result<RecordBatch>> {
        std::future::ready(self.call(batch)).boxed()
    }

    /// Builds the state of the thread that calls this, if there is none yet. Called before the first batch.
    ///
    /// # Errors
    ///
    /// Where the state cannot be built.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// The function of which this one says more than it does itself.
    #[doc(hidden)]
    fn said_of(&self) -> Option<FunctionRef> {
        None
    }
}

/// A shared function. Two are equal when they are the same object.
#[derive(Clone)]
pub struct FunctionRef(Arc<dyn BatchFunction>);

impl FunctionRef {
    /// Shares `function`.
    pub fn new(function: impl BatchFunction + 'static) -> Self {
        Self(Arc::new(function))
    }

    /// Whether both do the same, whatever else is said of them.
    pub(crate) fn does_as(&self, other: &Self) -> bool {
        fn innermost(function: &FunctionRef) -> FunctionRef {
            function.0.said_of().map_or_else(|| function.clone(), |inner| innermost(&inner))
        }
        innermost(self) == innermost(other)
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Whether a limit may move below it.
    pub fn preserves_row_count(&self) -> bool {
        self.0.preserves_row_count()
    }

    /// Whether it gives the same rows for the same batch whenever it is called.
    pub fn is_deterministic(&self) -> bool {
        self.0.is_deterministic()
    }

    /// Whether it has to run on actors.
    pub fn is_stateful(&self) -> bool {
        self.0.is_stateful()
    }

    /// Whether it is called by [`FunctionRef::call_async`].
    pub fn is_async(&self) -> bool {
        self.0.is_async()
    }

    /// Calls an async function; a panic is an error.
    ///
    /// # Errors
    ///
    /// What the function returns, or its panic.
    pub async fn call_async(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let called = self.caught(|| Ok(self.0.call_async(batch)))?;
        match AssertUnwindSafe(called).catch_unwind().await {
            Ok(result) => result,
            Err(payload) => exec_err!("function '{}' panicked: {}", self.name(), panic_text(payload.as_ref())),
        }
    }

    /// Calls the function; a panic is an error.
    ///
    /// # Errors
    ///
    /// What the function returns, or its panic.
    pub fn call(&self, batch: RecordBatch) -> Result<RecordBatch> {
        self.caught(|| self.0.call(batch))
    }

    /// Builds the state of this thread, if the function has some; a panic is an error.
    ///
    /// # Errors
    ///
    /// What building it returns, or its panic.
    pub fn prepare(&self) -> Result<()> {
        self.caught(|| self.0.prepare())
    }

    fn caught<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => result,
            Err(payload) => exec_err!("function '{}' panicked: {}", self.name(), panic_text(payload.as_ref())),
        }
    }

    /// Columns that the function returns: as declared, or of what it returns for an empty batch.
    ///
    /// # Errors
    ///
    /// Where the function fails for an empty batch.
    pub fn output_schema(&self, input: &SchemaRef) -> Result<SchemaRef> {
        if let Some(declared) = self.0.declared_schema(input) {
            return declared;
        }
        match self.caught(|| self.0.infer_schema(input)) {
            Ok(schema) => Ok(schema),
            Err(e) => Err(plan_datafusion_err!(
                "{}\n  while calling '{}' on an empty batch to learn its output columns; declare them instead with \
                 MapOptions::schema or BatchFunction::declared_schema",
                one_message(&e),
                self.name()
            )),
        }
    }

    /// Checks that a returned batch has the planned columns, and gives it the planned schema.
    ///
    /// # Errors
    ///
    /// Where columns are missing, too many or of other types.
    pub fn conform(&self, batch: RecordBatch, planned: &SchemaRef) -> Result<RecordBatch> {
        let got = batch.schema_ref();
        if Arc::ptr_eq(got, planned) {
            return Ok(batch);
        }
        let same = got.fields().len() == planned.fields().len()
            && got
                .fields()
                .iter()
                .zip(planned.fields())
                .all(|(g, p)| g.name() == p.name() && g.data_type() == p.data_type());
        if !same {
            return exec_err!(
                "function '{}' returned columns [{}], but was planned to return [{}]",
                self.name(),
                describe(got),
                describe(planned)
            );
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(planned), batch.columns().to_vec(), &options)
            .map_err(|e| DataFusionError::Execution(format!("function '{}' returned a bad column: {e}", self.name())))
    }
}

fn describe(schema: &SchemaRef) -> String {
    let fields: Vec<_> = schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
    fields.join(", ")
}

impl PartialEq for FunctionRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FunctionRef {}

impl Hash for FunctionRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

impl fmt::Debug for FunctionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A closure as a function. `F`'s own name is shown: `normalize` for `fn normalize`, `closure` for a closure.
pub fn from_closure<F>(f: F) -> FunctionRef
where
    F: Fn(RecordBatch) -> Result<RecordBatch> + Send + Sync + 'static,
{
    FunctionRef::new(Closure { name: type_name_of::<F>(), f, preserves_row_count: false, schema: None })
}

impl FunctionRef {
    /// The same function under another name, with its output columns declared, or declared to keep the row count, or
    /// not to give the same rows each time.
    pub(crate) fn declare(
        self,
        name: Option<String>,
        schema: Option<SchemaRef>,
        preserves_row_count: bool,
        is_deterministic: bool,
    ) -> Self {
        let same = (preserves_row_count, is_deterministic) == (self.preserves_row_count(), self.is_deterministic());
        if name.is_none() && schema.is_none() && same {
            return self;
        }
        let name = name.unwrap_or_else(|| self.name().to_owned());
        Self::new(Declared { inner: self.0, name, preserves_row_count, is_deterministic, schema })
    }
}

/// A function with another name, or with more that is known of it.
struct Declared {
    inner: Arc<dyn BatchFunction>,
    name: String,
    preserves_row_count: bool,
    is_deterministic: bool,
    schema: Option<SchemaRef>,
}

impl BatchFunction for Declared {
    fn said_of(&self) -> Option<FunctionRef> {
        Some(FunctionRef(Arc::clone(&self.inner)))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, batch: RecordBatch) -> Result<RecordBatch> {
        self.inner.call(batch)
    }

    fn declared_schema(&self, input: &SchemaRef) -> Option<Result<SchemaRef>> {
        self.schema.clone().map(Ok).or_else(|| self.inner.declared_schema(input))
    }

    fn infer_schema(&self, input: &SchemaRef) -> Result<SchemaRef> {
        self.inner.infer_schema(input)
    }

    fn preserves_row_count(&self) -> bool {
        self.preserves_row_count
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }

    fn is_stateful(&self) -> bool {
        self.inner.is_stateful()
    }

    fn is_async(&self) -> bool {
        self.inner.is_async()
    }

    fn call_async(&self, batch: RecordBatch) -> BoxFuture<'static, Result<RecordBatch>> {
        self.inner.call_async(batch)
    }

    fn prepare(&self) -> Result<()> {
        self.inner.prepare()
    }
}

/// An async function, for calls of services and other things that take time without taking a thread. Each task has
/// several calls in flight ([`MapOptions::max_concurrency`](crate::MapOptions)), in order unless `preserve_order` is
/// off. The columns that it returns have to be declared by [`MapOptions::schema`](crate::MapOptions) where they are not
/// those of its input.
///
/// ```
/// # #[tokio::main] async fn main() -> datafusion::error::Result<()> {
/// use blockyard::functions::from_async;
/// use blockyard::prelude::*;
///
/// let context = DataContext::new()?;
/// let ask = from_async("ask", |batch| async move {
///     tokio::task::yield_now().await; // Asking a service would go here.
///     Ok(batch)
/// });
/// let options = MapOptions { max_concurrency: Some(8), batch_size: BatchSize::Rows(100), ..Default::default() };
/// assert_eq!(context.range(1000)?.map_batches_with(ask, options)?.count().await?, 1000);
/// # Ok(()) }
/// ```
pub fn from_async<F, R>(name: &str, f: F) -> FunctionRef
where
    F: Fn(RecordBatch) -> R + Send + Sync + 'static,
    R: Future<Output = Result<RecordBatch>> + Send + 'static,
{
    FunctionRef::new(AsyncClosure { name: name.to_owned(), f: move |batch| f(batch).boxed() })
}

struct AsyncClosure<F> {
    name: String,
    f: F,
}

impl<F> BatchFunction for AsyncClosure<F>
where
    F: Fn(RecordBatch) -> BoxFuture<'static, Result<RecordBatch>> + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, _batch: RecordBatch) -> Result<RecordBatch> {
        internal_err!("'{}' is async", self.name)
    }

    fn infer_schema(&self, input: &SchemaRef) -> Result<SchemaRef> {
        Ok(Arc::clone(input))
    }

    fn is_async(&self) -> bool {
        true
    }

    fn call_async(&self, batch: RecordBatch) -> BoxFuture<'static, Result<RecordBatch>> {
        (self.f)(batch)
    }
}

/// Last segment of a function's path.
pub(super) fn type_name_of<F>() -> String {
    let mut depth = 0;
    let mut path = String::new();
    for c in std::any::type_name::<F>().chars() {
        depth += i32::from(c == '<');
        if depth == 0 {
            path.push(c);
        }
        depth -= i32::from(c == '>');
    }
    path.rsplit("::").next().unwrap_or_default().trim_matches(['{', '}']).to_owned()
}

pub(super) struct Closure<F> {
    pub(super) name: String,
    pub(super) f: F,
    pub(super) preserves_row_count: bool,
    pub(super) schema: Option<SchemaRef>,
}

impl<F: Fn(RecordBatch) -> Result<RecordBatch> + Send + Sync> BatchFunction for Closure<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, batch: RecordBatch) -> Result<RecordBatch> {
        (self.f)(batch)
    }

    fn declared_schema(&self, _input: &SchemaRef) -> Option<Result<SchemaRef>> {
        self.schema.clone().map(Ok)
    }

    fn preserves_row_count(&self) -> bool {
        self.preserves_row_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::record_batch;

    fn normalize(batch: RecordBatch) -> Result<RecordBatch> {
        Ok(batch)
    }

    #[test]
    fn functions_show_their_own_name() {
        assert_eq!(from_closure(normalize).name(), "normalize");
        let columns = 1;
        assert_eq!(from_closure(move |b| Ok(b.project(&[0; 1][..columns])?)).name(), "closure");
    }

    #[test]
    fn a_panic_is_an_error_that_names_the_function() {
        let batch = record_batch!(("x", Int32, [1])).unwrap();
        let f = from_closure(|_| panic!("no rows today")).declare(Some("score".into()), None, false, true);
        let error = f.call(batch.clone()).unwrap_err().to_string();
        assert!(error.contains("function 'score' panicked: no rows today"), "{error}");
        let error = f.output_schema(&batch.schema()).unwrap_err().to_string();
        assert!(error.contains("on an empty batch to learn its output columns"), "{error}");
    }

    #[test]
    fn other_columns_than_planned_are_an_error() {
        let batch = record_batch!(("x", Int32, [1])).unwrap();
        let planned = record_batch!(("y", Utf8, ["a"])).unwrap().schema();
        let error = from_closure(normalize).conform(batch, &planned).unwrap_err().to_string();
        assert!(error.contains("returned columns [x Int32], but was planned to return [y Utf8]"), "{error}");
    }
}
