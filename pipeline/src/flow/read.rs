//! Stage 0: blocks of raw records from the inputs.

use std::sync::Arc;

use packd_sources::{Input, Part, ReadRange, RecordBlock, RecordReader};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::progress::Progress;
use crate::state::ledger::Position;

/// A block, the part of the slice that it comes from, and whether its input can be read again by offset.
pub(crate) struct ReadBlock {
    pub(crate) block: RecordBlock,
    pub(crate) part: usize,
    pub(crate) seekable: bool,
}

/// Reads the parts of a slice from a position on, in order.
pub(crate) async fn read(
    inputs: Arc<[Input]>,
    parts: Arc<[Part]>,
    from: Position,
    max_record: usize,
    output: Sender<ReadBlock>,
    progress: Arc<Progress>,
    cancel: CancellationToken,
) -> Result<(), Error> {
    for (number, part) in parts.iter().enumerate().skip(from.part) {
        let mut range = ReadRange { offset: part.offset, line: 1, end: part.end };
        if number == from.part && from.offset > 0 {
            range = ReadRange { offset: from.offset, line: from.line, ..range };
        }
        let mut at = range.offset;
        let mut reader = RecordReader::open(&inputs[part.source], part.source, range, max_record).await?;
        let seekable = reader.is_seekable();
        loop {
            let block = tokio::select! {
                () = cancel.cancelled() => return Err(Error::Interrupted),
                block = reader.next_block() => block?,
            };
            let Some(block) = block else { break };
            Progress::add(&progress.input_bytes_read, block.end_offset.saturating_sub(at));
            at = block.end_offset;
            let block = ReadBlock { block, part: number, seekable };
            tokio::select! {
                () = cancel.cancelled() => return Err(Error::Interrupted),
                sent = output.send(block) => if sent.is_err() { return Ok(()) },
            }
        }
    }
    Ok(())
}
