//! Files that are written here.

use std::path::{Path, PathBuf};

use packd_inference::torch_file::{
    ArgsStyle, ExtraState, Node, PyValue, ReadOptions, TensorInfo, TorchDtype, TorchFile, TorchFileWriter,
    to_bytes,
};

fn written() -> PyValue {
    let extra = PyValue::Filled(
        packd_inference::torch_file::TensorSpec { dtype: TorchDtype::Byte, shape: vec![3] },
        vec![1, 2, 3],
    );
    PyValue::dict([
        (
            "model",
            PyValue::dict([
                ("a.weight", PyValue::tensor(TorchDtype::BFloat16, [2, 3])),
                ("a._extra_state", ExtraState::default().value().unwrap()),
                ("extra", extra),
                ("b.weight", PyValue::tensor(TorchDtype::Float, [])),
                ("u16", PyValue::tensor(TorchDtype::UInt16, [2])),
            ]),
        ),
        ("checkpoint_version", PyValue::Float(3.0)),
        ("iteration", PyValue::Int(0)),
        (
            "args",
            PyValue::Attributes(
                ArgsStyle::default(),
                vec![("num_layers".into(), PyValue::Int(70_000)), ("x".into(), PyValue::Int(-(1 << 40)))],
            ),
        ),
        (
            "other",
            PyValue::List(vec![
                PyValue::Tuple(vec![]),
                PyValue::None,
                PyValue::Bool(true),
                PyValue::Bytes((0..=255).collect()),
                "é".into(),
                PyValue::Int(-5),
            ]),
        ),
    ])
}

fn write(path: &Path) {
    let mut writer = TorchFileWriter::create(path, &written()).unwrap();
    writer.tensor(&[7; 12]).unwrap();
    assert_eq!(writer.next_tensor().unwrap().dtype, TorchDtype::Float);
    writer.tensor_from(&mut &[9_u8; 4][..], 4).unwrap();
    writer.tensor(&[1, 0, 2, 0]).unwrap();
    writer.finish().unwrap();
}

#[test]
fn what_is_written_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model_optim_rng.pt");
    write(&path);
    let file = TorchFile::open(&path).unwrap();
    let bytes = |name: &str| {
        let node = file.root().get("model").unwrap().get(name).unwrap();
        file.tensor_bytes(node.as_tensor().unwrap()).unwrap().into_owned()
    };
    assert_eq!(bytes("a.weight"), [7; 12]);
    assert_eq!(bytes("a._extra_state"), [0; 0]);
    assert_eq!(bytes("extra"), [1, 2, 3]);
    assert_eq!(bytes("b.weight"), [9; 4]);
    assert_eq!(bytes("u16"), [1, 0, 2, 0]);
    let info: &TensorInfo = file.root().get("model").unwrap().get("a.weight").unwrap().as_tensor().unwrap();
    assert_eq!((info.dtype, info.shape.as_slice()), (TorchDtype::BFloat16, &[2, 3][..]));
    assert_eq!(file.root().get("args").unwrap().get("num_layers").unwrap().as_int(), Some(70_000));
    assert_eq!(file.root().get("args").unwrap().get("x").unwrap().as_int(), Some(-(1 << 40)));
    let other: Vec<String> = file.root().get("other").unwrap().items().map(Node::describe).collect();
    assert_eq!(other, ["a tuple of 0", "None", "True", "256 bytes", "\"é\"", "-5"]);
    assert!(file.damaged_entries().is_empty());
    // Storages are aligned as torch aligns them.
    let start = std::fs::read(&path).unwrap().windows(12).position(|it| it == [7; 12]).unwrap();
    assert_eq!(start % 64, 0);
    // The same again is the same.
    let again = folder.path().join("again").join("model_optim_rng.pt");
    std::fs::create_dir(again.parent().unwrap()).unwrap();
    write(&again);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn extra_states_have_three_styles() {
    for (style, class) in [
        (ExtraState::Empty, "torch.Tensor"),
        (ExtraState::PickledNone, "torch.Tensor"),
        (ExtraState::BytesIo, "_io.BytesIO"),
    ] {
        let bytes = to_bytes(&style.value().unwrap()).unwrap();
        let file = TorchFile::from_bytes(bytes, Path::new("x"), &ReadOptions::default()).unwrap();
        assert_eq!(file.root().class(), class);
    }
}

#[test]
fn a_writer_that_is_misused_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let create = || TorchFileWriter::create(&path, &written()).unwrap();
    let mut writer = create();
    assert!(writer.tensor(&[0; 11]).unwrap_err().to_string().contains("was given 11 bytes"));
    drop(writer);
    assert!(create().finish().unwrap_err().to_string().contains("only 0 of 5 tensors"));
    let mut writer = create();
    let short = writer.tensor_from(&mut &[1_u8; 3][..], 12).unwrap_err().to_string();
    assert!(short.contains("ended after 3 of 12 bytes"), "{short}");
    drop(writer);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    write(&path);
    assert!(TorchFileWriter::create(&path, &written()).is_err());
    // Bytes that change afterwards show.
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.windows(12).position(|it| it == [7; 12]).unwrap();
    bytes[place] = 8;
    let file = TorchFile::from_bytes(bytes, &path, &ReadOptions::default()).unwrap();
    assert_eq!(file.damaged_entries(), ["data/0"]);
}

/// Anonymous memory of this process, in MiB.
#[cfg(target_os = "linux")]
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Writes 5 GB where TORCH_FILE_LARGE says, or in the folder for temporary files, and leaves it there if told where.
#[test]
#[ignore = "needs 5 GB of disk"]
#[cfg(target_os = "linux")]
fn tensors_and_files_beyond_4_gib_need_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let told = std::env::var_os("TORCH_FILE_LARGE").map(PathBuf::from);
    let path = told.unwrap_or(folder.path().join("large.pt"));
    let large = (1 << 32) + (1 << 20);
    let model = [("small", 4_usize), ("large", large), ("after", 1 << 28), ("last", 3)];
    let tensors = model.map(|(name, bytes)| (name, PyValue::tensor(TorchDtype::Byte, [bytes])));
    let began = std::time::Instant::now();
    let mut writer =
        TorchFileWriter::create(&path, &PyValue::dict([("model", PyValue::dict(tensors))])).unwrap();
    for (number, (_, bytes)) in model.into_iter().enumerate() {
        writer.tensor_from(&mut std::io::repeat(number as u8 + 1), bytes).unwrap();
    }
    writer.finish().unwrap();
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{:.2} GB/s, {} MiB of anonymous memory",
        (large + (1 << 28)) as f64 / seconds / 1e9,
        anonymous()
    );
    assert!(anonymous() < 100);
    let file = TorchFile::open(&path).unwrap();
    for (number, (name, bytes)) in model.into_iter().enumerate() {
        let node = file.root().get("model").unwrap().get(name).unwrap();
        let found = file.tensor_bytes(node.as_tensor().unwrap()).unwrap();
        assert_eq!((found.len(), found[0], found[bytes - 1]), (bytes, number as u8 + 1, number as u8 + 1));
    }
    assert!(file.damaged_entries().is_empty());
    assert!(anonymous() < 100);
}
