//! The HTTP API over a scripted engine and a byte-level text layer: every case is tried on the wire.
mod bad_requests;
mod clients;
mod grammar;
mod kimi;
mod lifecycle;
mod overload;
mod response_shape;
mod support;
mod terminal;
mod text_and_stop;
mod tool_calls;
mod transport;
