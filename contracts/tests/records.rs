//! Record shapes and their verdicts.

use packd_contracts::{ImageRef, ParsedRecord, Reason, RecordOptions, Sample, parse_record};
use proptest::prelude::*;

fn parse(record: &str) -> ParsedRecord {
    parse_record(record.as_bytes(), &RecordOptions::default())
}

fn sample(record: &str) -> Sample {
    parse(record).sample.unwrap_or_else(|verdict| panic!("{record}: {verdict}"))
}

fn reason(record: &str) -> Reason {
    parse(record).sample.expect_err(record).reason
}

fn paths(sample: &Sample) -> Vec<&str> {
    fn path(image: &ImageRef) -> &str {
        match image {
            ImageRef::Path(path) => path,
            ImageRef::Inline(_) => "inline",
        }
    }
    sample.images.iter().map(path).collect()
}

#[test]
fn every_shape_gives_the_same_sample() {
    let shapes = [
        r#"{"messages": [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}], "images": ["x.jpg"]}"#,
        r#"{"messages": [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}], "image": "x.jpg"}"#,
        r#"{"conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "a"}], "image": ["x.jpg"]}"#,
        r#"{"conversations": [{"from": "user", "content": "<image>q"}, {"role": "model", "value": "a"}], "images": "x.jpg"}"#,
        r#"{"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}, {"role": "assistant", "content": "a"}], "images": ["x.jpg"]}"#,
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x.jpg"}}, {"type": "text", "text": "q"}]}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]}"#,
        r#"{"messages": [{"role": "user", "content": [{"image": "x.jpg"}, "q"]}, {"role": "assistant", "content": "a"}], "images": []}"#,
        r#"{"prompts": ["<image>q"], "captions": ["a"], "images": ["x.jpg"]}"#,
        r#"{"prompts": [["<image>q"]], "captions": [["a"]], "images": [{"path": "x.jpg", "bytes": null}]}"#,
        r#"{"prompts": "<image>q", "captions": "a", "image": {"path": "x.jpg"}}"#,
    ];
    for shape in shapes {
        let sample = sample(shape);
        assert_eq!(
            (sample.prompts.concat(), sample.captions.concat()),
            ("<image>q".into(), "a".into()),
            "{shape}"
        );
        assert_eq!(paths(&sample), ["x.jpg"], "{shape}");
    }
}

#[test]
fn images_of_parts_and_of_the_list_keep_the_order_of_their_placeholders() {
    let record = r#"{"images": ["list0", "list1"], "messages": [
        {"role": "user", "content": [{"type": "image"}, {"type": "image", "image": "own0"}, {"type": "text", "text": "<image>"}]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{"type": "image", "path": "own1"}, "b"]},
        {"role": "assistant", "content": "c"}]}"#;
    let sample = sample(record);
    assert_eq!(paths(&sample), ["list0", "own0", "list1", "own1"]);
    assert_eq!(sample.prompts, ["<image><image><image>", "<image>b"]);
}

#[test]
fn captions_take_their_prompt_from_the_configuration() {
    let options = RecordOptions { caption_prompt: Some("Describe.".into()), ..Default::default() };
    for record in [
        r#"{"caption": "a", "images": ["x", "y"]}"#,
        r#"{"captions": [{"content": "a"}], "images": ["x", "y"]}"#,
    ] {
        let sample = parse_record(record.as_bytes(), &options).sample.unwrap();
        assert_eq!(sample.prompts, ["<image>\n<image>\nDescribe."]);
        assert_eq!(sample.captions, ["a"]);
    }
    let verdict = parse(r#"{"caption": "a"}"#).sample.unwrap_err();
    assert_eq!(verdict.reason, Reason::NoTurns);
    assert!(verdict.detail.contains("caption_prompt"));
}

#[test]
fn system_turns_are_kept_for_the_policy() {
    let turns = r#"{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}"#;
    let first = format!(r#"{{"messages": [{{"role": "system", "content": "s"}}, {turns}]}}"#);
    let top = format!(r#"{{"system": "s", "messages": [{turns}]}}"#);
    assert_eq!(sample(&first).system.as_deref(), Some("s"));
    assert_eq!(sample(&top).system.as_deref(), Some("s"));
    assert_eq!(sample(&format!(r#"{{"system": "", "messages": [{turns}]}}"#)).system, None);
    assert_eq!(
        reason(&format!(r#"{{"messages": [{turns}, {{"role": "system", "content": "s"}}]}}"#)),
        Reason::TurnOrder
    );
    assert_eq!(reason(r#"{"messages": [{"role": "system", "content": "s"}]}"#), Reason::NoTurns);
}

#[test]
fn each_fault_has_its_reason() {
    let u = r#"{"role": "user", "content": "q"}"#;
    let a = r#"{"role": "assistant", "content": "a"}"#;
    let messages = |turns: &str| format!(r#"{{"messages": [{turns}]}}"#);
    let image = |value: &str| format!(r#"{{"messages": [{u}, {a}], "images": {value}}}"#);
    let cases = [
        (r#"{"id": "x", "messages": [{"role": "us"#.to_owned(), Reason::JsonSyntax),
        (r#"{"a": NaN}"#.to_owned(), Reason::JsonSyntax),
        (format!("{{\"a\": {}1{}}}", "[".repeat(500), "]".repeat(500)), Reason::JsonSyntax),
        ("[1, 2, 3]".to_owned(), Reason::NotAnObject),
        ("7".to_owned(), Reason::NotAnObject),
        ("{}".to_owned(), Reason::NoTurns),
        (r#"{"messages": null}"#.to_owned(), Reason::NoTurns),
        (r#"{"messages": []}"#.to_owned(), Reason::NoTurns),
        (r#"{"messages": "hello"}"#.to_owned(), Reason::InvalidField),
        (messages(&format!("{u}, {a}, {u}")), Reason::TurnOrder),
        (messages(&format!("{u}, {u}, {a}")), Reason::TurnOrder),
        (messages(&format!("{a}, {u}, {a}")), Reason::TurnOrder),
        (messages(&format!(r#"{u}, {{"role": "critic", "content": "x"}}"#)), Reason::UnknownRole),
        (messages(&format!(r#"{u}, {{"content": "x"}}"#)), Reason::UnknownRole),
        (messages(&format!(r#"{u}, {{"role": "tool", "content": "x"}}, {a}"#)), Reason::ToolUnsupported),
        (
            messages(&format!(r#"{u}, {{"role": "assistant", "content": "a", "tool_calls": [{{}}]}}"#)),
            Reason::ToolUnsupported,
        ),
        (messages(&format!(r#"{u}, {{"role": "assistant", "content": ""}}"#)), Reason::EmptyContent),
        (messages(&format!(r#"{u}, {{"role": "assistant", "content": null}}"#)), Reason::EmptyContent),
        (messages(&format!(r#"{u}, {{"role": "assistant", "content": 7}}"#)), Reason::InvalidField),
        (
            messages(&format!(
                r#"{{"role": "user", "content": [{{"type": "video", "video": "x.mp4"}}]}}, {a}"#
            )),
            Reason::VideoUnsupported,
        ),
        (image("7"), Reason::InvalidField),
        (image("[null]"), Reason::InvalidField),
        (image(r#"[""]"#), Reason::InvalidField),
        (image(r#"{"bytes": [1]}"#), Reason::InvalidField),
        (image(r#""data:image/png;base64,@@@""#), Reason::ImageUnreadable),
        (r#"{"prompts": ["a", "b"], "captions": ["c"]}"#.to_owned(), Reason::TurnOrder),
        (r#"{"prompts": [["a"], ["b"]], "captions": [["c"], ["d"]]}"#.to_owned(), Reason::InvalidField),
        (format!(r#"{{"messages": [{u}, {a}], "videos": ["x.mp4"]}}"#), Reason::VideoUnsupported),
        (format!(r#"{{"messages": [{u}, {a}], "images": ["x"], "fps": 2}}"#), Reason::VideoUnsupported),
        (
            format!(r#"{{"messages": [{u}, {a}], "images": ["x"], "patch_positions": ["x.npy"]}}"#),
            Reason::VideoUnsupported,
        ),
    ];
    for (record, expected) in cases {
        assert_eq!(reason(&record), expected, "{record}");
    }
    assert_eq!(
        parse_record(b"{\"id\": \"\xff\"}", &RecordOptions::default()).sample.unwrap_err().reason,
        Reason::InvalidUtf8
    );
}

#[test]
fn harmless_media_keys_and_unknown_keys_do_not_reject() {
    let record = r#"{"id": 7, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "images": null, "videos": [], "fps": null, "patch_positions": ["", null], "markdown": "x", "score": 1}"#;
    let options = RecordOptions { passthrough: vec!["score".into()], ..Default::default() };
    let parsed = parse_record(record.as_bytes(), &options);
    let sample = parsed.sample.unwrap();
    assert_eq!(parsed.id.as_deref(), Some("7"));
    assert_eq!(parsed.unknown_keys, ["markdown"]);
    assert_eq!(sample.extra["score"], 1);
}

#[test]
fn inline_images_are_decoded() {
    let record =
        r#"{"messages": [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}],
        "images": ["data:image/png;base64,aGVs\nbG8="]}"#
            .replace("\n        ", " ")
            .replace('\n', "");
    assert_eq!(sample(&record).images, [ImageRef::Inline(b"hello".to_vec())]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_sample_or_a_verdict(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        parse_record(&line, &RecordOptions::default());
    }

    #[test]
    fn any_json_like_record_is_a_sample_or_a_verdict(
        key in "messages|conversations|prompts|captions|images|image|system|caption",
        value in r#"null|7|"x"|\[\]|\[null\]|\{\}|\[\{\}\]|\[\{"role":"user","content":("x"|\[\]|\[\{"type":"image"\}\]|null)\}(,\{"from":"gpt","value":"y"\})?\]"#,
        other in "7|\"a\"|[[\"a\"]]|null",
    ) {
        let record = format!(r#"{{"{key}": {value}, "captions": {other}}}"#);
        let parsed = parse_record(record.as_bytes(), &RecordOptions::default());
        if let Ok(sample) = parsed.sample {
            prop_assert_eq!(sample.prompts.len(), sample.captions.len());
            prop_assert!(!sample.prompts.is_empty());
        }
    }
}
