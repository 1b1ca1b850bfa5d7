//! The append-only record of what a run has finished. Resume believes it and nothing else.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

use packd_sinks::open_shared;
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::stats::Stats;
use crate::error::Error;
use crate::output::Output;

/// One file that was finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedFile {
    /// Path relative to the output folder.
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: u64,
    /// XXH3-128 of its bytes, in hexadecimal.
    pub(crate) checksum: String,
}

/// Where the next unit starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Which part of the node's slice.
    pub(crate) part: usize,
    /// Offset in the plain input; 0 for the start of the part, wherever that is.
    pub(crate) offset: u64,
    /// Line, counted from the start of the part, which is line 1.
    pub(crate) line: u64,
}

impl Position {
    /// The start of a slice.
    pub(crate) const START: Self = Self { part: 0, offset: 0, line: 1 };
}

/// A unit of input that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredUnit {
    /// The node that measured it.
    pub(crate) node: Node,
    /// Its number on that node.
    pub(crate) unit: u64,
    /// Samples that were accepted.
    pub(crate) samples: u64,
    /// Where the next unit starts.
    pub(crate) next: Position,
    /// The parts that end in this unit, and how many lines each of them has in all.
    pub(crate) part_lines: Vec<(usize, u64)>,
    /// What was counted.
    pub(crate) stats: Stats,
    pub(crate) files: Vec<FinishedFile>,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Entry {
    Measured(Box<MeasuredUnit>),
    /// Measurements from this unit on were lost: all that was made of them is void.
    Remeasure {
        from: u64,
    },
    Shard {
        shard: String,
        /// What it was made from, see `flow::measurements`.
        measurements: u64,
        files: Vec<FinishedFile>,
    },
}

/// A shard that was written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FinishedShard {
    /// What it was made from.
    pub(crate) measurements: u64,
    pub(crate) files: Vec<FinishedFile>,
}

/// What the ledger says was finished.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Finished {
    /// Measured units, from the first on without a gap.
    pub(crate) units: Vec<MeasuredUnit>,
    /// Written shards by name.
    pub(crate) shards: BTreeMap<String, FinishedShard>,
}

impl Finished {
    /// Forgets units, and every shard with them: a shard may hold samples of any unit.
    pub(crate) fn drop_units_from(&mut self, unit: u64) {
        if (unit as usize) < self.units.len() {
            self.units.truncate(unit as usize);
            self.shards.clear();
        }
    }
}

/// The open ledger: a file that grows line by line or, as objects cannot grow, one object a line.
#[derive(Debug)]
pub(crate) struct Ledger {
    output: Output,
    node: Node,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
enum Lines {
    File(File),
    /// The number of the next object.
    Objects(u64),
}

impl Ledger {
    /// Opens the ledger of a node and reads what was finished. A last line that was cut by a crash is dropped.
    pub(crate) fn open(output: &Output, node: Node) -> Result<(Self, Finished), Error> {
        let text = read_text(output, node)?;
        let whole = whole_lines(&text);
        let finished = read(&text[..whole]).map_err(|error| not_a_ledger(output, node, &error))?;
        let lines = match output.remote() {
            Some(_) => Lines::Objects(next_object(output, node)?),
            None => {
                let path = output.path(&node.ledger());
                let fail =
                    |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
                let file = open_shared(&path).map_err(fail)?;
                if whole < text.len() {
                    file.set_len(whole as u64).map_err(fail)?;
                }
                Lines::File(file)
            }
        };
        Ok((Self { output: output.clone(), node, lines: Mutex::new(lines) }, finished))
    }

    /// What a ledger says, without opening it for writing.
    pub(crate) fn peek(output: &Output, node: Node) -> Result<Finished, Error> {
        let text = read_text(output, node)?;
        read(&text[..whole_lines(&text)]).map_err(|error| not_a_ledger(output, node, &error))
    }

    pub(crate) fn measured(&self, unit: &MeasuredUnit) -> Result<(), Error> {
        self.append(&Entry::Measured(Box::new(unit.clone())))
    }

    pub(crate) fn remeasure(&self, from: u64) -> Result<(), Error> {
        self.append(&Entry::Remeasure { from })
    }

    pub(crate) fn shard(&self, shard: &str, finished: FinishedShard) -> Result<(), Error> {
        let FinishedShard { measurements, files } = finished;
        self.append(&Entry::Shard { shard: shard.to_owned(), measurements, files })
    }

    fn append(&self, entry: &Entry) -> Result<(), Error> {
        let fail = |message: String| Error::State { path: self.output.shown(&self.node.ledger()), message };
        let mut line = serde_json::to_vec(entry).map_err(|error| fail(error.to_string()))?;
        line.push(b'\n');
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &mut *lines {
            Lines::File(file) => {
                file.write_all(&line).and_then(|()| file.sync_data()).map_err(|error| fail(error.to_string()))
            }
            Lines::Objects(next) => {
                for _ in 0..MOST_TAKEN {
                    let name = object_name(self.node, *next);
                    *next += 1;
                    // Another process on the same node may have written this one.
                    if self.output.write_new(&name, &line)? {
                        return Ok(());
                    }
                }
                Err(fail("the store refuses every new object, as if it were there".into()))
            }
        }
    }
}

/// Lines that another process on the node may have written since this one last looked.
const MOST_TAKEN: u32 = 100_000;

fn object_name(node: Node, number: u64) -> String {
    format!("{}/{number:08}.json", node.ledger_objects())
}

/// All lines of a ledger; nothing while there is none.
fn read_text(output: &Output, node: Node) -> Result<Vec<u8>, Error> {
    let Some(prefix) = output.remote() else { return Ok(output.read(&node.ledger())?.unwrap_or_default()) };
    let Some(folder) = prefix.join(&node.ledger_objects())? else { return Ok(Vec::new()) };
    let names: Vec<String> =
        folder.list()?.into_iter().map(|(name, _)| format!("{}/{name}", node.ledger_objects())).collect();
    Ok(output.read_many(&names)?.into_iter().flatten().flatten().collect())
}

/// The number behind the last object of a ledger; a process that failed in between may have left gaps.
fn next_object(output: &Output, node: Node) -> Result<u64, Error> {
    let Some(folder) =
        output.remote().map(|prefix| prefix.join(&node.ledger_objects())).transpose()?.flatten()
    else {
        return Ok(0);
    };
    let names = folder.list()?;
    let last = names.iter().filter_map(|(name, _)| name.strip_suffix(".json")?.parse::<u64>().ok()).max();
    Ok(last.map_or(0, |last| last + 1))
}

fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)
}

fn not_a_ledger(output: &Output, node: Node, error: &serde_json::Error) -> Error {
    Error::State { path: output.shown(&node.ledger()), message: format!("not a ledger: {error}") }
}

fn read(text: &[u8]) -> Result<Finished, serde_json::Error> {
    let mut finished = Finished::default();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line)? {
            Entry::Measured(unit) => {
                let (place, known) = (unit.unit as usize, finished.units.len());
                // Where a store knows no locks, two processes on one node write the same lines, each from where it
                // began: one that is known changes nothing, one behind a gap cannot be continued from.
                if finished.units.get(place) == Some(&*unit) || place > known {
                    continue;
                }
                // A unit that was measured again replaces itself and all that followed from it.
                finished.drop_units_from(unit.unit);
                finished.units.push(*unit);
            }
            Entry::Remeasure { from } => finished.drop_units_from(from),
            Entry::Shard { shard, measurements, files } => {
                finished.shards.insert(shard, FinishedShard { measurements, files });
            }
        }
    }
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(number: u64) -> MeasuredUnit {
        let next = Position { part: 0, offset: number, line: number };
        MeasuredUnit {
            node: Node(0),
            unit: number,
            samples: 1,
            next,
            part_lines: vec![],
            stats: Stats::default(),
            files: vec![],
        }
    }

    #[test]
    fn lines_of_two_processes_on_one_node_leave_no_gap() {
        let line = |number| serde_json::to_vec(&Entry::Measured(Box::new(unit(number)))).unwrap();
        let shard = Entry::Shard { shard: "a.tar".into(), measurements: 1, files: vec![] };
        let units = |text: &[Vec<u8>]| -> Vec<u64> {
            read(&text.join(&b'\n')).unwrap().units.iter().map(|unit| unit.unit).collect()
        };
        // One has measured all, the other began in between.
        assert_eq!(units(&[line(0), line(1), line(2), line(1), line(3)]), [0, 1, 2, 3]);
        // What stands behind a gap cannot be continued from.
        assert_eq!(units(&[line(0), line(2), line(1)]), [0, 1]);
        let text = [line(0), serde_json::to_vec(&shard).unwrap(), line(0)].join(&b'\n');
        assert_eq!(read(&text).unwrap().shards.len(), 1, "nothing was measured again");
        // A unit that became another one is another beginning.
        let other = MeasuredUnit { samples: 7, ..unit(1) };
        let other = serde_json::to_vec(&Entry::Measured(Box::new(other))).unwrap();
        assert_eq!(units(&[line(0), line(1), line(2), other]), [0, 1]);
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::open_existing(folder.path()).unwrap();
        output.create_folder(&Node(0).run()).unwrap();
        let path = output.path(&Node(0).ledger());
        let (ledger, finished) = Ledger::open(&output, Node(0)).unwrap();
        assert_eq!(finished, Finished::default());
        ledger.measured(&unit(0)).unwrap();
        ledger.shard("a.tar", FinishedShard::default()).unwrap();
        drop(ledger);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (ledger, before) = Ledger::open(&output, Node(0)).unwrap();
            assert!(before.units.len() <= 1 && before.shards.len() <= before.units.len());
            ledger.shard("b.tar", FinishedShard::default()).unwrap();
            drop(ledger);
            let after = Ledger::peek(&output, Node(0)).unwrap();
            assert!(after.shards.contains_key("b.tar"), "cut at {cut}");
            assert_eq!(after.units, before.units);
        }
    }
}
