//! Small data sets and comparisons for the tests of the command.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command under test, in a folder.
pub fn packd(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_packd"));
    command.current_dir(folder).env("NO_COLOR", "1");
    command
}

/// Writes a set of `records` samples (text, one image, two images, several rounds, a few broken) and
/// returns the folder's data file name.
pub fn write_dataset(folder: &Path, records: u32) -> &'static str {
    std::fs::create_dir_all(folder.join("images")).unwrap();
    for number in 0..7_u32 {
        let side = 40 + 37 * number;
        let pixel = |x: u32, y: u32| image::Rgb([(x * number) as u8, (y * 3) as u8, (x ^ y) as u8]);
        let picture = image::RgbImage::from_fn(side, side + 11 * number, pixel);
        let format = if number % 2 == 0 { "jpg" } else { "png" };
        picture.save(folder.join(format!("images/{number}.{format}"))).unwrap();
    }
    let name = |number: u32| {
        format!("images/{}.{}", number % 7, if (number % 7).is_multiple_of(2) { "jpg" } else { "png" })
    };
    let mut text = String::new();
    for number in 0..records {
        let words = "lorem ipsum dolor sit amet ".repeat(1 + (number * 7919 % 61) as usize);
        let record = match number % 10 {
            0..4 => serde_json::json!({"id": format!("t{number}"), "messages": [
                {"role": "user", "content": format!("Continue {number}: {words}")},
                {"role": "assistant", "content": words}]}),
            4..7 => serde_json::json!({"id": format!("i{number}"), "images": [name(number)], "messages": [
                {"role": "user", "content": "<image>\nDescribe this image."},
                {"role": "assistant", "content": words}]}),
            7 => serde_json::json!({"id": format!("m{number}"), "images": [name(number), name(number + 3)],
                "conversations": [{"from": "human", "value": "<image> and <image>"}, {"from": "gpt", "value": words},
                {"from": "human", "value": "More?"}, {"from": "gpt", "value": "Yes: 多語言 текст."}]}),
            8 => serde_json::json!({"prompts": ["p"], "captions": [words], "images": []}),
            _ if number % 100 == 9 => {
                serde_json::json!({"id": "broken", "images": ["images/absent.jpg"], "messages": [
                {"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}]})
            }
            _ => serde_json::json!({"id": format!("w{number}"), "messages": [
                {"role": "user", "content": [{"type": "image", "image": name(number)}, {"type": "text", "text": "?"}]},
                {"role": "assistant", "content": words}]}),
        };
        writeln!(text, "{record}").unwrap();
    }
    std::fs::write(folder.join("data.jsonl"), text).unwrap();
    "data.jsonl"
}

/// Writes a model folder whose tokenizer knows bytes only, so that it loads at once: `--model tiny`.
pub fn write_tiny_model(folder: &Path) {
    let folder = folder.join("tiny");
    std::fs::create_dir_all(&folder).unwrap();
    // The printable stand-ins that byte-level tokenizers have for bytes (GPT-2's table).
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let vocab: serde_json::Map<String, serde_json::Value> = (0..=255)
        .map(|byte| {
            let stand_in = if printable(byte) { byte } else { next };
            next += u32::from(!printable(byte));
            (char::from_u32(stand_in).unwrap().to_string(), byte.into())
        })
        .collect();
    let special = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ];
    let added: Vec<_> = (256..)
        .zip(special)
        .map(|(id, content)| {
            serde_json::json!({"id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
        {{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let processor =
        serde_json::json!({"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1_003_520});
    std::fs::write(folder.join("preprocessor_config.json"), processor.to_string()).unwrap();
}

/// Every file of an output, `run/` aside, by its relative path.
pub fn tree(output: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![output.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let relative = path.strip_prefix(output).unwrap().to_owned();
            if relative == Path::new("run") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(relative, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Asserts that two outputs hold the same files with the same bytes.
pub fn assert_same_tree(expected: &Path, found: &Path, what: &str) {
    let (expected, found) = (tree(expected), tree(found));
    let names = |tree: &BTreeMap<PathBuf, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found), "{what}: other files");
    for (name, bytes) in &expected {
        assert!(bytes == &found[name], "{what}: {} differs", name.display());
    }
}
