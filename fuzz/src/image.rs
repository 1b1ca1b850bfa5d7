//! An image: its header and its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packd_sources::{ImageHeader, OpenImage};

fuzz_target!(|bytes: &[u8]| {
    let image = OpenImage::Inline(bytes.to_vec());
    if let Ok(header) = ImageHeader::read(&image) {
        assert!(header.width > 0 && header.height > 0);
        // Larger ones are rejected by their size before anything is decoded.
        if u64::from(header.width) * u64::from(header.height) < 1 << 20 {
            let _ = header.check_complete(&image);
        }
    }
});
