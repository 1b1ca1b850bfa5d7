//! Compiles the kernels of `kernels/` to PTX for the GPU build; the CPU build needs nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "cuda")]
    {
        let out = std::path::PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        let kernels = cudaforge::KernelBuilder::new()
            .source_dir("kernels")
            .arg("-O3")
            .arg("-std=c++17")
            .build_ptx()
            .expect("nvcc compiles the kernels");
        kernels.write(out.join("ptx.rs")).expect("the build folder is writable");
    }
}
