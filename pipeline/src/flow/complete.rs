//! Whether what was finished is still there.

use super::write;
use crate::error::Error;
use crate::finalize::read_done;
use crate::job::Job;
use crate::report::Report;
use crate::state::commits::{Commit, MeasuredNode, WrittenNode};
use crate::state::ledger::FinishedFile;
use crate::state::node::Node;

/// Whether a node has written all that it has to, from what is measured now, and it is still there.
pub(super) fn has_written(job: &Job, node: Node) -> Result<bool, Error> {
    Ok(incomplete(job, &[node])?.is_empty())
}

/// The nodes that have not written all that they have to. Everything is asked for at once: a store takes its time
/// for each answer.
pub(super) fn incomplete(job: &Job, nodes: &[Node]) -> Result<Vec<Node>, Error> {
    let measured = MeasuredNode::read_all(&job.output, nodes)?;
    let written = WrittenNode::read_all(&job.output, nodes)?;
    let mut files: Vec<&FinishedFile> = Vec::new();
    let mut commits: Vec<String> = Vec::new();
    for ((node, measured), written) in nodes.iter().zip(&measured).zip(&written) {
        let (Some(measured), Some(written)) = (measured, written) else { continue };
        files.extend(written.files.iter().chain(measured.files()));
        commits.extend(written.shards.iter().map(|shard| write::commit_name(*node, shard)));
    }
    let mut whole = job.output.are_whole(&files, job.config.verify_resume)?.into_iter();
    let mut committed = job.output.sizes(&commits)?.into_iter();
    let shared = match (job.config.scope, nodes) {
        (packd_config::Scope::Global, [node, ..]) => Some(measurements(job, *node)?),
        _ => None,
    };
    let mut incomplete = Vec::new();
    for ((node, measured), written) in nodes.iter().zip(&measured).zip(&written) {
        let (Some(measured), Some(written)) = (measured, written) else {
            incomplete.push(*node);
            continue;
        };
        let files = whole.by_ref().take(written.files.len() + measured.files().count());
        let damaged = files.filter(|whole| !whole).count();
        let missing = committed.by_ref().take(written.shards.len()).filter(Option::is_none).count();
        // With one packing for all they are the same for all nodes.
        let now = match shared {
            Some(shared) => shared,
            None => measurements(job, *node)?,
        };
        let is_whole = damaged == 0 && missing == 0 && now == Some(written.measurements);
        if !is_whole {
            tracing::warn!(
                node = node.0,
                "the output is not what the node left; it has to complete it again"
            );
            incomplete.push(*node);
        }
    }
    Ok(incomplete)
}

/// Stands for everything that a node's shards were made from: what it measured, and with one packing for all
/// what all nodes measured. `None` while that is not there.
pub(super) fn measurements(job: &Job, node: Node) -> Result<Option<u64>, Error> {
    let nodes: Vec<Node> = match job.config.scope {
        packd_config::Scope::Global => job.nodes().collect(),
        _ => vec![node],
    };
    let names: Vec<String> = nodes.into_iter().map(MeasuredNode::name).collect();
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for text in job.output.read_many(&names)? {
        match text {
            Some(text) => hash.update(&text),
            None => return Ok(None),
        }
    }
    Ok(Some(hash.digest()))
}

/// The report of a run that was done before, if everything that it wrote is still there.
pub(super) fn finished_report(job: &Job) -> Result<Option<Report>, Error> {
    let Some(files) = read_done(&job.output)? else { return Ok(None) };
    if !are_unchanged(job, &files)? {
        tracing::warn!("the output is not what the finished run left; completing it again");
        return Ok(None);
    }
    Ok(Report::of(&job.output).ok().map(|report| Report { already_done: true, ..report }))
}

/// Whether finished files are as they were recorded: their sizes, and with `verify_resume` their checksums.
pub(super) fn are_unchanged<'a>(
    job: &Job,
    files: impl IntoIterator<Item = &'a FinishedFile>,
) -> Result<bool, Error> {
    let files: Vec<&FinishedFile> = files.into_iter().collect();
    Ok(job.output.are_whole(&files, job.config.verify_resume)?.into_iter().all(|whole| whole))
}
