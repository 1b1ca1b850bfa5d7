//! The kernels of `kernels/fused.cu` as operations of candle.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{CudaStorage, WrapErr};
use candle_core::{
    CpuStorage, CudaDevice, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail,
};
use half::bf16;

/// What build.rs made of `kernels/`.
#[allow(unreachable_pub)]
mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
}

const THREADS: u32 = 256;
/// Blocks of a kernel that walks over all elements: some for each of the multiprocessors of any GPU.
const MOST_BLOCKS: usize = 132 * 16;

/// Whether a tensor is of the kind that the kernels take.
pub(super) fn takes(x: &Tensor) -> bool {
    x.device().is_cuda() && x.dtype() == DType::BF16
}

fn view<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, bf16>> {
    match layout.contiguous_offsets() {
        // The kernels read 16 bytes at once.
        Some((start, _)) if !start.is_multiple_of(8) => bail!("a fused kernel takes aligned tensors"),
        Some((start, end)) => Ok(storage.as_cuda_slice::<bf16>()?.slice(start..end)),
        None => bail!("a fused kernel takes contiguous tensors"),
    }
}

fn walk(items: usize) -> LaunchConfig {
    let blocks = items.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS);
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// On the CPU the same is composed of candle's operations, before it comes to these.
macro_rules! not_on_cpu {
    ($($operand:ty),+) => {
        fn cpu_fwd(&self, $(_: &$operand),+) -> Result<(CpuStorage, Shape)> {
            bail!("{} is for GPUs", self.name())
        }
    };
}

/// A result that the kernel fills.
#[allow(unsafe_code)]
fn uninitialised(device: &CudaDevice, elements: usize) -> Result<CudaSlice<bf16>> {
    // SAFETY: every kernel of this file writes each element of its result.
    unsafe { device.alloc::<bf16>(elements) }
}

macro_rules! launch {
    ($device:expr, $kernel:expr, $config:expr, $($argument:expr),+) => {{
        let function = $device.get_or_load_custom_func($kernel, "packd-fused", ptx::FUSED)?;
        let mut builder = function.builder();
        $(builder.arg($argument);)+
        // SAFETY: the arguments are those of the kernel in kernels/fused.cu, in its order; lengths were checked.
        #[allow(unsafe_code)]
        unsafe { builder.launch($config) }.w()?;
    }};
}

pub(super) struct SiluMul;

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "silu-mul"
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        gate: &CudaStorage,
        gate_layout: &Layout,
        up: &CudaStorage,
        up_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        if gate_layout.shape() != up_layout.shape() {
            bail!("silu-mul of {:?} and {:?}", gate_layout.shape(), up_layout.shape());
        }
        let device = gate.device.clone();
        let elements = gate_layout.shape().elem_count();
        let (gate, up) = (view(gate, gate_layout)?, view(up, up_layout)?);
        let out = uninitialised(&device, elements)?;
        let eights = elements / 8;
        launch!(device, "silu_mul_bf16", walk(eights), &eights, &gate, &up, &out);
        Ok((CudaStorage::wrap_cuda_slice(out, device), gate_layout.shape().clone()))
    }
}

pub(super) struct AddRmsNorm {
    pub(super) eps: f32,
}

impl CustomOp3 for AddRmsNorm {
    fn name(&self) -> &'static str {
        "add-rms-norm"
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        delta: &CudaStorage,
        delta_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (rows, width) = x_layout.shape().dims2()?;
        if delta_layout.shape() != x_layout.shape() || weight_layout.shape().elem_count() != width {
            bail!("add-rms-norm of {:?} and {:?}", x_layout.shape(), delta_layout.shape());
        }
        let device = x.device.clone();
        let (x, delta, weight) =
            (view(x, x_layout)?, view(delta, delta_layout)?, view(weight, weight_layout)?);
        let out = uninitialised(&device, 2 * rows * width)?;
        let (columns, stride) = (width as i32, rows * width);
        let config =
            LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        launch!(device, "add_rms_norm_bf16", config, &columns, &stride, &self.eps, &x, &delta, &weight, &out);
        Ok((CudaStorage::wrap_cuda_slice(out, device), Shape::from((2, rows, width))))
    }
}

pub(super) struct NormRope {
    pub(super) weight: Tensor,
    pub(super) eps: f32,
}

impl CustomOp3 for NormRope {
    fn name(&self) -> &'static str {
        "norm-rope"
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        cos: &CudaStorage,
        cos_layout: &Layout,
        sin: &CudaStorage,
        sin_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (tokens, heads, width) = x_layout.shape().dims3()?;
        let (weight, weight_layout) = self.weight.storage_and_layout();
        let Storage::Cuda(weight) = &*weight else { bail!("the norm's weight lies on the CPU") };
        let angles = [cos_layout.shape().dims2()?, sin_layout.shape().dims2()?];
        if angles != [(tokens, width / 2); 2] || weight_layout.shape().elem_count() != width {
            bail!("norm-rope of {:?} with angles {angles:?}", x_layout.shape());
        }
        let device = x.device.clone();
        let (x, weight) = (view(x, x_layout)?, view(weight, weight_layout)?);
        let (cos, sin) = (view(cos, cos_layout)?, view(sin, sin_layout)?);
        let rows = tokens * heads;
        let out = uninitialised(&device, rows * width)?;
        let (heads, columns) = (heads as i32, width as i32);
        let blocks = rows.div_ceil(THREADS as usize / 32) as u32;
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        launch!(
            device,
            "norm_rope_bf16",
            config,
            &rows,
            &heads,
            &columns,
            &self.eps,
            &x,
            &weight,
            &cos,
            &sin,
            &out
        );
        Ok((CudaStorage::wrap_cuda_slice(out, device), x_layout.shape().clone()))
    }
}

pub(super) struct RotateNeighbours;

impl CustomOp3 for RotateNeighbours {
    fn name(&self) -> &'static str {
        "rotate-neighbours"
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        z: &CudaStorage,
        z_layout: &Layout,
        cos: &CudaStorage,
        cos_layout: &Layout,
        sin: &CudaStorage,
        sin_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (tokens, heads, width) = z_layout.shape().dims3()?;
        let stride = z_layout.stride()[0];
        let angles = [cos_layout.shape().elem_count(), sin_layout.shape().elem_count()];
        if angles != [tokens * width; 2] || !cos_layout.is_contiguous() || !sin_layout.is_contiguous() {
            bail!("rotate-neighbours of {:?} with {angles:?} angles", z_layout.shape());
        }
        let device = z.device.clone();
        let z = z.as_cuda_slice::<bf16>()?.slice(z_layout.start_offset()..);
        let cos = cos.as_cuda_slice::<f32>()?.slice(cos_layout.start_offset()..);
        let sin = sin.as_cuda_slice::<f32>()?.slice(sin_layout.start_offset()..);
        let pairs = tokens * heads * width / 2;
        let out = uninitialised(&device, 2 * pairs)?;
        let (heads, columns) = (heads as i32, width as i32);
        launch!(
            device,
            "vision_rotary_bf16",
            walk(pairs),
            &pairs,
            &heads,
            &columns,
            &stride,
            &z,
            &cos,
            &sin,
            &out
        );
        Ok((CudaStorage::wrap_cuda_slice(out, device), z_layout.shape().clone()))
    }
}

/// A kernel of rows and a bias, by its name.
pub(super) struct WithBias(pub(super) &'static str);

impl CustomOp2 for WithBias {
    fn name(&self) -> &'static str {
        self.0
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (rows, width) = x_layout.shape().dims2()?;
        if bias_layout.shape().elem_count() != width {
            bail!("{} of {:?} and {:?}", self.0, x_layout.shape(), bias_layout.shape());
        }
        let device = x.device.clone();
        let (x, bias) = (view(x, x_layout)?, view(bias, bias_layout)?);
        let out = uninitialised(&device, rows * width)?;
        let (eights, columns) = (rows * width / 8, width as i32);
        launch!(device, self.0, walk(eights), &eights, &columns, &x, &bias, &out);
        Ok((CudaStorage::wrap_cuda_slice(out, device), x_layout.shape().clone()))
    }
}

pub(super) struct AddWithBias;

impl CustomOp3 for AddWithBias {
    fn name(&self) -> &'static str {
        "add-with-bias"
    }

    not_on_cpu!(CpuStorage, Layout, CpuStorage, Layout, CpuStorage, Layout);

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        delta: &CudaStorage,
        delta_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (rows, width) = x_layout.shape().dims2()?;
        if delta_layout.shape() != x_layout.shape() || bias_layout.shape().elem_count() != width {
            bail!("add-with-bias of {:?} and {:?}", x_layout.shape(), delta_layout.shape());
        }
        let device = x.device.clone();
        let (x, delta, bias) = (view(x, x_layout)?, view(delta, delta_layout)?, view(bias, bias_layout)?);
        let out = uninitialised(&device, rows * width)?;
        let (eights, columns) = (rows * width / 8, width as i32);
        launch!(device, "add_with_bias_bf16", walk(eights), &eights, &columns, &x, &delta, &bias, &out);
        Ok((CudaStorage::wrap_cuda_slice(out, device), x_layout.shape().clone()))
    }
}
