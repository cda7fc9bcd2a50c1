//! Configs, graphs and loading of whole models. One binary, because linking costs more than running.
#[path = "../weights/files.rs"]
#[allow(dead_code)]
mod files;

mod config_gguf;
mod config_hf;
mod forward;
mod generation;
mod interpreter;
mod loading;
