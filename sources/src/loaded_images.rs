//! Images of object stores that were read before they are needed: one after another they would take a request's
//! time each.

use std::collections::HashMap;

use packd_storage::Object;

use crate::open_image::{ObjectImage, OpenImage};

/// Images that were read, by input and name.
#[derive(Debug, Default)]
pub struct LoadedImages(HashMap<(usize, String), ObjectImage>);

impl LoadedImages {
    /// An image that could not be read is not among them: whoever opens it learns why.
    pub(crate) fn load(wanted: Vec<((usize, String), Object)>) -> Self {
        let (names, objects): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let read = Object::read_many(&objects);
        let found = names.into_iter().zip(objects).zip(read).filter_map(|((name, object), read)| {
            let (version, bytes) = read.ok()?;
            Some((name, ObjectImage::whole(object, version, bytes)))
        });
        Self(found.collect())
    }

    pub(crate) fn get(&self, source: usize, name: &str) -> Option<OpenImage> {
        self.0.get(&(source, name.to_owned())).map(|image| OpenImage::Object(image.clone()))
    }
}
