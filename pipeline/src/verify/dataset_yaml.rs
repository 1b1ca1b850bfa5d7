//! `dataset.yaml` of a folder: what a packed sample becomes.

use packd_sinks::METADATA_FOLDER;
use serde_json::{Map, Value};

use super::context::Context;
use super::fault::FaultKind;
use super::loader;
use crate::packed_set::DataSet;

pub(super) fn check(context: &Context<'_>, set: &DataSet) {
    let meta = set.path.join(METADATA_FOLDER);
    let file = format!("{}{METADATA_FOLDER}/dataset.yaml", set.prefix);
    let fault = |detail: String| context.faults.add(FaultKind::DatasetYaml, &file, detail);
    let text = match std::fs::read_to_string(meta.join("dataset.yaml")) {
        Ok(text) => text,
        Err(error) => return fault(format!("it cannot be read: {error}")),
    };
    let content: Map<String, Value> = match serde_saphyr::from_str(&text) {
        Ok(content) => content,
        Err(error) => return fault(format!("Energon cannot read it: {error}")),
    };
    let Some(sample_type) = content.get("sample_type") else {
        // `CrudeWebdataset` and its kin name their own class; they load without a sample loader.
        if !(content.get("__module__").is_some_and(Value::is_string)
            && content.get("__class__").is_some_and(Value::is_string))
        {
            fault("it names neither a `sample_type` nor a `__module__` and `__class__`".into());
        }
        return;
    };
    let class = sample_type.get("__class__").and_then(Value::as_str);
    let (Some(class), true) = (class, sample_type.get("__module__").is_some_and(Value::is_string)) else {
        return fault("its `sample_type` names no `__module__` and `__class__`".into());
    };
    match (content.get("sample_loader"), content.get("field_map")) {
        (None, Some(_)) => {}
        (Some(Value::String(reference)), None) => {
            check_reference(context, set, &file, "sample_loader", reference, Some(class));
            match content.get("part_filter") {
                Some(Value::String(filter)) => {
                    check_reference(context, set, &file, "part_filter", filter, None)
                }
                Some(Value::Array(_)) => {}
                _ => fault("`sample_loader` needs a `part_filter`".into()),
            }
        }
        _ => fault("it needs either a `sample_loader` or a `field_map`".into()),
    }
}

/// `file.py:function`, relative to the metadata folder.
fn check_reference(
    context: &Context<'_>,
    set: &DataSet,
    file: &str,
    key: &str,
    reference: &str,
    class: Option<&str>,
) {
    let Some((path, function)) = reference.rsplit_once(':') else {
        let detail = format!("`{key}` is {reference:?}, not `file.py:function`");
        return context.faults.add(FaultKind::DatasetYaml, file, detail);
    };
    if !path.ends_with(".py") {
        // A module that is installed with the trainer.
        return;
    }
    let script = format!("{}{METADATA_FOLDER}/{path}", set.prefix);
    match std::fs::read_to_string(set.path.join(METADATA_FOLDER).join(path)) {
        Ok(text) => loader::check(context, &script, &text, function, class),
        Err(error) => {
            let detail = format!("`{key}` of dataset.yaml names it, and it cannot be read: {error}");
            context.faults.add(FaultKind::SampleLoader, &script, detail);
        }
    }
}
