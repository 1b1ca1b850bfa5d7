//! A record of every kind, good ones between them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::pictures::{self, Pictures};

/// One line of the data.
pub(crate) struct Line {
    /// The broken kind, or none: a good record.
    pub(crate) kind: Option<String>,
    pub(crate) bytes: Vec<u8>,
    /// The id that can be read from it.
    pub(crate) id: Option<String>,
    /// The files of its images; empty where the record cannot be read as one with images.
    pub(crate) images: Vec<PathBuf>,
}

/// Lines of every kind, good ones between them, their images written below `folder`.
pub(crate) fn lines_of<'a>(kinds: impl Iterator<Item = &'a String>, folder: &Path) -> Vec<Line> {
    let pictures = Pictures::new(folder);
    let good_image = pictures.write("images/good.jpg", &pictures::jpeg(320, 240));
    let mut lines = Vec::new();
    for (number, kind) in kinds.enumerate() {
        lines.push(good(number, &good_image, folder));
        let id = format!("b{number:04}");
        let made = broken(kind, &id, &good_image, &pictures);
        lines.extend(made.into_iter().map(|record| record.line(Some(kind), folder)));
    }
    lines.push(good(lines.len(), &good_image, folder));
    lines
}

fn good(number: usize, image: &str, folder: &Path) -> Line {
    let id = format!("g{number:04}");
    let record = match number % 3 {
        0 => text(&id, json!([user("Say it."), assistant("It.")]), &[]),
        1 => one(&id, image),
        _ => text(
            &id,
            json!([user("<image> <image>?"), assistant("a"), user("b"), assistant("c")]),
            &[image; 2],
        ),
    };
    Made::Record(record).line(None, folder)
}

/// What stands in a line: a record, or bytes that are none.
enum Made {
    Record(Value),
    Bytes(Vec<u8>),
}

impl Made {
    fn line(self, kind: Option<&String>, folder: &Path) -> Line {
        let (bytes, record) = match self {
            Made::Record(record) => (record.to_string().into_bytes(), record),
            Made::Bytes(bytes) => (bytes, Value::Null),
        };
        let names = match &record["images"] {
            Value::Array(list) => list.iter().collect(),
            Value::Object(image) => image.values().collect(),
            name => vec![name],
        };
        Line {
            kind: kind.cloned(),
            bytes,
            id: record["id"].as_str().map(str::to_owned),
            images: names.into_iter().filter_map(Value::as_str).map(|name| folder.join(name)).collect(),
        }
    }
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

fn text(id: &str, messages: Value, images: &[&str]) -> Value {
    json!({"id": id, "images": images, "messages": messages})
}

fn ask(id: &str, image: &str, question: &str, answer: &str) -> Value {
    text(id, json!([user(question), assistant(answer)]), &[image])
}

fn one(id: &str, image: &str) -> Value {
    ask(id, image, "<image>\nDescribe this image.", "A caption.")
}

/// `record` with another value of a key, or without it.
fn with(mut record: Value, key: &str, value: Option<Value>) -> Value {
    let entries = record.as_object_mut().unwrap();
    match value {
        Some(value) => entries.insert(key.to_owned(), value),
        None => entries.remove(key),
    };
    record
}

/// The lines of a kind of `--broken-kinds all`.
fn broken(kind: &str, id: &str, good: &str, pictures: &Pictures) -> Vec<Made> {
    let in_image =
        |name: String, bytes: &[u8]| one(id, &pictures.write(&format!("images/broken/{name}"), bytes));
    let jpg = |bytes: &[u8]| in_image(format!("{id}.jpg"), bytes);
    let png = |bytes: &[u8]| in_image(format!("{id}.png"), bytes);
    let jpeg = || pictures::jpeg(320, 240);
    let turns = |messages: Value| text(id, messages, &[good]);
    let question = || user("<image>\nq");
    let record = match kind {
        "missing_image" => one(id, &format!("images/broken/absent_{id}.jpg")),
        "truncated_jpeg" => jpg(&jpeg()[..jpeg().len() / 2]),
        "zero_byte_image" => jpg(b""),
        "text_named_jpg" => jpg(b"<html>404 not found</html>"),
        "directory_as_image" => one(id, &pictures.folder(&format!("images/broken/{id}"))),
        "no_messages" => with(one(id, good), "messages", None),
        "messages_null" => turns(Value::Null),
        "messages_empty" => turns(json!([])),
        "too_many_tags" => ask(id, good, "<image><image>\nCompare.", "x"),
        "too_few_tags" => text(id, json!([user("<image>\nCompare."), assistant("x")]), &[good; 2]),
        "no_tag" => ask(id, good, "Describe this image.", "x"),
        "tag_without_image" => with(ask(id, good, "<image>\nDescribe.", "x"), "images", None),
        "tag_in_answer" => ask(id, good, "<image>\nHow?", "Use the <image> element in HTML/SVG."),
        "images_string" => with(one(id, good), "images", Some(good.into())),
        "empty_content" => ask(id, good, "<image>\nDescribe this image.", ""),
        "null_content" => turns(json!([question(), assistant(Value::Null)])),
        "content_parts" => turns(json!([
            user(json!([{"type": "image"}, {"type": "text", "text": "What?"}])),
            assistant("x")
        ])),
        "duplicate_id" => {
            let of = |answer| Made::Record(ask(id, good, "<image>\nq", answer));
            return vec![of("first of two"), of("second of two")];
        }
        "missing_id" => with(one(id, good), "id", None),
        "path_escape" => one(id, &pictures.write(&format!("../outside/{id}.jpg"), &jpeg())),
        "absolute_path" => one(id, &pictures.absolute(good)),
        "huge_image" => jpg(&pictures::plain_jpeg(12_000, 9_000)),
        "bomb_image" => png(&pictures::black_png(16_000, 12_500)),
        "png_is_jpeg" => png(&jpeg()),
        "cmyk_jpeg" => jpg(&pictures::cmyk_jpeg()),
        "png_16bit" => png(&pictures::gray_16_bit_png(160, 120)),
        "palette_png" => png(&pictures::palette_png(160, 120)),
        "rgba_png" => png(&pictures::rgba_png(160, 120)),
        "animated_gif" => in_image(format!("{id}.gif"), &pictures::animated_gif(80, 60)),
        "animated_webp" => in_image(format!("{id}.webp"), &pictures::animated_webp()),
        "exif_rotated" => jpg(&pictures::exif_rotated_jpeg(800, 200)),
        "extreme_ratio" => jpg(&pictures::jpeg(6000, 20)),
        "ratio_edge" => jpg(&pictures::jpeg(6000, 30)),
        "tiny_1x1" => png(&pictures::rgb_png(1, 1)),
        "system_role" => {
            turns(json!([{"role": "system", "content": "You are terse."}, question(), assistant("x")]))
        }
        "unknown_role" => {
            turns(json!([question(), {"role": "tool", "content": "tool output"}, assistant("x")]))
        }
        "sharegpt" => json!({"id": id, "images": [good], "conversations": [
            {"from": "human", "value": "<image>\nq"}, {"from": "gpt", "value": "an answer"}]}),
        "user_user" => turns(json!([user("<image>\nfirst"), user("second"), assistant("x")])),
        "assistant_first" => turns(json!([assistant("hello"), question(), assistant("x")])),
        "ends_with_user" => turns(json!([question(), assistant("x"), user("unanswered")])),
        "special_tokens" => {
            text(id, json!([user("What is <|image_pad|>?"), assistant("A token like <|im_end|>.")]), &[])
        }
        "too_long" => text(id, json!([user("Copy."), assistant("one more word ".repeat(4_500))]), &[]),
        "basename_collision" => {
            let names = [format!("a/{id}.jpg"), format!("b/{id}.jpg"), format!("c/{id}_1.jpg")];
            let of = |(number, name): (usize, String)| {
                let bytes = pictures::jpeg(224 + 112 * number as u32, 224);
                let path = pictures.write(&format!("images/broken/{name}"), &bytes);
                Made::Record(one(&format!("{id}.{number}"), &path))
            };
            return names.into_iter().enumerate().map(of).collect();
        }
        "img_output_prefix" => in_image(format!("__img--output_{id}.jpg"), &jpeg()),
        "unicode_name" => in_image(format!("фото 照片 {id}.jpg"), &jpeg()),
        "no_extension" => in_image(format!("noext_{id}"), &jpeg()),
        "colon_in_name" => in_image(format!("12:30 {id}.jpg"), &jpeg()),
        "long_name" => in_image(format!("{}_{id}.jpg", "n".repeat(205)), &jpeg()),
        "images_number" => with(one(id, good), "images", Some(json!(7))),
        "images_dict" => with(one(id, good), "images", Some(json!({"path": good}))),
        "images_null_entry" => with(one(id, good), "images", Some(json!([null]))),
        "nan_value" => {
            let sound = with(one(id, good), "score", Some(json!(0))).to_string();
            let line = sound.replace("\"score\":0", "\"score\": NaN");
            assert!(line.contains("NaN"));
            return vec![Made::Bytes(line.into_bytes())];
        }
        "not_json_line" => {
            return vec![Made::Bytes(
                format!("{{\"id\": \"{id}\", \"messages\": [{{\"role\": \"us").into_bytes(),
            )];
        }
        "json_not_object" => return vec![Made::Record(json!([1, 2, 3]))],
        "invalid_utf8" => {
            let start = format!("{{\"id\": \"{id}").into_bytes();
            return vec![Made::Bytes([&start[..], b"\xff\xfe\", \"messages\": []}"].concat())];
        }
        other => panic!("the table names a kind that has no record here: {other}"),
    };
    vec![Made::Record(record)]
}
