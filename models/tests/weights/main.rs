//! Weight files, good and bad. One binary, because linking costs more than running.
mod files;
mod fuzz;
mod gguf;
mod safetensors;
mod shards;
