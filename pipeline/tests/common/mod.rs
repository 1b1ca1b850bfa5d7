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
