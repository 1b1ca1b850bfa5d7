//! What all nodes committed, seen as one.

use std::collections::BTreeMap;

use packd_config::{DuplicateId, ImageChanged, Scope};
use packd_sinks::LostSample;
use packd_stages::bin_pack::Quality;

use super::read_commits;
use crate::error::Error;
use crate::flow::left_out::{LeftOut, find_duplicates};
use crate::job::Job;
use crate::report::Stats;
use crate::state::commits::{Commit, MeasuredNode, WrittenNode};
use crate::state::ledger::MeasuredUnit;
use crate::state::node::Node;
use crate::state::rows::{Row, RowStore};

pub(super) struct Whole {
    /// The units of all nodes, in the order of the input.
    pub(super) units: Vec<MeasuredUnit>,
    pub(super) rows: RowStore,
    pub(super) written: Vec<WrittenNode>,
    pub(super) stats: Stats,
    /// Records that were accepted, and are not packed.
    pub(super) left_out: LeftOut,
    /// Ordinal of the first sample of each node.
    first_ordinals: Vec<u64>,
    /// For each node and input, the lines before the part of the input that the node measured.
    lines_before: Vec<Vec<u64>>,
}

impl Whole {
    pub(super) fn read(job: &Job) -> Result<Self, Error> {
        let missing = |node: Node, phase| Error::Waiting { nodes: vec![node.0], phase };
        let (mut units, mut written, mut first_ordinals) = (Vec::new(), Vec::new(), Vec::new());
        let mut lines_before = Vec::new();
        let mut lines = vec![0; job.tools.inputs.len()];
        let mut ordinal = 0;
        let nodes: Vec<Node> = job.nodes().collect();
        let all_measured = MeasuredNode::read_all(&job.output, &nodes)?;
        let all_written = WrittenNode::read_all(&job.output, &nodes)?;
        let all = nodes.into_iter().zip(&job.file().slices).zip(all_measured).zip(all_written);
        for (((node, slice), measured), written_node) in all {
            let measured = measured.ok_or_else(|| missing(node, "measured"))?;
            written.push(written_node.ok_or_else(|| missing(node, "written"))?);
            first_ordinals.push(ordinal);
            ordinal += measured.samples();
            lines_before.push(lines.clone());
            for (part, count) in measured.units.iter().flat_map(|unit| &unit.part_lines) {
                if let Some(part) = slice.get(*part) {
                    lines[part.source] += count;
                }
            }
            units.extend(measured.units);
        }
        let rows = RowStore::of_units(&job.output, &units)?;
        let mut stats = Stats::default();
        units.iter().for_each(|unit| stats.add(&unit.stats));
        let mut whole =
            Self { units, rows, written, stats, left_out: LeftOut::default(), first_ordinals, lines_before };
        if job.config.duplicate_id == DuplicateId::Reject {
            let line_of = |ordinal, row: &Row| {
                u64::from(row.line) + whole.lines_before(whole.node_of(ordinal), row.source.into())
            };
            whole.left_out = find_duplicates(job, &whole.units, &whole.rows, line_of)?;
        }
        if job.config.image_changed == ImageChanged::Reject {
            let lost = whole.lost_samples(job)?;
            whole.left_out.add_lost(job, &whole.units, &whole.rows, &lost)?;
        }
        whole.left_out.sort(&job.tools.inputs);
        whole.left_out.apply(&mut whole.stats);
        Ok(whole)
    }

    /// What shards had to do without, by ordinal, with the line in the input.
    fn lost_samples(&self, job: &Job) -> Result<BTreeMap<u64, (LostSample, u64)>, Error> {
        let mut lost = BTreeMap::new();
        for (node, written) in job.nodes().zip(&self.written) {
            let first = if job.config.scope == Scope::Global { 0 } else { self.first_ordinal(node) };
            for commit in read_commits(job, node, &written.shards) {
                for sample in commit?.lost {
                    let (ordinal, sub) = (first + sample.sub_sample.ordinal, &sample.sub_sample);
                    let line = sub.line + self.lines_before(self.node_of(ordinal), sub.source);
                    lost.insert(ordinal, (sample, line));
                }
            }
        }
        Ok(lost)
    }

    pub(super) fn first_ordinal(&self, node: Node) -> u64 {
        self.first_ordinals[node.0 as usize]
    }

    /// The node that measured a sample.
    pub(super) fn node_of(&self, ordinal: u64) -> Node {
        // Of nodes without samples the last one begins where the sample's node does.
        Node(self.first_ordinals.partition_point(|first| *first <= ordinal) as u32 - 1)
    }

    /// The lines of an input before the part that a node measured: a node counts its own from 1.
    pub(super) fn lines_before(&self, node: Node, source: usize) -> u64 {
        self.lines_before[node.0 as usize][source]
    }

    /// Of every packing; one packing of all nodes was made by each of them.
    pub(super) fn qualities(&self, job: &Job) -> Vec<&Quality> {
        let nodes = if job.config.scope == Scope::Global { 1 } else { self.written.len() };
        self.written.iter().take(nodes).flat_map(|node| &node.qualities).collect()
    }
}
