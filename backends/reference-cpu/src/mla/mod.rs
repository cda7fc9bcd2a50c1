//! Multi-head latent attention: cached rows [latent | rope] that all heads share, queries in the latent space.

pub mod attention;
mod kernel;
pub mod project;
#[cfg(test)]
mod tests;
pub mod write;
