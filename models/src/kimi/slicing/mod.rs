//! Tensor parallelism: what each rank holds of every weight, and where ranks must exchange values.
//!
//! * [`RULES`]: the rule of every weight, in one place; [`Split`] checks that a model can be divided, and applies the rules.
//! * [`RankGraph`]: the graph of one rank. It is the graph of a model with fewer heads and narrower MLPs; exchange points
//!   are not written down but follow from the table: a product over cut columns is a summand, and is summed over ranks
//!   before anything that is not a sum reads it.
//! * [`RankWeights`]: a rank's slices of a checkpoint.
//!
//! Rejected: collectives written into the model's graph. The parts of the model stay readable against the
//! specification, and a rule that changes cannot leave a collective behind at the wrong place.

mod error;
mod graph;
mod table;
mod weights;

pub use error::SplitError;
pub use graph::{Exchange, ExchangeKind, RankGraph, RankGraphs};
pub use table::{Cut, ExpertSplit, How, Part, RULES, Rule, Scope, Split};
pub use weights::RankWeights;
