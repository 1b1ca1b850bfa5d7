//! temporary
#![allow(clippy::unwrap_used)]
use packd_sinks::*;
fn main() {
    let folder = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "tar")).collect();
    names.sort();
    let o = EnergonOptions { sqlite: Some(SqliteOptions { scratch: "/tmp".into(), expected_parts: 0 }), ..Default::default() };
    let s = write_energon_metadata(&folder, names.iter().map(|p| { let i = scan_shard(p)?; i.write_tar_idx(&folder)?; Ok::<_, SinkError>(i) }), &o).unwrap();
    println!("{s:?}");
}
