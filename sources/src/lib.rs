//! Where samples and images come from.
//!
//! * [`Input`]: the input files of a run, with what tells one version of a file from another.
//! * [`RecordReader`]: streams the records of an input in blocks, with the byte offset and line of each.
//! * [`slices`]: cuts the inputs for many workers.
//! * [`RecordFetcher`]: goes back for the bytes of chosen records, many at once, sorted by place.
//! * [`ImageStore`]: opens the images that records name, and only below the allowed roots.
//! * [`ImageHeader`]: format, size and completeness of an image, from its first and last bytes.
//!
//! Files are recognised by content, never by name: a JSON array called `.jsonl` is read as an array,
//! a gzip file without suffix is unpacked.

#![deny(missing_docs)]

mod array;
mod blocks;
mod compression;
mod error;
mod expand;
mod fetch;
mod image_header;
mod image_stamp;
mod image_store;
mod image_tail;
mod input;
mod input_file;
mod lines;
mod loaded_images;
mod open_image;
mod reader;
mod slices;
mod spool;

pub use array::ArraySplitter;
pub use blocks::{RawRecord, RecordBlock, UnreadableRecord};
pub use compression::Compression;
pub use error::SourceError;
pub use expand::expand;
pub use fetch::{FetchRequest, RecordFetcher};
pub use image_header::{ImageFormat, ImageHeader};
pub use image_stamp::ImageStamp;
pub use image_store::{ImageStore, ImageStoreOptions};
pub use input::{Input, Shape};
pub use lines::LineSplitter;
pub use loaded_images::LoadedImages;
pub use open_image::{ImageError, ObjectImage, OpenImage};
pub use reader::{ReadRange, RecordReader};
pub use slices::{Part, slices};
pub use spool::{SpoolReader, SpoolWriter};
