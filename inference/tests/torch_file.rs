//! Torch files: those of real torch are read, those made to harm are refused, and what is written comes back.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use packd_inference::torch_file::{
    ArgsStyle, ExtraState, Node, PyValue, ReadOptions, TensorInfo, TorchDtype, TorchFile, TorchFileError,
    TorchFileWriter, Value, to_bytes,
};
use sha2::{Digest, Sha256};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_file").join(name)
}

fn open(name: &str) -> TorchFile {
    TorchFile::open(&fixture(name)).unwrap()
}

fn refusal(name: &str) -> String {
    TorchFile::open(&fixture(name)).unwrap_err().to_string()
}

/// File to name to [dtype, shape, first 32 hex digits of the SHA-256 of the bytes].
type Expected = BTreeMap<String, BTreeMap<String, serde_json::Value>>;

fn sum(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..32].to_owned()
}

fn check_against(list: &str) -> usize {
    let expected: Expected = serde_json::from_str(&std::fs::read_to_string(fixture(list)).unwrap()).unwrap();
    let mut checked = 0;
    for (name, tensors) in expected {
        let file = open(&name);
        let model: BTreeMap<&str, Node<'_>> =
            file.model().into_iter().map(|(_, name, node)| (name, node)).collect();
        for (key, expected) in tensors {
            let node = model.get(key.as_str()).unwrap_or_else(|| panic!("{name} has no {key}"));
            if let Some(class) = expected.as_str() {
                assert_eq!(node.class(), class, "{name} {key}");
                continue;
            }
            let info = node.as_tensor().unwrap_or_else(|| panic!("{name} {key} is {node:?}"));
            let bytes = file.tensor_bytes(info).unwrap();
            let found = serde_json::json!([info.dtype, info.shape, sum(&bytes)]);
            assert_eq!(found, expected, "{name} {key}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn tensors_of_real_torch_are_read_whatever_their_views_are() {
    assert_eq!(check_against("expected.json"), 30);
}

#[test]
fn tensors_of_the_reference_converter_are_read() {
    assert_eq!(check_against("converter.json"), 10);
    // A view into a storage that holds both ranks.
    let file = open("patch_tp2_rank1.pt");
    let patch = file.root().get("model").unwrap().get("vision_model.patch_embed.proj.weight").unwrap();
    let patch = patch.as_tensor().unwrap();
    assert_eq!((patch.offset, patch.shape.as_slice()), (18816, &[32, 588][..]));
    assert_eq!(file.storage_bytes(patch.storage).len(), 64 * 588 * 4);
    assert!(matches!(file.tensor_bytes(patch).unwrap(), std::borrow::Cow::Borrowed(_)));
}

#[test]
fn values_beside_tensors_are_read_or_kept_opaque() {
    let file = open("megatron.pt");
    let root = file.root();
    assert_eq!(root.get("checkpoint_version").unwrap().as_float(), Some(3.0));
    assert_eq!(root.get("iteration").unwrap().as_int(), Some(17));
    let args = root.get("args").unwrap();
    assert_eq!(args.class(), "argparse.Namespace");
    assert_eq!(args.get("num_layers").unwrap().as_int(), Some(2));
    assert_eq!(args.get("lr").unwrap().as_float(), Some(1e-4));
    assert_eq!(args.get("minus").unwrap().as_int(), Some(-(1 << 40)));
    assert!(matches!(args.get("big").unwrap().value(), Value::BigInt(bytes) if bytes.len() == 11));
    assert_eq!(
        args.get("data_path").unwrap().items().map(|it| it.as_str().unwrap()).collect::<Vec<_>>(),
        ["x", "y"]
    );
    assert_eq!(args.get("params_dtype").unwrap().describe(), "torch.bfloat16");
    assert_eq!(args.get("colour").unwrap().class(), "__main__.Colour");
    assert_eq!(args.get("shape").unwrap().describe(), "a tuple of 2");
    let extra = root.get("model").unwrap().get("a._extra_state").unwrap();
    assert_eq!(extra.class(), "_io.BytesIO");
    let Value::Object(object) = extra.value() else { panic!("{extra:?}") };
    let content = extra.at(object.state.unwrap()).items().next().unwrap();
    let Value::Bytes(content) = content.value() else { panic!("{content:?}") };
    let inner = TorchFile::from_bytes(content.to_vec(), Path::new("inner"), &ReadOptions::default()).unwrap();
    assert_eq!(inner.root().value(), &Value::None);
    let simple = root.get("extra").unwrap();
    assert_eq!(simple.class(), "types.SimpleNamespace");
    assert_eq!(simple.get("b").unwrap().value(), &Value::Bytes([0, 0xff][..].into()));
    assert_eq!(simple.get("d").unwrap().value(), &Value::Bytes(b"xy"[..].into()));
    assert!(matches!(simple.get("c").unwrap().value(), Value::Set(items) if items.len() == 2));
    assert!(
        matches!(root.get("storage").unwrap().value(), Value::Storage(id) if file.storage_bytes(*id) == [0, 1, 2])
    );
    assert!(file.globals().contains("numpy._core.multiarray._reconstruct"), "{:?}", file.globals());
    assert!(root.walk().all(|node| node.describe().len() < 300));
}

#[test]
fn old_and_new_containers_and_protocols_are_read() {
    let bytes = |file: &TorchFile| {
        let node = file.root().get("w").unwrap();
        file.tensor_bytes(node.as_tensor().unwrap()).unwrap().into_owned()
    };
    let new = bytes(&open("new.pt"));
    for name in ["archive_1_6.pt", "protocol_4.pt", "protocol_5.pt", "no_crc.pt"] {
        assert_eq!(bytes(&open(name)), new, "{name}");
    }
    let file = open("protocol_4.pt");
    let items: Vec<String> = file.root().get("t").unwrap().items().map(Node::describe).collect();
    assert_eq!(items, ["1", "2 bytes", "\"é\"", "a set of 1", "a set of 1"]);
    let file = open("virtual.pt");
    let parts: Vec<(usize, &str)> = file.model().iter().map(|(part, name, _)| (*part, *name)).collect();
    assert_eq!(parts, [(0, "x"), (1, "x")]);
}

#[test]
fn what_torch_would_not_write_is_refused_with_what_to_do() {
    for (name, part) in [
        ("legacy.pt", "save it again: torch.save("),
        ("big_endian.pt", "big-endian"),
        ("compressed.pt", "is compressed"),
        ("dotdot.pt", "\"new/../../evil\" is no plain path"),
        ("absolute.pt", "\"/new/data.pkl\" is no plain path"),
        ("backslash.pt", "is no plain path"),
        ("duplicate.pt", "the same name"),
        ("two_pickles.pt", "two data.pkl"),
        ("future.pt", "version 99"),
        ("make.py", "does not start as a zip"),
        ("none.pt", "cannot read"),
        (".", "cannot read"),
    ] {
        let text = refusal(name);
        assert!(text.contains(part) && text.contains(name), "{name}: {text}");
    }
}

#[test]
fn nothing_is_run_and_calls_that_would_are_refused() {
    for (name, global) in [
        ("os_system.pt", "to call posix.system"),
        ("eval.pt", "to call __builtin__.eval"),
        ("computed.pt", "a function that it computes"),
    ] {
        let text = refusal(name);
        assert!(text.contains(global) && text.contains("nothing was run"), "{name}: {text}");
        // Whoever wants to look at the rest gets an opaque object.
        let options = ReadOptions { refuse_code: false, ..ReadOptions::default() };
        let file = TorchFile::open_with(&fixture(name), &options).unwrap();
        assert!(matches!(file.root().get("args").unwrap().value(), Value::Object(_)), "{name}");
    }
    assert!(!Path::new("evil-was-here").exists());
}

/// A torch file of this pickle, with a storage of 16 bytes.
fn pickled(pickle: &[u8]) -> Result<TorchFile, TorchFileError> {
    pickled_with(pickle, &ReadOptions::default())
}

fn pickled_with(pickle: &[u8], options: &ReadOptions) -> Result<TorchFile, TorchFileError> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", &[0; 16]), ("a/version", b"3\n")] {
        zip.start_file(name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    TorchFile::from_bytes(zip.finish().unwrap().into_inner(), Path::new("made.pt"), options)
}

fn pickle_refusal(pickle: &[u8]) -> String {
    pickled(pickle).unwrap_err().to_string()
}

/// The pickle of a tensor with these numbers, each an instruction.
fn tensor(offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let mut pickle =
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n\
        X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
            .to_vec();
    for part in [offset, size, stride] {
        pickle.extend(part);
    }
    pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR.");
    pickle
}

#[test]
fn tensors_beyond_their_storage_are_refused() {
    assert!(pickled(&tensor(b"K\x00", b"K\x04\x85", b"K\x01\x85")).is_ok());
    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let two_huge = [&huge[..], huge, b"\x86"].concat();
    for (pickle, part) in [
        (tensor(b"K\x01", b"K\x04\x85", b"K\x01\x85"), "reaches beyond its storage of 16 bytes"),
        (tensor(b"K\x00", b"J\x00\xca\x9a\x3b\x85", b"K\x01\x85"), "reaches beyond"),
        (tensor(huge, b"K\x04\x85", b"K\x01\x85"), "reaches beyond"),
        (tensor(b"K\x00", &two_huge, b"K\x01K\x01\x86"), "larger than memory"),
        (tensor(b"K\x00", b"K\x02\x85", &[&huge[..], b"\x85"].concat()), "reaches beyond"),
        (tensor(b"K\x00", b"K\x02K\x02\x86", b"K\x01\x85"), "has 1 strides"),
        (tensor(b"K\x00", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"), "no number from 0 on"),
        (tensor(b"K\x00", b"N", b"K\x01\x85"), "is no tuple"),
    ] {
        let text = pickle_refusal(&pickle);
        assert!(text.contains(part), "{part}: {text}");
    }
    // One element repeated a thousand million times is a valid tensor of torch, but not one to copy.
    let file = pickled(&tensor(b"K\x00", b"J\x00\xca\x9a\x3b\x85", b"K\x00\x85")).unwrap();
    let info = file.root().as_tensor().unwrap().clone();
    assert!(file.tensor_bytes(&info).unwrap_err().to_string().contains("save a contiguous copy"));
    // A tensor with no elements has no bytes, however large its other sizes are.
    let file =
        pickled(&tensor(b"K\x00", &[b"K\x00", &huge[..], b"\x86"].concat(), b"K\x01K\x01\x86")).unwrap();
    assert!(file.tensor_bytes(file.root().as_tensor().unwrap()).unwrap().is_empty());
}

#[test]
fn storages_that_are_not_there_are_refused() {
    let storage = |class: &str, key: &str, elements: u8| {
        let mut pickle = b"\x80\x02(X\x07\x00\x00\x00storagec".to_vec();
        pickle.extend(class.as_bytes());
        pickle.extend([b'X', key.len() as u8, 0, 0, 0]);
        pickle.extend(key.as_bytes());
        pickle.extend([b'N', b'K', elements, b't', b'Q', b'.']);
        pickle
    };
    assert!(pickled(&storage("torch\nDoubleStorage\n", "0", 2)).is_ok());
    for (pickle, part) in [
        (storage("torch\nDoubleStorage\n", "0", 3), "should hold 3 elements of float64, it has 16 bytes"),
        (storage("torch\nDoubleStorage\n", "7", 2), "data/7 is not in the zip"),
        (storage("torch\nDoubleStorage\n", "../version", 2), "is not in the zip"),
        (storage("torch\nComplexFloatStorage\n", "0", 2), "no kind of storage that is known"),
        (storage("os\nsystem\n", "0", 2), "outer object"),
    ] {
        let text = pickle_refusal(&pickle);
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn nesting_and_repetition_cost_no_stack_and_little_memory() {
    let deep = [b"\x80\x02N".to_vec(), vec![0x85; 1_000_000], b".".to_vec()].concat();
    assert!(pickle_refusal(&deep).contains("nest deeper than 200"));
    // Lists that are nested only afterwards, through the memo, are no deeper than they look at first. They are read,
    // walked and dropped all the same.
    let mut knotted = b"\x80\x02]q\x00".to_vec();
    for _ in 0..100_000 {
        // A new list, put into the innermost one, and remembered as the innermost.
        knotted.extend(b"h\x00]q\x00a0");
    }
    knotted.push(b'.');
    let file = pickled(&knotted).unwrap();
    assert_eq!(file.root().walk().count(), 100_001);
    drop(file);
    // Each level holds the one before twice: 2^100 in all.
    let mut bomb = b"\x80\x02]q\x00".to_vec();
    for level in 0..100_u8 {
        bomb.extend([b'h', level, b'h', level, 0x86, b'q', level + 1]);
        bomb.extend([b'0', b'h', level + 1]);
    }
    let bomb = [b"\x80\x02(".to_vec(), bomb[2..].to_vec(), b"t.".to_vec()].concat();
    let file = pickled(&bomb).unwrap();
    assert!(file.root().walk().count() < 300);
    // A list in itself.
    let file = pickled(b"\x80\x02]q\x00h\x00a.").unwrap();
    assert_eq!(file.root().walk().count(), 1);
    // The same text, encoded again and again.
    let mut copies = b"\x80\x02(c_codecs\nencode\nq\x00(X\x00\x00\x10\x00".to_vec();
    copies.extend(vec![b'x'; 1 << 20]);
    copies.extend(b"X\x06\x00\x00\x00latin1tq\x01R");
    copies.extend(b"h\x00h\x01R".repeat(100));
    copies.extend(b"t.");
    assert!(pickle_refusal(&copies).contains("more data than the limit"));
    let options = ReadOptions { values: 1000, ..ReadOptions::default() };
    let many = [b"\x80\x02(".to_vec(), b"K\x01".repeat(2000), b"t.".to_vec()].concat();
    assert!(pickled_with(&many, &options).unwrap_err().to_string().contains("more than 1000 values"));
    let options = ReadOptions { pickle_bytes: 1000, ..ReadOptions::default() };
    assert!(pickled_with(&many, &options).unwrap_err().to_string().contains("more than the limit of 1000"));
}

#[test]
fn broken_pickles_are_refused_with_their_place() {
    for (pickle, part) in [
        (&b""[..], "byte 0: it breaks off"),
        (b"\x80\x02N", "byte 3: it breaks off"),
        (b"\x80\x02NN.", "1 values too many"),
        (b"\x80\x02t.", "never set"),
        (b"\x80\x02(N\x85a.", "where there is none"),
        (b"\x80\x02N(\x85.", "where there is none"),
        (b"\x80\x02h\x05.", "recalls value 5"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "breaks off"),
        (b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\xffa.", "breaks off"),
        (b"\x80\x02}(Nu.", "has no value"),
        (b"\x80\x02NNa.", "no list"),
        (b"\x80\x02NNNs.", "no dict"),
        (b"\x80\x02cos", "breaks off"),
        (b"\x80\x02ios\nsystem\n.", "instruction 0x69"),
        (b"\x80\x02(X\x06\x00\x00\x00moduletQ.", "outer object"),
    ] {
        let text = pickle_refusal(pickle);
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    let whole = std::fs::read(fixture("new.pt")).unwrap();
    for length in 0..whole.len() {
        let cut = whole[..length].to_vec();
        assert!(TorchFile::from_bytes(cut, Path::new("cut"), &ReadOptions::default()).is_err(), "{length}");
    }
}

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
