//! The one typed configuration of packd.

#![deny(missing_docs)]
