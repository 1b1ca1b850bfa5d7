//! Placeholder: documented when it is built.
