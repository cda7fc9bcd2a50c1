//! The engine under a fake device that believes only the parameter block.
//!
//! * `fake`: a device whose cache rows hold fingerprints of the exact token history, read through the block tables.
//! * `oracle`: the same request alone, from its tokens only, in a page of code.
//! * `simulation`: random workloads and configurations; whatever happens, each request hears what the oracle says.
//! * `grammar`: constrained requests.
//! * `policies`: what each scheduling policy promises.
//! * `decisions`: that what is said about who waits and who loses memory is true.
//! * `cases`: named public faults.
//! * `drafting`: what a draft model costs where it does not pay.
//! * `host_tier`: pages that leave the device and come back.

mod cases;
mod decisions;
mod drafting;
mod fake;
mod grammar;
mod host_tier;
mod hybrid;
mod oracle;
mod policies;
mod simulation;
