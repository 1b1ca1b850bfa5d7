//! Looking at what a model computes on the way.

use candle_core::Tensor;

/// Sees intermediate results by name: `vit.layer0.out`, `lm.layer3.out`, `logits` …
pub trait Probe {
    /// Called once for each of them, in order.
    fn see(&mut self, name: &str, tensor: &Tensor);

    /// Whether results that are made for the probe alone are wanted.
    fn is_looking(&self) -> bool {
        true
    }
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    fn see(&mut self, _: &str, _: &Tensor) {}

    fn is_looking(&self) -> bool {
        false
    }
}

impl<F: FnMut(&str, &Tensor)> Probe for F {
    fn see(&mut self, name: &str, tensor: &Tensor) {
        self(name, tensor);
    }
}
