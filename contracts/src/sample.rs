//! One training sample, as every input shape is normalised to.

/// An image as a record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRef {
    /// A path or URL exactly as written in the record.
    Path(String),
    /// Bytes that stood in the record itself (a `data:` URI).
    Inline(Vec<u8>),
}

/// One sample: question/answer rounds and their images.
///
/// `prompts` and `captions` have equal lengths (rounds). Text holds one `<image>` where each image
/// stands; content parts of an OpenAI-shaped record are joined with nothing added, so that a packed
/// sample can be counted again from the tar alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The record's `id`, as text.
    pub id: Option<String>,
    /// The system prompt, when the record has one.
    pub system: Option<String>,
    /// The user turns.
    pub prompts: Vec<String>,
    /// The assistant turns.
    pub captions: Vec<String>,
    /// The images, in the order of their placeholders.
    pub images: Vec<ImageRef>,
    /// Chosen extra keys, carried into the packed json (`passthrough`).
    pub extra: serde_json::Map<String, serde_json::Value>,
}
