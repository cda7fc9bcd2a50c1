//! Cache tests.
