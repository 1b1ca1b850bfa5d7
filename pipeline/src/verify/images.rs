//! An image as it stands in a shard.

use packd_contracts::ImageSize;
use packd_sources::{ImageFormat, ImageHeader, OpenImage};

/// The size of an image whose bytes are whole, or what is wrong with them.
pub(super) fn check_image(bytes: Vec<u8>, stated: Option<&str>) -> Result<ImageSize, String> {
    let header = whole_image(bytes)?;
    let found = media_type(header.format);
    match stated.filter(|stated| *stated != found) {
        Some(stated) => Err(format!("media_types says {stated}, the bytes are {found}")),
        None => Ok(ImageSize::new(header.width, header.height)),
    }
}

/// The header of an image that is all there.
pub(crate) fn whole_image(bytes: Vec<u8>) -> Result<ImageHeader, String> {
    let image = OpenImage::Inline(bytes);
    let header = ImageHeader::read(&image).map_err(|error| error.to_string())?;
    header.check_complete(&image).map_err(|error| error.to_string())?;
    Ok(header)
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
