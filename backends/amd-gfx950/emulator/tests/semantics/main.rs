//! What instructions mean, said a second time: per lane, in plain integer and f64 arithmetic, from the manual's formulas and
//! without a look at the executor or a call into it. Each family runs through the whole machine, on corners and random inputs.
//!
//! Formulas are as dumb as can be (bit by bit, by decimal ranges, by looking through all values of a format), so that a mistake
//! in one is not the executor's. Rejected: expected numbers written down; they say one thing about one input.

mod bench;
mod buffer;
mod compare;
mod control;
mod convert;
mod divide;
mod evidence;
mod float;
mod integer;
mod lanes;
mod lds;
mod memory;
mod scalar;
mod widths;
