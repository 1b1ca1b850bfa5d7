//! An image as it stands in a shard.

use packd_contracts::ImageSize;
use packd_sources::{ImageFormat, ImageHeader, OpenImage};

/// The size of an image whose bytes are whole, or what is wrong with them.
pub(super) fn check_image(bytes: Vec<u8>, stated: Option<&str>) -> Result<ImageSize, String> {
    let header = ImageHeader::read(&OpenImage::Inline(bytes)).map_err(|verdict| verdict.to_string())?;
    let found = media_type(header.format);
    match stated.filter(|stated| *stated != found) {
        Some(stated) => Err(format!("media_types says {stated}, the bytes are {found}")),
        None => Ok(ImageSize::new(header.width, header.height)),
    }
}

/// The media type of a format.
pub(crate) fn media_type(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Jpeg => "image/jpeg",
        ImageFormat::Png => "image/png",
        ImageFormat::WebP => "image/webp",
        ImageFormat::Gif => "image/gif",
        ImageFormat::Bmp => "image/bmp",
        ImageFormat::Tiff => "image/tiff",
    }
}
