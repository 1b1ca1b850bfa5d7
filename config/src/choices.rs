//! The options that are a choice between names.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares an option type whose values have one spelling in files, flags and output.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] #[value(name = $text)] $variant,)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    )*};
}

choices! {
    /// How samples are put into bins.
    Algorithm {
        /// best-fit-decreasing: the tightest bin that still holds the sample
        BestFitDecreasing = "best-fit-decreasing",
        /// first-fit-decreasing: the oldest bin that still holds the sample, for comparison
        FirstFitDecreasing = "first-fit-decreasing",
    }

    /// What is packed together.
    Scope {
        /// one packing over the whole input
        Global = "global",
        /// every node packs its own slice of the input
        Node = "node",
        /// every `window` measured samples are packed by themselves
        Window = "window",
    }

    /// What happens to a sample longer than `seq_len`.
    Overlong {
        /// it goes to the rejects
        Reject = "reject",
        /// the run stops
        Error = "error",
        /// whole rounds are dropped from its end until it fits, as the trainer does
        TruncateTurns = "truncate-turns",
    }

    /// What happens when `<image>` placeholders and images differ in number.
    PlaceholderMismatch {
        /// the record goes to the rejects
        Reject = "reject",
        /// the trainer's own repair: all placeholders move to the front of the first user turn
        Repair = "repair",
    }

    /// What happens to a special token spelled in the text.
    SpecialTokens {
        /// the record goes to the rejects
        Reject = "reject",
        /// a zero-width space after its first character makes it ordinary text
        Escape = "escape",
        /// it stays, and the trainer will read it as a special token
        Allow = "allow",
    }

    /// What happens to a record with a system turn.
    SystemTurns {
        /// the record goes to the rejects, since `PackedCaptioningSample` cannot store it
        Reject = "reject",
        /// the system turn is dropped and the rest is packed
        Drop = "drop",
        /// the system turn is stored (`sample_class: crude` only)
        Keep = "keep",
    }

    /// What happens to a record whose id came before.
    DuplicateId {
        /// both are packed
        Keep = "keep",
        /// the first is packed, later ones go to the rejects
        Reject = "reject",
    }

    /// How far images are checked before they are packed.
    VerifyImages {
        /// format, size and end marker
        Header = "header",
        /// the whole image is decoded
        Decode = "decode",
        /// nothing is opened; the record must state each image's width and height
        None = "none",
    }

    /// What happens when an image is gone or changed after its record was measured.
    ImageChanged {
        /// the run stops
        Fail = "fail",
        /// the record goes to the rejects, and its pack is written without it
        Reject = "reject",
    }

    /// How a packed sample is stored.
    SampleClass {
        /// the trainer's `PackedCaptioningSample`, with its sample loader
        Packed = "packed",
        /// raw parts for a cooker of your own (`CrudeWebdataset`)
        Crude = "crude",
    }

    /// The form of the top-level `dataset.yaml`.
    Metadataset {
        /// `MetadatasetV2` with `blend_epochized`: every packed sample once an epoch
        BlendEpochized = "blend_epochized",
        /// `MetadatasetV2` with `blend` and weights
        Blend = "blend",
        /// the older class `Metadataset` with weights
        V1 = "v1",
    }

    /// What the weight of a folder is, in the forms of `dataset.yaml` that have weights.
    Weight {
        /// its packed samples
        Packs = "packs",
        /// the input records that are packed in it
        Input = "input",
    }
}
