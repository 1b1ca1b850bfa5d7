//! How far two tensors agree, and how far they must.

use candle_core::{DType, Device, Tensor};
use serde::Serialize;

use crate::error::Result;
use crate::probe::Probe;

/// How far two tensors of one shape agree. Values that are no numbers make these no numbers, which meet no threshold (in
/// JSON: null).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// a·b / (‖a‖ ‖b‖) over all elements; 1 where both are zero, 0 where one is. It does not see a factor.
    pub cosine: f64,
    /// ‖a − b‖ / max(‖a‖, ‖b‖); 0 where both are zero.
    pub relative_error: f64,
    /// Largest |a − b|.
    pub max_abs: f64,
}

impl Agreement {
    /// That of a tensor with itself.
    pub const SAME: Self = Self { cosine: 1.0, relative_error: 0.0, max_abs: 0.0 };
}

/// How far two tensors must agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// The cosine must be above this.
    pub cosine: f64,
    /// The relative error must be at most this.
    pub relative_error: f64,
}

impl Threshold {
    /// What a cosine asks of vectors of one length, for which ‖a − b‖² = 2 ‖a‖² (1 − cosine). Of vectors of different
    /// lengths it asks more: they must not differ by a factor either.
    pub fn of_cosine(cosine: f64) -> Self {
        Self { cosine, relative_error: (2.0 * (1.0 - cosine)).sqrt() }
    }

    /// Whether it is met.
    pub fn is_met_by(&self, agreement: &Agreement) -> bool {
        agreement.cosine > self.cosine && agreement.relative_error <= self.relative_error
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cosine > {}, relative error ≤ {:.2e}", self.cosine, self.relative_error)
    }
}

/// Gathers an [`Agreement`] block by block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    product: f64,
    squares: [f64; 2],
    difference: f64,
    max_abs: f64,
}

impl Sums {
    /// Adds elements of both, in the same order.
    pub(crate) fn add(&mut self, a: &[f32], b: &[f32]) {
        for (&a, &b) in a.iter().zip(b) {
            let (a, b) = (f64::from(a), f64::from(b));
            self.product += a * b;
            self.squares[0] += a * a;
            self.squares[1] += b * b;
            self.difference += (a - b) * (a - b);
            // `max` passes over what is no number; the sums do not.
            self.max_abs = self.max_abs.max((a - b).abs());
        }
    }

    pub(crate) fn agreement(&self) -> Agreement {
        let [a, b] = self.squares.map(f64::sqrt);
        if !self.difference.is_finite() {
            return Agreement { cosine: f64::NAN, relative_error: f64::NAN, max_abs: f64::NAN };
        }
        let cosine = match (a * b, self.difference) {
            (_, 0.0) => 1.0,
            (0.0, _) => 0.0,
            (norms, _) => self.product / norms,
        };
        let longest = a.max(b);
        let relative_error = if longest > 0.0 { self.difference.sqrt() / longest } else { 0.0 };
        Agreement { cosine, relative_error, max_abs: self.max_abs }
    }
}

/// A tensor that a probe has seen, as f32 on the host.
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Seen {
    fn of(name: &str, tensor: &Tensor) -> Result<Self> {
        let values = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(Self { name: name.to_owned(), shape: tensor.dims().to_vec(), values })
    }
}

/// Two tensors compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The tensor's name in Hugging Face, or where in the model it is (`vit.layer3.out`).
    pub name: String,
    /// Its shape on the side that is compared with.
    pub shape: Vec<usize>,
    /// Shape on the other side, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_shape: Option<Vec<usize>>,
    /// How far the two agree; none when they were not compared.
    pub agreement: Option<Agreement>,
    /// How far they must.
    pub threshold: Threshold,
    /// Whether they do.
    pub passed: bool,
    /// Whether they are the same to the bit, dtypes of tensors included.
    pub identical: bool,
    /// What would explain the difference, or why the two were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Point {
    pub(crate) fn new(name: &str, shape: &[usize], agreement: Agreement, threshold: Threshold) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            other_shape: None,
            agreement: Some(agreement),
            threshold,
            passed: threshold.is_met_by(&agreement),
            identical: agreement == Agreement::SAME,
            hint: None,
        }
    }

    /// One that could not be compared as numbers.
    pub(crate) fn not_compared(name: &str, shape: &[usize], threshold: Threshold, why: String) -> Self {
        let point = Self::new(name, shape, Agreement::SAME, threshold);
        Self { agreement: None, passed: false, identical: false, hint: Some(why), ..point }
    }

    /// What two models computed at one point, `ours` on the side that is compared with.
    pub(crate) fn of_outputs(ours: &Seen, theirs: &Seen, threshold: Threshold) -> Self {
        if ours.shape != theirs.shape {
            let why = format!("its shape is {:?}, not {:?}", theirs.shape, ours.shape);
            let point = Self::not_compared(&ours.name, &ours.shape, threshold, why);
            return Self { other_shape: Some(theirs.shape.clone()), ..point };
        }
        let mut sums = Sums::default();
        sums.add(&ours.values, &theirs.values);
        Self::new(&ours.name, &ours.shape, sums.agreement(), threshold)
    }

    /// How much of what is allowed it takes up: above 1 when it fails.
    pub(crate) fn strain(&self) -> f64 {
        let Some(agreement) = &self.agreement else { return f64::INFINITY };
        let (error, allowed) = (agreement.relative_error, self.threshold.relative_error);
        match error {
            _ if !self.passed && allowed == 0.0 => f64::MAX.min(1e300 * (1.0 + error)),
            0.0 => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error / allowed,
        }
    }
}

/// Keeps what a model computes on the way: all, or what a function says by name.
pub(crate) struct Recorder<F> {
    wanted: F,
    seen: Result<Vec<Seen>>,
}

impl<F: Fn(&str) -> bool> Recorder<F> {
    pub(crate) fn new(wanted: F) -> Self {
        Self { wanted, seen: Ok(Vec::new()) }
    }

    /// What was seen, in order.
    pub(crate) fn finish(self) -> Result<Vec<Seen>> {
        self.seen
    }
}

impl<F: Fn(&str) -> bool> Probe for Recorder<F> {
    fn see(&mut self, name: &str, tensor: &Tensor) {
        if !(self.wanted)(name) {
            return;
        }
        if let Ok(seen) = &mut self.seen {
            match Seen::of(name, tensor) {
                Ok(one) => seen.push(one),
                Err(error) => self.seen = Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(a: &[f32], b: &[f32]) -> Agreement {
        let mut sums = Sums::default();
        sums.add(a, b);
        sums.agreement()
    }

    #[test]
    fn angle_factor_and_distance() {
        let same = agreement(&[1.0, 2.0], &[1.0, 2.0]);
        assert_eq!(same, Agreement { cosine: 1.0, relative_error: 0.0, max_abs: 0.0 });
        let right = agreement(&[3.0, 0.0], &[0.0, 4.0]);
        assert_eq!(right, Agreement { cosine: 0.0, relative_error: 1.25, max_abs: 4.0 });
        // A cosine alone would let a factor pass.
        let twice = agreement(&[1.0, 2.0], &[2.0, 4.0]);
        assert!(twice.cosine > 0.9999 && !Threshold::of_cosine(0.9).is_met_by(&twice), "{twice:?}");
    }

    #[test]
    fn zeros_and_what_is_no_number() {
        assert_eq!(agreement(&[0.0], &[0.0]).cosine, 1.0);
        assert_eq!(agreement(&[0.0], &[1.0]).cosine, 0.0);
        for odd in [f32::NAN, f32::INFINITY] {
            assert!(!Threshold::of_cosine(-1.0).is_met_by(&agreement(&[odd], &[odd])));
        }
    }

    #[test]
    fn a_threshold_by_cosine_is_its_angle() {
        let (angle, limit) = (0.1_f64, Threshold::of_cosine(0.99));
        for (angle, met) in [(angle, true), (0.2, false)] {
            let turned = agreement(&[1.0, 0.0], &[angle.cos() as f32, angle.sin() as f32]);
            assert_eq!(limit.is_met_by(&turned), met, "{turned:?}");
        }
    }
}
