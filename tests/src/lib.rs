//! What the tests in `tests/tests/` share: golden values and packages fetched at test time.
//!
//! Nothing here is part of the program; failures panic with what to do.

pub mod golden;
pub mod npm;
