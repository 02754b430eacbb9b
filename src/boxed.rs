//! Functions of traits that `#[async_trait]` has made, without what it costs where plans are among the arguments.

/// A function of such a trait of another crate, by one of ours that returns a future.
///
/// In a function that `#[async_trait]` makes the compiler proves anew, for each, that what the future holds can go to
/// other threads. For an `Expr` or a `LogicalPlan` this took 4 to 5 seconds, and five sixths of the time in which this
/// crate is checked. Where a function has no bounds on lifetimes, it is known from the first on.
macro_rules! boxed {
    (
        fn $name:ident<$($lifetime:lifetime),*>(&self $(, $argument:ident: $type:ty)* $(,)?) -> $output:ty = $by:path;
    ) => {
        fn $name<'me, $($lifetime,)* 'all>(
            &'me self,
            $($argument: $type),*
        ) -> ::futures::future::BoxFuture<'all, $output>
        where
            'me: 'all,
            $($lifetime: 'all,)*
            Self: 'all,
        {
            $by(self, $($argument),*)
        }
    };
}
pub(crate) use boxed;

/// [`TableProvider::scan`](datafusion::catalog::TableProvider::scan) by a function of ours.
macro_rules! scan_by {
    ($by:path) => {
        $crate::boxed::boxed! {
            fn scan<'b, 'c, 'd>(
                &self,
                session: &'b dyn ::datafusion::catalog::Session,
                projection: Option<&'c Vec<usize>>,
                filters: &'d [::datafusion::logical_expr::Expr],
                limit: Option<usize>,
            ) -> ::datafusion::common::Result<::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> = $by;
        }
    };
}
pub(crate) use scan_by;
