//! Verdicts: why a record was not packed. Bad data is not an error of the program.

use serde::{Deserialize, Serialize};

/// Declares [`Reason`] with the stable code of each variant in one table.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// A stable reason code. New ones are added; none is ever renamed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// The code as it stands in `rejects.jsonl`.
            pub fn code(self) -> &'static str {
                match self { $(Reason::$variant => $code,)* }
            }
        }
    };
}

reasons! {
    /// The line is not JSON.
    JsonSyntax = "json-syntax",
    /// The line is JSON, but not an object.
    NotAnObject = "not-an-object",
    /// The line holds bytes that are not UTF-8.
    InvalidUtf8 = "invalid-utf8",
    /// The line is longer than `max_line_bytes`.
    LineTooLong = "line-too-long",
    /// A known key holds a value of a type that no record shape has.
    InvalidField = "invalid-field",
    /// No conversation in the record, or an empty one.
    NoTurns = "no-turns",
    /// A role that is none of user, assistant and system under any of their names.
    UnknownRole = "unknown-role",
    /// A turn without text and without media.
    EmptyContent = "empty-content",
    /// Turns must alternate user / assistant, start with user and end with assistant.
    TurnOrder = "turn-order",
    /// The output class cannot store a system turn (`system: reject`).
    SystemUnsupported = "system-unsupported",
    /// The output class cannot store tool calls.
    ToolUnsupported = "tool-unsupported",
    /// The number of `<image>` placeholders differs from the number of images.
    PlaceholderMismatch = "placeholder-mismatch",
    /// A special token of the tokenizer is spelled in the text (`special_tokens_in_text: reject`).
    SpecialTokensInText = "special-tokens-in-text",
    /// The chat template refused the conversation.
    TemplateError = "template-error",
    /// The image file does not exist.
    ImageMissing = "image-missing",
    /// The image cannot be read or decoded.
    ImageUnreadable = "image-unreadable",
    /// The image is not the one that was measured (`image_changed: reject`).
    ImageChanged = "image-changed",
    /// The image file holds no bytes.
    ImageEmpty = "image-empty",
    /// The image ends before its end marker.
    ImageTruncated = "image-truncated",
    /// The bytes are of no supported image format.
    ImageFormat = "image-format",
    /// More pixels than `max_image_pixels`, or more bytes than a tar member may hold.
    ImageTooLarge = "image-too-large",
    /// Smaller than the image processor accepts.
    ImageTooSmall = "image-too-small",
    /// Longer side over shorter side is more than the image processor accepts (200).
    ImageAspectRatio = "image-aspect-ratio",
    /// The path leads out of the allowed roots.
    ImageOutsideRoot = "image-outside-root",
    /// The image has a scheme that is not enabled (`http://`, `s3://`, …).
    ImageScheme = "image-scheme",
    /// A `patch_positions` file does not exist.
    PatchPositionsMissing = "patch-positions-missing",
    /// `patch_positions` do not fit the image grids.
    PatchPositionsMismatch = "patch-positions-mismatch",
    /// Video files, video frames and their positions are not supported by this version.
    VideoUnsupported = "video-unsupported",
    /// `<video>` stands in the text of a record that has neither video nor images.
    VideoMissing = "video-missing",
    /// More tokens than `seq_len` (by the `overlong` policy).
    OverLength = "over-length",
    /// An earlier record has the same id (`duplicate_id: reject`).
    DuplicateId = "duplicate-id",
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}

/// Why one record was not packed: a stable code and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Verdict {
    /// The stable code.
    pub reason: Reason,
    /// What was found, with the numbers that matter. For people; not stable.
    pub detail: String,
}

impl Verdict {
    /// A verdict with its detail.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}
