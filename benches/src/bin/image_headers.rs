//! Image headers: format, size and end marker of every image of a data set, on one core, beside the
//! floor of opening each file and asking for its size.
//!
//! `image_headers DATA.jsonl [--runs N]`, images relative to the folder of DATA.jsonl, caches warm.

use std::path::{Path, PathBuf};

use packd_benches::{Table, best_of, milliseconds, ratio, scaled};
use packd_contracts::{ImageRef, RecordOptions, parse_record};
use packd_sources::{ImageHeader, ImageStore, ImageStoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = arguments.as_slice() else {
        return Err("usage: image_headers DATA.jsonl [--runs N]".into());
    };
    let runs = match rest {
        [flag, runs] if flag == "--runs" => runs.parse()?,
        _ => 5,
    };
    let folder = Path::new(path).parent().map(Path::to_owned).filter(|f| !f.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| PathBuf::from("."));
    let images = images(path)?;
    let files: Vec<PathBuf> = images
        .iter()
        .filter_map(|image| match image {
            ImageRef::Path(name) => Some(folder.join(name)),
            ImageRef::Inline(_) => None,
        })
        .collect();
    let store = ImageStore::new(
        &ImageStoreOptions::default(),
        std::slice::from_ref(&folder),
        &packd_storage::Stores::new(Default::default())?,
    )?;
    let (floor, opened) = best_of(runs, || {
        files
            .iter()
            .filter(|file| std::fs::File::open(file).is_ok_and(|file| file.metadata().is_ok()))
            .count()
    });
    let (time, read) = best_of(runs, || {
        images
            .iter()
            .filter(|image| {
                store.open(image, 0).is_ok_and(|open| {
                    ImageHeader::read(&open).is_ok_and(|header| header.check_complete(&open).is_ok())
                })
            })
            .count()
    });
    let mut table = Table::new("Image headers, one core", ["work", "images", "ms", "images/s", "ratio"]);
    for (name, count, time) in
        [("open and stat (floor)", opened, floor), ("header and end marker", read, time)]
    {
        let rate = (count as f64 / time.as_secs_f64()) as u64;
        table.row([name.into(), scaled(count as u64), milliseconds(time), scaled(rate), ratio(time, floor)]);
    }
    println!("{table}");
    Ok(())
}

fn images(path: &str) -> std::io::Result<Vec<ImageRef>> {
    let text = std::fs::read(path)?;
    let records = text.split(|byte| *byte == b'\n').map(|line| parse_record(line, &RecordOptions::default()));
    Ok(records.filter_map(|record| record.sample.ok()).flat_map(|sample| sample.images).collect())
}
