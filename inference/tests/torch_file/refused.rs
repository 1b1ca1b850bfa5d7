//! Files that are broken, or made to harm.

use std::io::Write;
use std::path::Path;

use packd_inference::torch_file::{ReadOptions, TorchFile, TorchFileError, Value};

use crate::support::*;

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
