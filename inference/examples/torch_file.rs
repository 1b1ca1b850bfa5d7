//! Writes and reads torch files, for `tests/torch_file/check.py`.
//!
//! ```text
//! torch_file write FILE [reference]    every dtype, and what a Megatron file has; "reference": as its converter does
//! torch_file sums FILE                 name, dtype, shape and sum of the bytes of each tensor of the model, as JSON
//! ```

use std::error::Error;
use std::path::Path;

use packd_inference::torch_file::{ArgsStyle, ExtraState, PyValue, TorchDtype, TorchFile, TorchFileWriter};

const DTYPES: [&str; 15] = [
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
];
const SHAPES: [&[usize]; 4] = [&[], &[0], &[3, 4], &[2, 0, 5]];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["write", file] => write(Path::new(file), ArgsStyle::default(), ExtraState::default()),
        ["write", file, "reference"] => write(Path::new(file), ArgsStyle::Namespace, ExtraState::BytesIo),
        ["sums", file] => sums(Path::new(file)),
        _ => Err("usage: torch_file write FILE [reference] | sums FILE".into()),
    }
}

fn write(path: &Path, style: ArgsStyle, extra: ExtraState) -> Result<(), Box<dyn Error>> {
    let mut model = Vec::new();
    for name in DTYPES {
        let dtype = TorchDtype::from_name(name).ok_or(name)?;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            model.push((format!("{name}.{number}"), PyValue::tensor(dtype, shape)));
        }
    }
    model.push(("linear._extra_state".into(), extra.value()?));
    model.push(("older._extra_state".into(), ExtraState::PickledNone.value()?));
    model.push(("norm._extra_state".into(), ExtraState::of_norm()));
    let fields = vec![("num_layers".into(), PyValue::Int(36)), ("lr".into(), PyValue::Float(0.5))];
    let values = vec![
        PyValue::None,
        PyValue::Bool(false),
        PyValue::Int(-1),
        PyValue::Int(1 << 62),
        PyValue::Bytes((0..=255).collect()),
        "é".into(),
        PyValue::Tuple(vec![PyValue::List(vec![])]),
    ];
    let file = PyValue::dict([
        ("args", PyValue::Attributes(style, fields)),
        ("checkpoint_version", PyValue::Float(3.0)),
        ("iteration", PyValue::Int(0)),
        ("model", PyValue::dict(model)),
        ("values", PyValue::List(values)),
    ]);
    let mut writer = TorchFileWriter::create(path, &file)?;
    while let Some(spec) = writer.next_tensor() {
        // Numbers that are small and positive in every dtype: the byte 1, or 0, in turn.
        let bytes = spec.bytes().ok_or("too large")?;
        let bytes: Vec<u8> = (0..bytes).map(|place| u8::from(place % 3 == 0)).collect();
        writer.tensor(&bytes)?;
    }
    Ok(writer.finish()?)
}

fn sums(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = TorchFile::open(path)?;
    let mut found = serde_json::Map::new();
    for (_, name, node) in file.model() {
        if let Some(info) = node.as_tensor() {
            let sum = crc32fast::hash(&file.tensor_bytes(info)?);
            found.insert(name.to_owned(), serde_json::json!([info.dtype, info.shape, sum]));
        }
    }
    println!("{}", serde_json::json!(found));
    Ok(())
}
