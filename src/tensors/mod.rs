//! Tensors: columns in which each row has an array of numbers of one shape.
//!
//! ```text
//! range_tensor(n, [3, 4])  ─┐
//! make_tensor(list, [3, 4]) ┼─> FixedSizeList(12), and in the metadata of the field:
//! Parquet, Arrow           ─┘     ARROW:extension:name     = arrow.fixed_shape_tensor
//!                                 ARROW:extension:metadata = {"shape":[3, 4]}
//!                                       |
//!                                       v  feature `ndarray`
//!                                  `TensorBatch::tensor::<f32>("x")`: a view of rows x 3 x 4
//! ```
//!
//! Of the values of a tensor the last dimension changes first. Columns stay tensors through functions that return the
//! columns that they get, shuffles, sorts, joins, the block store, and Parquet files. A `CAST`, `CASE` or `coalesce`
//! gives lists of a fixed size without a shape: DataFusion leaves out there what is said of an extension.

#[cfg(feature = "ndarray")]
mod batch;
mod column;
mod make_tensor;
mod shape;

#[cfg(feature = "ndarray")]
pub use batch::{TensorBatch, TensorElement};
pub(crate) use column::{check_same_tensors, with_tensors_of};
pub use make_tensor::make_tensor;
pub(crate) use make_tensor::{MAKE_TENSOR, scalar_functions};
pub(crate) use shape::TensorShape;

/// The version of it whose arrays [`TensorBatch`] gives.
#[cfg(feature = "ndarray")]
pub use ndarray;
