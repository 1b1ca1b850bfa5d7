//! Writes one WebDataset shard.

use std::path::Path;

use packd_contracts::{Reason, Verdict};
use packd_sources::{ImageError, ImageStamp, ImageStore, LoadedImages, OpenImage};

use crate::checksums::hex128;
use crate::hashed_tar::{FileEnd, HashedTar};
use crate::names::is_valid_key;
use crate::packed_json::{PackedJson, image_part, media_type};
use crate::ustar::{BLOCK, MAX_NAME, MAX_SIZE, RECORD, header};
use crate::{
    AtomicFile, CommittedPack, CommittedSubSample, IndexedSample, LostSample, PackedSample, Part,
    RESERVED_KEYS, SampleClass, ShardCommit, ShardIndex, SinkError, SubSample,
};

/// How packed samples are written.
#[derive(Debug, Clone)]
pub struct ShardOptions {
    /// The sample class the shards are for.
    pub class: SampleClass,
    /// Keys of [`Sample::extra`](packd_contracts::Sample::extra) that go into the packed json, each as a
    /// list with one value (or null) a sub-sample; none of [`RESERVED_KEYS`].
    pub passthrough: Vec<String>,
}

/// A shard that is being written; it appears under its name, with its `.tar.idx`, at [`finish`](Self::finish).
pub struct ShardWriter {
    tar: HashedTar,
    name: String,
    options: ShardOptions,
    samples: Vec<IndexedSample>,
    packs: Vec<CommittedPack>,
    lost: Vec<LostSample>,
}

impl ShardWriter {
    /// Starts a shard in `folder`, which exists, under a temporary name.
    ///
    /// # Errors
    /// [`SinkError::Create`], or [`SinkError::ReservedKey`] for a wrong `passthrough`.
    pub fn create(folder: &Path, name: &str, options: ShardOptions) -> Result<Self, SinkError> {
        if let Some(key) = options.passthrough.iter().find(|key| RESERVED_KEYS.contains(&key.as_str())) {
            return Err(SinkError::ReservedKey { key: key.clone() });
        }
        let tar = HashedTar::new(AtomicFile::create(folder.join(name))?);
        Ok(Self { tar, name: name.into(), options, samples: Vec::new(), packs: Vec::new(), lost: Vec::new() })
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.tar.position()
    }

    /// Packed samples so far.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// Appends one packed sample: its images in order, then its json. Images that were loaded before
    /// ([`ImageStore::load`]) are taken from there.
    ///
    /// # Errors
    /// [`SinkError::Image`] and [`SinkError::ImagesChanged`] name the sub-sample whose image cannot be
    /// copied; the shard is then as it was before the call and may be continued without that sample.
    /// [`SinkError::PackedSample`] for a wrong key, [`SinkError::Write`] for a disk that is full.
    pub fn append(
        &mut self,
        packed: &PackedSample,
        images: &ImageStore,
        loaded: &LoadedImages,
    ) -> Result<(), SinkError> {
        check(packed)?;
        self.tar.begin_sample();
        let offset = self.tar.position();
        match self.append_members(packed, images, loaded) {
            Ok(parts) => {
                let size = self.tar.position() - offset;
                let checksum = self.tar.end_sample();
                self.samples.push(IndexedSample { key: packed.key.clone(), offset, size, checksum, parts });
                self.packs.push(committed(packed));
                Ok(())
            }
            Err(error) => {
                self.tar.rollback_sample()?;
                Err(error)
            }
        }
    }

    /// Takes the sub-sample whose images are not what was measured out of a packed sample that
    /// [`append`](Self::append) refused, and remembers it; the rest may be appended.
    ///
    /// # Errors
    /// Any other error is given back.
    pub fn leave_out(&mut self, packed: &mut PackedSample, error: SinkError) -> Result<(), SinkError> {
        let (ordinal, verdict) = match error {
            SinkError::Image { ordinal, error: ImageError::Verdict(verdict), .. } => (ordinal, verdict),
            SinkError::ImagesChanged { ordinal, .. } => {
                let detail = "an image was written to since it was measured";
                (ordinal, Verdict::new(Reason::ImageChanged, detail))
            }
            error => return Err(error),
        };
        let Some(place) = packed.sub_samples.iter().position(|sub| sub.ordinal == ordinal) else {
            return Err(refused(packed, format!("it holds no sample {ordinal}")));
        };
        let sub = packed.sub_samples.remove(place);
        self.lost.push(LostSample { sub_sample: committed_sub_sample(&sub), verdict });
        Ok(())
    }

    /// Ends the tar, syncs it and renames it and its `.tar.idx` to their names.
    ///
    /// # Errors
    /// [`SinkError::Write`]; [`SinkError::Tar`] when nothing was appended, as Energon refuses empty shards.
    pub fn finish(mut self) -> Result<ShardCommit, SinkError> {
        let content_end = self.tar.position();
        self.tar.begin_sample();
        self.tar.put(&[0; 2 * BLOCK as usize])?;
        self.tar.pad(RECORD)?;
        let (file, size, digest) = self.tar.finish()?;
        let path = file.target().to_owned();
        if self.samples.is_empty() {
            return Err(SinkError::Tar { path, detail: "the shard holds no samples".into() });
        }
        let index = ShardIndex {
            name: self.name,
            size,
            checksum: hex128(digest),
            content_end,
            samples: self.samples,
        };
        // First the small file: a tar that is there is complete in every way.
        index.write_tar_idx(path.parent().unwrap_or(Path::new(".")))?;
        file.commit()?;
        Ok(ShardCommit { index, packs: self.packs, lost: self.lost })
    }

    fn append_members(
        &mut self,
        packed: &PackedSample,
        images: &ImageStore,
        loaded: &LoadedImages,
    ) -> Result<Vec<Part>, SinkError> {
        let mut parts = Vec::new();
        let mut media_types = Vec::with_capacity(packed.sub_samples.len());
        for (s, sub) in packed.sub_samples.iter().enumerate() {
            let mut types = Vec::with_capacity(sub.sample.images.len());
            let mut stamp = ImageStamp::default();
            for (j, image) in sub.sample.images.iter().enumerate() {
                let open = images
                    .open_loaded(image, sub.source_index, loaded)
                    .map_err(|error| lost(sub, j, error))?;
                stamp.add(&open);
                let (part, media_type) = self.append_image(packed, image_part(s, j), sub, j, open)?;
                parts.push(part);
                types.push(media_type);
            }
            if sub.image_stamp.is_some_and(|measured| measured != stamp.finish()) {
                return Err(changed(sub));
            }
            media_types.push(types);
        }
        let json = serde_json::to_vec(&PackedJson {
            sub_samples: &packed.sub_samples,
            media_types: &media_types,
            class: self.options.class,
            passthrough: &self.options.passthrough,
        })
        .map_err(|e| refused(packed, e.to_string()))?;
        let offset = self.append_header(packed, "json", json.len() as u64)?;
        self.tar.put(&json)?;
        self.tar.pad(BLOCK)?;
        parts.push(Part { name: "json".into(), offset, size: json.len() as u64 });
        Ok(parts)
    }

    /// Copies one image untouched.
    fn append_image(
        &mut self,
        packed: &PackedSample,
        name: String,
        sub: &SubSample,
        j: usize,
        mut image: OpenImage,
    ) -> Result<(Part, &'static str), SinkError> {
        let size = image.size();
        let offset = self.append_header(packed, &name, size)?;
        let media_type = match &mut image {
            OpenImage::Inline(bytes) => {
                self.tar.put(bytes)?;
                media_type(bytes)
            }
            OpenImage::Object(object) => match object.bytes() {
                Ok(bytes) => {
                    self.tar.put(&bytes)?;
                    media_type(&bytes)
                }
                Err(error) => return Err(lost(sub, j, image.fault(error))),
            },
            OpenImage::File { file, .. } => match self.tar.put_file(file, size)? {
                Ok(head) => media_type(&head),
                Err(FileEnd::Short) => return Err(changed(sub)),
                Err(FileEnd::Failed(error)) => return Err(lost(sub, j, image.fault(error))),
            },
        };
        self.tar.pad(BLOCK)?;
        Ok((Part { name, offset, size }, media_type))
    }

    /// Writes a member's header and returns where its content starts.
    fn append_header(&mut self, packed: &PackedSample, part: &str, size: u64) -> Result<u64, SinkError> {
        let name = format!("{}.{part}", packed.key);
        if name.len() > MAX_NAME {
            return Err(refused(packed, format!("the member name {name} is longer than {MAX_NAME} bytes")));
        }
        if size > MAX_SIZE {
            return Err(refused(packed, format!("{part} has {size} bytes; a ustar member holds {MAX_SIZE}")));
        }
        self.tar.put(&header(&name, size))?;
        Ok(self.tar.position())
    }
}

fn check(packed: &PackedSample) -> Result<(), SinkError> {
    if !is_valid_key(&packed.key) {
        return Err(refused(packed, "a key is made of A-Z, a-z, 0-9, _ and -".into()));
    }
    if packed.sub_samples.is_empty() {
        return Err(refused(packed, "it holds no sub-samples".into()));
    }
    match packed.sub_samples.iter().find(|sub| sub.sample.prompts.len() != sub.sample.captions.len()) {
        Some(sub) => {
            let (prompts, captions) = (sub.sample.prompts.len(), sub.sample.captions.len());
            Err(refused(
                packed,
                format!("sample {} has {prompts} prompts and {captions} captions", sub.ordinal),
            ))
        }
        None => Ok(()),
    }
}

fn committed(packed: &PackedSample) -> CommittedPack {
    let sub_samples = packed.sub_samples.iter().map(committed_sub_sample);
    CommittedPack { pack: packed.pack, sub_samples: sub_samples.collect() }
}

fn committed_sub_sample(sub: &SubSample) -> CommittedSubSample {
    CommittedSubSample {
        ordinal: sub.ordinal,
        id: sub.sample.id.clone(),
        source: sub.source_index,
        offset: sub.offset,
        line: sub.line,
        length: sub.length,
        images: sub.sample.images.len() as u32,
        patches: sub.patches,
    }
}

fn refused(packed: &PackedSample, detail: String) -> SinkError {
    SinkError::PackedSample { key: packed.key.clone(), detail }
}

fn lost(sub: &SubSample, image: usize, error: ImageError) -> SinkError {
    let source_name = sub.source.to_string();
    SinkError::Image { ordinal: sub.ordinal, source_name, line: sub.line, image, error }
}

fn changed(sub: &SubSample) -> SinkError {
    let source_name = sub.source.to_string();
    SinkError::ImagesChanged { ordinal: sub.ordinal, source_name, line: sub.line }
}
