//! A Parquet file that is written a row at a time and looks the same every time.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::{AtomicFile, SinkError};

/// Rows of a row group: what is held in memory, about 10 MB.
const ROW_GROUP: usize = 1 << 17;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    U32,
    U64,
    Text,
    OptionalText,
}

/// Name, type and description of a column.
pub(crate) type ColumnSpec = (&'static str, Kind, &'static str);

/// One value of a row.
pub(crate) enum Value<'a> {
    U32(u32),
    U64(u64),
    Text(&'a str),
    OptionalText(Option<&'a str>),
}

/// The values of a column that are not yet written. Parquet's unsigned integers travel as signed ones.
enum Column {
    U32(Vec<i32>),
    U64(Vec<i64>),
    Text(Vec<ByteArray>),
    OptionalText { values: Vec<ByteArray>, defined: Vec<i16> },
}

pub(crate) struct TableWriter {
    path: std::path::PathBuf,
    writer: SerializedFileWriter<AtomicFile>,
    columns: Vec<Column>,
    rows: u64,
    pending: usize,
}

impl TableWriter {
    pub(crate) fn create(path: &Path, name: &str, specs: &[ColumnSpec]) -> Result<Self, SinkError> {
        let file = AtomicFile::create(path)?;
        let writer = open(file, name, specs).map_err(parquet(path))?;
        let columns = specs.iter().map(|(_, kind, _)| Column::new(*kind)).collect();
        Ok(Self { path: path.into(), writer, columns, rows: 0, pending: 0 })
    }

    /// Adds a row; its values stand in the order of the columns.
    pub(crate) fn push<const N: usize>(&mut self, row: [Value<'_>; N]) -> Result<(), SinkError> {
        debug_assert_eq!(N, self.columns.len());
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
        self.rows += 1;
        self.pending += 1;
        if self.pending == ROW_GROUP { self.write_row_group() } else { Ok(()) }
    }

    /// Writes the rest and commits the file; the number of rows.
    pub(crate) fn finish(mut self) -> Result<u64, SinkError> {
        if self.pending > 0 {
            self.write_row_group()?;
        }
        self.writer.into_inner().map_err(parquet(&self.path))?.commit()?;
        Ok(self.rows)
    }

    fn write_row_group(&mut self) -> Result<(), SinkError> {
        self.pending = 0;
        write_columns(&mut self.writer, &mut self.columns).map_err(parquet(&self.path))
    }
}

fn open(
    file: AtomicFile,
    name: &str,
    specs: &[ColumnSpec],
) -> Result<SerializedFileWriter<AtomicFile>, ParquetError> {
    let fields: String = specs.iter().map(|(name, kind, _)| format!("{};", kind.field(name))).collect();
    let schema = Arc::new(parse_message_type(&format!("message {name} {{ {fields} }}"))?);
    let docs =
        specs.iter().map(|(name, _, doc)| KeyValue::new(format!("packd.column.{name}"), doc.to_string()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        // The encoder's own version would make an upgrade look like a change of the data.
        .set_created_by("packd".into())
        .set_key_value_metadata(Some(docs.collect()))
        .build();
    SerializedFileWriter::new(file, schema, Arc::new(properties))
}

fn write_columns(
    writer: &mut SerializedFileWriter<AtomicFile>,
    columns: &mut [Column],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut out) = group.next_column()? else { break };
        match column {
            Column::U32(values) => {
                out.typed::<Int32Type>().write_batch(values, None, None)?;
                values.clear();
            }
            Column::U64(values) => {
                out.typed::<Int64Type>().write_batch(values, None, None)?;
                values.clear();
            }
            Column::Text(values) => {
                out.typed::<ByteArrayType>().write_batch(values, None, None)?;
                values.clear();
            }
            Column::OptionalText { values, defined } => {
                out.typed::<ByteArrayType>().write_batch(values, Some(defined), None)?;
                values.clear();
                defined.clear();
            }
        }
        out.close()?;
    }
    group.close()?;
    Ok(())
}

impl Kind {
    /// The column as Parquet's schema language has it.
    fn field(self, name: &str) -> String {
        match self {
            Kind::U32 => format!("required int32 {name} (INTEGER(32,false))"),
            Kind::U64 => format!("required int64 {name} (INTEGER(64,false))"),
            Kind::Text => format!("required binary {name} (STRING)"),
            Kind::OptionalText => format!("optional binary {name} (STRING)"),
        }
    }
}

impl Column {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::U32 => Self::U32(Vec::new()),
            Kind::U64 => Self::U64(Vec::new()),
            Kind::Text => Self::Text(Vec::new()),
            Kind::OptionalText => Self::OptionalText { values: Vec::new(), defined: Vec::new() },
        }
    }

    fn push(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::U32(values), Value::U32(value)) => values.push(value as i32),
            (Self::U64(values), Value::U64(value)) => values.push(value as i64),
            (Self::Text(values), Value::Text(text)) => {
                // Sources and shards repeat for many rows: share their bytes.
                let value = match values.last() {
                    Some(last) if last.data() == text.as_bytes() => last.clone(),
                    _ => ByteArray::from(text),
                };
                values.push(value);
            }
            (Self::OptionalText { values, defined }, Value::OptionalText(text)) => {
                values.extend(text.map(ByteArray::from));
                defined.push(i16::from(text.is_some()));
            }
            _ => debug_assert!(false, "a row's values stand in the order of the columns"),
        }
    }
}

fn parquet(path: &Path) -> impl FnOnce(ParquetError) -> SinkError + use<> {
    let path = path.to_owned();
    move |source| SinkError::Parquet { path, source }
}
