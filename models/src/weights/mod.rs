//! Weight files: memory-mapped, completely validated when opened, then just lists of tensors.
//!
//! Nothing a file says is trusted: sizes are computed with overflow checks, every byte range is held against the file's
//! length, duplicates, overlaps and holes are refused, counts are held against the bytes left before anything is
//! allocated. Every refusal is one line naming file, tensor or key, and cause. What opens is complete: there is no
//! partial service.
//!
//! Rejected: the `safetensors` crate as the reader. It refuses the same files (a test holds us to that) but says
//! neither which tensor nor which sizes. It writes our test files instead.

mod checkpoint;
mod error;
pub mod gguf;
mod mapped;
pub mod safetensors;
mod shards;
mod tensor;

pub use checkpoint::Checkpoint;
pub use error::{Fault, TensorFault, WeightsError};
pub use mapped::MappedFile;
pub use tensor::{Format, Tensor};

pub(crate) use error::quoted;
