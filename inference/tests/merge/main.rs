//! Merging the tiny sources of `fixtures/merge` (made by its `make.py`), whole and damaged, and comparing what comes of it.

#![allow(clippy::unwrap_used)]

mod command;
mod merged;
mod refused;
mod support;
mod validate;
