//! Stage 0: blocks of raw records from the inputs.

use std::sync::Arc;

use packd_sources::{Input, ReadFrom, RecordBlock, RecordReader};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::progress::Progress;
use crate::state::ledger::Position;

/// A block, and whether its input can be read again by offset.
pub(crate) struct ReadBlock {
    pub(crate) block: RecordBlock,
    pub(crate) seekable: bool,
}

/// Reads the inputs from a position on, in order.
pub(crate) async fn read(
    inputs: Arc<[Input]>,
    from: Position,
    max_record: usize,
    output: Sender<ReadBlock>,
    progress: Arc<Progress>,
    cancel: CancellationToken,
) -> Result<(), Error> {
    for (source, input) in inputs.iter().enumerate().skip(from.source) {
        let start = if source == from.source {
            ReadFrom { offset: from.offset, line: from.line }
        } else {
            ReadFrom::default()
        };
        let mut at = start.offset;
        let mut reader = RecordReader::open(input, source, start, max_record).await?;
        let seekable = reader.is_seekable();
        loop {
            let block = tokio::select! {
                () = cancel.cancelled() => return Err(Error::Interrupted),
                block = reader.next_block() => block?,
            };
            let Some(block) = block else { break };
            Progress::add(&progress.input_bytes_read, block.end_offset.saturating_sub(at));
            at = block.end_offset;
            tokio::select! {
                () = cancel.cancelled() => return Err(Error::Interrupted),
                sent = output.send(ReadBlock { block, seekable }) => if sent.is_err() { return Ok(()) },
            }
        }
    }
    Ok(())
}
