//! The model that the sources make, tensor by tensor, without a checkpoint of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::source::Source;
use super::{MergePlan, Planned, Recipe};
use crate::error::Result;
use crate::weights::Maker;

/// What a plan would write, beside a checkpoint that was written.
pub(super) struct Reference {
    plan: Arc<MergePlan>,
    /// Where the planned tensor of a name is.
    places: BTreeMap<String, usize>,
    /// The checkpoint, for the tensors that no source has.
    merged: Source,
    /// Numbers are what they are in the sources, not rounded to the checkpoint's dtypes.
    unrounded: bool,
}

impl Reference {
    pub(super) fn new(plan: Arc<MergePlan>, merged: Source, unrounded: bool) -> Self {
        let names = plan.tensors.iter().map(|planned| planned.name.clone());
        Self { places: names.zip(0..).collect(), plan, merged, unrounded }
    }

    /// As the checkpoint's numbers.
    fn dtype(&self, name: &str) -> DType {
        let found = self.merged.tensors.get(name).and_then(|found| found.dtype.as_ref().ok());
        found.copied().filter(|_| !self.unrounded).unwrap_or(DType::F32)
    }

    fn of_sources(&self, planned: &Planned, device: &Device) -> Result<Tensor> {
        let dtype = self.dtype(&planned.name);
        let mut bytes = Vec::with_capacity(planned.elements() * dtype.size_in_bytes());
        self.plan.stream(planned, dtype, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Tensor::from_raw_buffer(&bytes, dtype, &planned.shape, device)?)
    }

    fn of_checkpoint(&self, name: &str, device: &Device) -> Result<Option<Tensor>> {
        let Some(found) = self.merged.tensors.get(name) else { return Ok(None) };
        let (Ok(dtype), Some(reader)) = (&found.dtype, self.merged.reader(found)) else { return Ok(None) };
        let elements: usize = found.shape.iter().product();
        let mut bytes = vec![0; elements * dtype.size_in_bytes()];
        reader.read(0, &mut bytes)?;
        Ok(Some(Tensor::from_raw_buffer(&bytes, *dtype, &found.shape, device)?))
    }
}

impl Maker for Reference {
    fn make(&self, name: &str, device: &Device) -> Result<Option<Tensor>> {
        let planned = self.places.get(name).and_then(|place| self.plan.tensors.get(*place));
        match planned {
            None => Ok(None),
            Some(planned) if matches!(planned.recipe, Recipe::First(_)) => self.of_checkpoint(name, device),
            Some(planned) => self.of_sources(planned, device).map(Some),
        }
    }
}
