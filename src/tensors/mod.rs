//! Tensors: columns in which each row has an array of numbers of one shape.
//!
//! ```text
//! range_tensor(n, [3, 4])  ─┐
//! make_tensor(list, [3, 4]) ┼─> FixedSizeList(12), and in the metadata of the field:
//! Parquet, Arrow           ─┘     ARROW:extension:name     = arrow.fixed_shape_tensor
//!                                 ARROW:extension:metadata = {"shape":[3, 4]}
//! ```
//!
//! Of the values of a tensor the last dimension changes first. Columns stay tensors through functions that return the
//! columns that they get, shuffles, sorts, joins, the block store, and Parquet files. A `CAST`, `CASE` or `coalesce`
//! gives lists of a fixed size without a shape: DataFusion leaves out there what is said of an extension.

mod column;
mod make_tensor;
mod shape;

pub(crate) use column::{check_same_tensors, with_tensors_of};
pub use make_tensor::make_tensor;
pub(crate) use make_tensor::{MAKE_TENSOR, scalar_functions};
pub(crate) use shape::TensorShape;
