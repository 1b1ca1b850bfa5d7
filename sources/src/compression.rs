//! Compression, told from a file's first bytes.

use async_compression::tokio::bufread::{BzDecoder, GzipDecoder, XzDecoder, ZstdDecoder};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, BufReader};

use crate::error::SourceError;
use crate::input::Input;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, members one after another included.
    Gzip,
    /// Zstandard, frames one after another included.
    Zstd,
    /// xz.
    Xz,
    /// bzip2, streams one after another included.
    Bzip2,
}

/// A stream of a file's plain bytes.
pub(crate) type PlainBytes = Box<dyn AsyncRead + Send + Unpin>;

impl Compression {
    /// By the magic number that a file starts with.
    pub fn of(head: &[u8]) -> Self {
        const MAGIC: [(&[u8], Compression); 4] = [
            (&[0x1f, 0x8b], Compression::Gzip),
            (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
            (b"BZh", Compression::Bzip2),
        ];
        MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map_or(Self::None, |(_, kind)| *kind)
    }

    /// Opens the plain bytes of an input from `offset` on (counted in plain bytes), a plain one up to `end`.
    pub(crate) async fn open(
        self,
        input: &Input,
        offset: u64,
        end: Option<u64>,
    ) -> Result<PlainBytes, SourceError> {
        let fail = |error| SourceError::io(input.path(), error);
        if self == Self::None {
            return stored(input, offset, end).await;
        }
        let file = BufReader::with_capacity(1 << 20, stored(input, 0, None).await?);
        let mut plain: PlainBytes = match self {
            Self::None => unreachable!("returned above"),
            Self::Gzip => {
                let mut decoder = GzipDecoder::new(file);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Zstd => {
                let mut decoder = ZstdDecoder::new(file);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Xz => {
                let mut decoder = XzDecoder::new(file);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Bzip2 => {
                let mut decoder = BzDecoder::new(file);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
        };
        let mut to_skip = (&mut plain).take(offset);
        tokio::io::copy(&mut to_skip, &mut tokio::io::sink()).await.map_err(fail)?;
        Ok(plain)
    }
}

/// The bytes of an input as they lie there, from `offset` on, up to `end`.
async fn stored(input: &Input, offset: u64, end: Option<u64>) -> Result<PlainBytes, SourceError> {
    if let Some(object) = &input.object {
        return Ok(object.stream(offset..end.unwrap_or(input.size)));
    }
    let fail = |error| SourceError::io(input.path(), error);
    let mut file = tokio::fs::File::open(input.path()).await.map_err(fail)?;
    file.set_max_buf_size(1 << 20);
    file.seek(std::io::SeekFrom::Start(offset)).await.map_err(fail)?;
    Ok(match end {
        Some(end) => Box::new(file.take(end.saturating_sub(offset))),
        None => Box::new(file),
    })
}
