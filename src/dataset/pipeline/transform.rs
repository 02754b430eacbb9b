//! What is done with each window as with a dataset.

use datafusion::common::Result;
use datafusion::logical_expr::Expr;

use super::DatasetPipeline;
use crate::dataset::Predicate;
use crate::functions::{MapFunction, MapOptions, Row};
use crate::seed::RandomSeed;

/// Methods of a dataset, for each window of a pipeline.
macro_rules! in_each_window {
    ($( $name:ident $(<$( $type:ident : $bound:path ),*>)? ( $( $argument:ident : $of:ty ),* ); )*) => {
        impl DatasetPipeline {
            $(
                #[doc = concat!("As [`Dataset::", stringify!($name), "`](crate::Dataset::", stringify!($name), "), in ")]
                /// each window.
                ///
                /// # Errors
                ///
                /// As there.
                pub fn $name $(<$( $type: $bound ),*>)? (&self, $( $argument: $of ),*) -> Result<Self> {
                    self.foreach_window(|window| window.$name($( $argument ),*))
                }
            )*
        }
    };
}

in_each_window! {
    map_batches(function: impl Into<MapFunction>);
    map_batches_with(function: impl Into<MapFunction>, options: MapOptions);
    map<T: Row, U: Row>(f: impl Fn(T) -> U + Send + Sync + 'static);
    map_with<T: Row, U: Row>(f: impl Fn(T) -> U + Send + Sync + 'static, options: MapOptions);
    flat_map<T: Row, U: Row, I: IntoIterator<Item = U> >(f: impl Fn(T) -> I + Send + Sync + 'static);
    flat_map_with<T: Row, U: Row, I: IntoIterator<Item = U> >(
        f: impl Fn(T) -> I + Send + Sync + 'static, options: MapOptions
    );
    filter(predicate: impl Into<Predicate>);
    filter_rows<T: Row>(f: impl Fn(&T) -> bool + Send + Sync + 'static);
    filter_rows_with<T: Row>(f: impl Fn(&T) -> bool + Send + Sync + 'static, options: MapOptions);
    select_columns(names: &[&str]);
    drop_columns(names: &[&str]);
    rename_columns(names: &[(&str, &str)]);
    with_column(name: &str, expression: Expr);
    with_columns(columns: Vec<(&str, Expr)>);
    random_sample(fraction: f64, seed: u64);
    local_shuffle(rows: usize, seed: impl Into<RandomSeed>);
}
