//! Where samples and images come from.
//!
//! * [`ImageStore`]: opens the images that records name, and only below the allowed roots.

#![deny(missing_docs)]

mod image_store;

pub use image_store::{ImageStore, ImageStoreOptions, OpenImage};
