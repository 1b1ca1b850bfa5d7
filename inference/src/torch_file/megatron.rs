//! The values beside the weights that a Megatron checkpoint file has.

use super::dtype::TorchDtype;
use super::encode::{PyValue, TensorSpec};
use super::error::Result;
use super::writer::to_bytes;

/// What the `_extra_state` of a Transformer Engine layer is when there is no FP8 state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtraState {
    /// A uint8 tensor of no elements: what Transformer Engine writes itself since it has no state to keep without
    /// FP8. Those versions return at once when they load it (`numel() == 0`). `weights_only=True` takes it.
    #[default]
    Empty,
    /// A uint8 tensor that holds the pickle of `None`: for the versions between, which unpickle the bytes of any
    /// tensor without asking whether there are some. `weights_only=True` takes it.
    PickledNone,
    /// An `io.BytesIO` with what `torch.save(None)` writes: for the first versions, which know nothing else, and as
    /// the reference converter writes it. All later versions load it too, but `weights_only=True` refuses the file
    /// unless Python first says `torch.serialization.add_safe_globals([io.BytesIO])`.
    BytesIo,
}

impl ExtraState {
    /// The value to save for a linear layer.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn value(self) -> Result<PyValue> {
        let bytes = |bytes: &[u8]| {
            let spec = TensorSpec { dtype: TorchDtype::Byte, shape: vec![bytes.len()] };
            PyValue::Filled(spec, bytes.to_vec())
        };
        Ok(match self {
            Self::Empty => bytes(&[]),
            // pickle.dumps(None)
            Self::PickledNone => bytes(b"\x80\x04N."),
            Self::BytesIo => PyValue::BytesIo(to_bytes(&PyValue::None)?),
        })
    }

    /// The value for `vision_model.pre_layernorm`, which asks for `numel()` of whatever it is given: a float tensor
    /// of no elements in every style.
    pub fn of_norm() -> PyValue {
        PyValue::Filled(TensorSpec { dtype: TorchDtype::Float, shape: vec![0] }, Vec::new())
    }
}
