//! Write a backend in Rust: implement two traits, call one macro.
//!
//! ```text
//! BackendImpl  what devices there are, open one
//! HostDevice   computes in host memory: support, prepare, run      (wrapped in HostBacked)
//! DeviceImpl   or: full control of memory, queues, events, programs
//! ```
//!
//! A crate `foo` (rlib) holds the backend and `embed_backend!(Foo)`; a crate `foo/plugin` (cdylib) holds one line,
//! `export_backend!(foo::Foo)`. They are two crates because two rlibs that both export the entry symbol do not link.
//! `backends/null` is the annotated template.

mod bind;
mod device;
mod export;
mod fault;
mod glue;
mod host_device;
mod host_memory;
mod op_view;
mod options;
mod services;
mod table;
mod tensor;
mod timeline;

pub use crate::step::StepView;
pub use bind::Bindings;
pub use device::{BackendImpl, Bucket, DeviceImpl, DeviceInfo, Info, Load, RunView, Span};
pub use fault::Fault;
pub use host_device::{BoundOp, HostBacked, HostDevice, HostProgram};
pub use host_memory::HostArena;
pub use op_view::OpView;
pub use options::Options;
pub use services::HostServices;
pub(crate) use table::version;
pub use table::{entry, table};
pub use tensor::{Operand, Tensor};
pub use timeline::Timeline;

pub use crate::support::{Answer, Determinism, Pack, Support};
