//! Samples as they stand in the inputs of a packing run.

use std::io::Read;
use std::sync::Arc;

use packd_contracts::{RecordOptions, parse_record};
use packd_sources::{ImageStore, ImageStoreOptions, ReadRange, RecordReader, expand};
use packd_storage::{StoreOptions, Stores};

use crate::batch::SubSample;
use crate::encoder::Encoder;
use crate::error::{ModelError, Result};
use crate::pixels::decode;

/// Longest record in bytes.
const MAX_RECORD: usize = 64 << 20;

/// Calls `each` with the name and the sub-sample of every record of `inputs` (paths, URLs or globs), in order, until it
/// returns `false`. A record that cannot be used is given as its error.
///
/// # Errors
/// [`ModelError::Input`] when an input cannot be read, and what `each` says.
pub async fn each_record(
    inputs: &[String],
    image_root: Option<std::path::PathBuf>,
    encoder: &Encoder,
    mut each: impl FnMut(String, Result<SubSample>) -> Result<bool>,
) -> Result<()> {
    let wrong = |error: &dyn std::fmt::Display| ModelError::Input(error.to_string());
    let stores = Arc::new(Stores::new(StoreOptions::default()).map_err(|error| wrong(&error))?);
    let inputs = expand(inputs, &stores).map_err(|error| wrong(&error))?;
    let folders: Vec<_> = inputs.iter().map(|input| input.folder()).collect();
    let options = ImageStoreOptions { image_root, ..ImageStoreOptions::default() };
    let images = ImageStore::new(&options, &folders, &stores).map_err(|error| wrong(&error))?;
    for (source, input) in inputs.iter().enumerate() {
        let reader = RecordReader::open(input, source, ReadRange::default(), MAX_RECORD).await;
        let mut reader = reader.map_err(|error| wrong(&error))?;
        while let Some(block) = reader.next_block().await.map_err(|error| wrong(&error))? {
            for record in &block.records {
                let sub = sub_sample(block.bytes_of(record), &images, source, encoder);
                if !each(format!("{}:{}", input.name, record.line), sub)? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn sub_sample(bytes: &[u8], images: &ImageStore, source: usize, encoder: &Encoder) -> Result<SubSample> {
    let sample = parse_record(bytes, &RecordOptions::default()).sample?;
    let open = |image| {
        let opened = images.open(image, source).map_err(|error| ModelError::Image(error.to_string()))?;
        let mut bytes = Vec::new();
        let read = opened.reader().read_to_end(&mut bytes);
        read.map_err(|error| ModelError::Image(error.to_string()))?;
        decode(&bytes)
    };
    let decoded = sample.images.iter().map(open).collect::<Result<Vec<_>>>()?;
    encoder.sub_sample(&sample, &decoded)
}
