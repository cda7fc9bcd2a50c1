//! The CPU backend.
pub mod barrier;
pub mod device;
pub mod exact;
pub mod level;
pub mod part;
pub mod pool;
pub mod scratch;
pub use device::ReferenceCpu;
pub use level::Level;
pub use part::Part;
pub use pool::{Pool, Worker};
