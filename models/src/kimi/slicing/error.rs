//! Why a model cannot be divided.

/// Why a model cannot be divided over ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// No ranks at all.
    #[error("a model cannot be divided over 0 ranks; use at least 1")]
    NoRanks,
    /// A rank that does not exist.
    #[error("rank {rank} of {ranks} does not exist; ranks count from 0")]
    NoSuchRank {
        /// As asked.
        rank: u64,
        /// Size of the group.
        ranks: u64,
    },
    /// Something that only whole pieces can be taken of.
    #[error("{count} {what} cannot be divided over {ranks} ranks; use {possible}")]
    Indivisible {
        /// e.g. `KDA heads`, or `groups of 32 in the expert width of 96`.
        what: String,
        /// How many there are.
        count: u64,
        /// Size of the group.
        ranks: u64,
        /// Sizes that work for the whole model, in words.
        possible: String,
    },
    /// Experts by id have no graph.
    #[error(
        "experts split by id have no graph, because op `experts` takes all experts of a layer; split them by width"
    )]
    ExpertsById,
    /// The rules do not cover the model: a defect of the model code.
    #[error("`{label}`: {reason}; this is a defect of the model code")]
    Rule {
        /// Weight or op concerned.
        label: String,
        /// What is wrong.
        reason: String,
    },
}
