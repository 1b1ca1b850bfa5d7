//! The `json` member of a packed sample.

use std::sync::Arc;

use packd_contracts::Sample;
use packd_sources::ImageFormat;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Which sample class the shards are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleClass {
    /// The trainer's `PackedCaptioningSample`: question/answer rounds and images.
    Packed,
    /// `CrudeWebdataset`: the raw parts, for a user's own cooker. Stores system prompts as well.
    Crude,
}

/// Keys of the packed json that packd writes itself; `passthrough` may not name them.
pub const RESERVED_KEYS: &[&str] = &[
    "images",
    "prompts",
    "captions",
    "sample_count",
    "patch_positions",
    "timestamp_decimal",
    "fps",
    "ids",
    "lengths",
    "cu_lengths",
    "sources",
    "media_types",
    "systems",
];

/// One sample inside a pack.
#[derive(Debug, Clone, PartialEq)]
pub struct SubSample {
    /// The sample's ordinal in the run.
    pub ordinal: u64,
    /// The input's name, as configured.
    pub source: Arc<str>,
    /// The input's number in the configuration, from 0; its images are looked up for it.
    pub source_index: usize,
    /// Where the record starts in the (decompressed) input, in bytes.
    pub offset: u64,
    /// The record's line, from 1.
    pub line: u64,
    /// Tokens, as the trainer counts them.
    pub length: u32,
    /// Image patches before merging.
    pub patches: u32,
    /// The texts and images. Rounds that were dropped are dropped here as well.
    pub sample: Sample,
    /// The [`ImageStamp`](packd_sources::ImageStamp) of its images when they were measured; another one
    /// now is an error.
    pub image_stamp: Option<u64>,
}

/// Samples that one training sequence holds, in their final order.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedSample {
    /// The key ([`pack_key`](crate::pack_key)), unique over the run.
    pub key: String,
    /// The pack's number.
    pub pack: u64,
    /// The sub-samples; at least one.
    pub sub_samples: Vec<SubSample>,
}

/// The name of the member that holds image `image` of sub-sample `sub_sample`, after the key and the dot.
///
/// The loader asks for `.jpg` whatever the bytes are; `media_types` in the json says what they are.
pub(crate) fn image_part(sub_sample: usize, image: usize) -> String {
    format!("img{sub_sample}_{image}.jpg")
}

/// The media type of an image by its first bytes (16 are enough), `application/octet-stream` if unknown.
pub(crate) fn media_type(head: &[u8]) -> &'static str {
    match ImageFormat::of(head) {
        Some(ImageFormat::Jpeg) => "image/jpeg",
        Some(ImageFormat::Png) => "image/png",
        Some(ImageFormat::WebP) => "image/webp",
        Some(ImageFormat::Gif) => "image/gif",
        Some(ImageFormat::Bmp) => "image/bmp",
        Some(ImageFormat::Tiff) => "image/tiff",
        None => "application/octet-stream",
    }
}

/// Everything the json is made of; serialises with its keys in the order of the format.
pub(crate) struct PackedJson<'a> {
    pub(crate) sub_samples: &'a [SubSample],
    /// One list a sub-sample, one media type an image.
    pub(crate) media_types: &'a [Vec<&'static str>],
    pub(crate) class: SampleClass,
    /// Extra keys, each written as a list with one value (or null) a sub-sample.
    pub(crate) passthrough: &'a [String],
}

impl PackedJson<'_> {
    /// One list with an entry a sub-sample.
    fn each<'s, T>(&'s self, f: impl Fn(&'s SubSample) -> T) -> Vec<T> {
        self.sub_samples.iter().map(f).collect()
    }

    fn cu_lengths(&self) -> Vec<u64> {
        let sums = self.sub_samples.iter().scan(0, |sum, sub| {
            *sum += u64::from(sub.length);
            Some(*sum)
        });
        std::iter::once(0).chain(sums).collect()
    }
}

impl Serialize for PackedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let images: Vec<Vec<String>> = (self.sub_samples.iter().enumerate())
            .map(|(s, sub)| (0..sub.sample.images.len()).map(|j| image_part(s, j)).collect())
            .collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("images", &images)?;
        map.serialize_entry("prompts", &ListOf(self.sub_samples, |s| &s.sample.prompts))?;
        map.serialize_entry("captions", &ListOf(self.sub_samples, |s| &s.sample.captions))?;
        map.serialize_entry("sample_count", &self.sub_samples.len())?;
        map.serialize_entry("patch_positions", &self.each(|s| vec![""; s.sample.images.len()]))?;
        // One decimal is what the trainer assumes for samples that say nothing.
        map.serialize_entry("timestamp_decimal", &self.each(|_| 1))?;
        map.serialize_entry("ids", &ListOf(self.sub_samples, |s| &s.sample.id))?;
        map.serialize_entry("lengths", &self.each(|s| s.length))?;
        map.serialize_entry("cu_lengths", &self.cu_lengths())?;
        map.serialize_entry("sources", &self.each(|s| (s.source.to_string(), s.offset)))?;
        map.serialize_entry("media_types", self.media_types)?;
        if self.class == SampleClass::Crude {
            map.serialize_entry("systems", &ListOf(self.sub_samples, |s| &s.sample.system))?;
        }
        for key in self.passthrough {
            map.serialize_entry(key, &self.each(|s| s.sample.extra.get(key)))?;
        }
        map.end()
    }
}

/// A JSON list with one borrowed field of every sub-sample.
struct ListOf<'a, T>(&'a [SubSample], fn(&'a SubSample) -> &'a T);

impl<T: Serialize> Serialize for ListOf<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

#[cfg(test)]
mod tests {
    use packd_contracts::ImageRef;
    use serde_json::json;

    use super::*;

    fn sub_sample(id: Option<&str>, length: u32, images: usize) -> SubSample {
        let mut extra = serde_json::Map::new();
        if id.is_some() {
            extra.insert("topic".into(), json!(["a", 1]));
        }
        SubSample {
            ordinal: 7,
            source: "in/d.jsonl".into(),
            source_index: 0,
            offset: 1234,
            line: 3,
            length,
            patches: 0,
            sample: Sample {
                id: id.map(String::from),
                system: id.map(|_| "Be brief.".into()),
                prompts: vec!["<image>é\n\u{7f}\"".into()],
                captions: vec!["好 \u{2028}\u{1}".into()],
                images: vec![ImageRef::Inline(vec![]); images],
                extra,
            },
            image_stamp: None,
        }
    }

    fn render(class: SampleClass, passthrough: &[String]) -> String {
        let sub_samples = [sub_sample(Some("a"), 5, 2), sub_sample(None, 7, 0)];
        let media_types = [vec!["image/png", "image/jpeg"], vec![]];
        serde_json::to_string(&PackedJson {
            sub_samples: &sub_samples,
            media_types: &media_types,
            class,
            passthrough,
        })
        .unwrap()
    }

    #[test]
    fn keys_in_order_and_no_escapes_but_those_of_json() {
        let want = r#"{"images":[["img0_0.jpg","img0_1.jpg"],[]],"prompts":[["<image>é\n"#.to_owned()
            + "\u{7f}"
            + r#"\""],["<image>é\n"#
            + "\u{7f}"
            + r#"\""]],"captions":[["好 "#
            + "\u{2028}"
            + r#"\u0001"],["好 "#
            + "\u{2028}"
            + r#"\u0001"]],"sample_count":2,"patch_positions":[["",""],[]],"timestamp_decimal":[1,1],"ids":["a",null],"#
            + r#""lengths":[5,7],"cu_lengths":[0,5,12],"sources":[["in/d.jsonl",1234],["in/d.jsonl",1234]],"#
            + r#""media_types":[["image/png","image/jpeg"],[]]}"#;
        assert_eq!(render(SampleClass::Packed, &[]), want);
    }

    #[test]
    fn crude_stores_system_prompts_and_passthrough_has_an_entry_a_sub_sample() {
        let json = render(SampleClass::Crude, &["topic".into(), "absent".into()]);
        let tail = r#","systems":["Be brief.",null],"topic":[["a",1],null],"absent":[null,null]}"#;
        assert!(json.ends_with(tail), "{json}");
    }

    #[test]
    fn media_types() {
        for (head, want) in [
            (&b"\xff\xd8\xff\xe0\0\x10JFIF\0\0\0\0\0\0"[..], "image/jpeg"),
            (b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", "image/png"),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", "image/webp"),
            (b"RIFF\x01\x02\x03\x04WAVEfmt ", "application/octet-stream"),
            (b"GIF89a\0\0\0\0\0\0\0\0\0\0", "image/gif"),
            (b"BM\x01\0\0\0\0\0\0\0\0\0\0\0\0\0", "image/bmp"),
            (b"II*\0\x08\0\0\0\0\0\0\0\0\0\0\0", "image/tiff"),
            (b"", "application/octet-stream"),
        ] {
            assert_eq!(media_type(head), want, "{head:?}");
        }
    }
}
