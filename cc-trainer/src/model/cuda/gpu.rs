//! An NVIDIA GPU as a [`Machine`], by the driver, NVRTC and cuBLAS.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_int},
    fmt::Display,
    panic,
    sync::Arc,
};

use cudarc::{
    cublas::{self, CudaBlas},
    driver::{
        CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
        result::DriverError,
    },
    nvrtc::{self, Ptx},
};

use super::{
    call::{Argument, BLOCK, Call, KERNELS},
    machine::Machine,
    matrix::{DeviceMatrix, Sgemm},
    try_out::try_out,
    unavailable::Unavailable,
};
use crate::model::DeviceFailure;

/// The source of all kernels.
pub(super) const SOURCE: &str = include_str!("kernels.cu");

/// A GPU with the kernels loaded. All of its work is ordered in one stream.
#[derive(Debug)]
pub(super) struct Gpu {
    // Fields are dropped in order: memory and kernels before the stream that they belong to.
    memory: CudaSlice<f32>,
    kernels: HashMap<&'static str, CudaFunction>,
    blas: CudaBlas,
    stream: Arc<CudaStream>,
}

/// Checks that there is a GPU, with the libraries that computing on it takes.
///
/// # Errors
///
/// Returns the first thing that is missing.
pub fn available() -> Result<(), Unavailable> {
    // SAFETY: only looks for the libraries; loading them runs their own initialisers alone.
    let (driver, compiler, blas) = unsafe {
        (
            cudarc::driver::sys::is_culib_present(),
            nvrtc::sys::is_culib_present(),
            cublas::sys::is_culib_present(),
        )
    };
    if !driver {
        return Err(Unavailable::NoDriver);
    }
    match CudaContext::device_count().map_err(Unavailable::driver)? {
        0 => {
            return Err(Unavailable::NoGpu {
                ordinal: 0,
                gpus: 0,
            });
        }
        _ if !compiler => return Err(Unavailable::NoCompiler),
        _ if !blas => return Err(Unavailable::NoBlas),
        _ => {}
    }
    Ok(())
}

/// Compiles the kernels for an architecture such as `sm_90` to machine code, which, unlike PTX,
/// also loads with a driver that is older than the compiler.
pub(super) fn compile(architecture: &str) -> Result<Vec<u8>, Unavailable> {
    // SAFETY: only looks for the library.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(Unavailable::NoCompiler);
    }
    let failed = |reason: String| Unavailable::Kernels {
        architecture: architecture.to_owned(),
        reason,
    };
    let source = CString::new(SOURCE).map_err(|error| failed(error.to_string()))?;
    let name = c"kernels.cu";
    let program = nvrtc::result::create_program(&source, Some(name))
        .map_err(|error| failed(error.to_string()))?;
    let option = format!("--gpu-architecture={architecture}");
    // SAFETY: a program that is destroyed only after its last use, and a buffer as long as it says.
    unsafe {
        let compiled = nvrtc::result::compile_program(program, &[option]);
        let code = compiled.and_then(|()| {
            let mut len = 0;
            nvrtc::sys::nvrtcGetCUBINSize(program, &mut len).result()?;
            let mut code = vec![0_u8; len];
            nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        });
        let code = code.map_err(|error| {
            let log = nvrtc::result::get_program_log(program).unwrap_or_default();
            let log = if log.is_empty() {
                String::new()
            } else {
                CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned()
            };
            failed(format!("{error}: {log}"))
        });
        // A program that cannot be destroyed is leaked.
        let _ = nvrtc::result::destroy_program(program);
        code
    }
}

impl Gpu {
    /// Opens GPU number `ordinal`, counted from 0 as the driver does, and tries it out.
    pub(super) fn new(ordinal: usize) -> Result<Self, Unavailable> {
        available()?;
        let gpus = CudaContext::device_count().map_err(Unavailable::driver)?;
        if ordinal >= gpus.max(0) as usize {
            let gpus = gpus.max(0) as usize;
            return Err(Unavailable::NoGpu { ordinal, gpus });
        }
        // cudarc looks for a library's functions when they are first used, and panics when one is
        // not there.
        let tried = || try_out(Self::open(ordinal)?).map_err(Unavailable::Failed);
        panic::catch_unwind(tried).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Err(Unavailable::Failed(text.unwrap_or_default()))
        })
    }

    fn open(ordinal: usize) -> Result<Self, Unavailable> {
        let context = CudaContext::new(ordinal).map_err(Unavailable::driver)?;
        // SAFETY: the events order the work of several streams, and there is one.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(Unavailable::driver)?;

        let (major, minor) = context.compute_capability().map_err(Unavailable::driver)?;
        let code = compile(&format!("sm_{major}{minor}"))?;
        let module = context
            .load_module(Ptx::from_binary(code))
            .map_err(Unavailable::driver)?;
        let kernels = KERNELS
            .into_iter()
            .map(|name| Ok((name, module.load_function(name)?)))
            .collect::<Result<_, DriverError>>()
            .map_err(Unavailable::driver)?;

        let failed = |error: cublas::result::CublasError| Unavailable::Failed(error.to_string());
        let blas = CudaBlas::new(Arc::clone(&stream)).map_err(failed)?;
        let plain = cublas::sys::cublasMath_t::CUBLAS_DEFAULT_MATH;
        // SAFETY: the handle is alive.
        unsafe { cublas::sys::cublasSetMathMode(*blas.handle(), plain) }
            .result()
            .map_err(failed)?;
        Ok(Self {
            memory: stream.alloc_zeros(1).map_err(Unavailable::driver)?,
            kernels,
            blas,
            stream,
        })
    }

    /// The address of a matrix's first element.
    fn address(&self, matrix: DeviceMatrix) -> u64 {
        assert!(matrix.range().end <= self.memory.len(), "{matrix:?}");
        let (start, _) = self.memory.device_ptr(&self.stream);
        start + (matrix.at * size_of::<f32>()) as u64
    }
}

impl Machine for Gpu {
    fn grow(&mut self, len: usize) -> Result<(), DeviceFailure> {
        if len <= self.memory.len() {
            return Ok(());
        }
        let bytes = len * size_of::<f32>();
        let what = format!("taking {} MiB of its memory", bytes >> 20);
        let mut memory = done(&what, self.stream.alloc_zeros(len))?;
        done(
            "copying",
            self.stream.memcpy_dtod(&self.memory, &mut memory),
        )?;
        self.memory = memory;
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[f32]) -> Result<(), DeviceFailure> {
        if from.is_empty() {
            return Ok(());
        }
        let mut into = self.memory.slice_mut(at..at + from.len());
        done("copying to it", self.stream.memcpy_htod(from, &mut into))
    }

    fn read(&self, at: usize, into: &mut [f32]) -> Result<(), DeviceFailure> {
        if into.is_empty() {
            return Ok(());
        }
        let from = self.memory.slice(at..at + into.len());
        done("copying from it", self.stream.memcpy_dtoh(&from, into))?;
        done("waiting for it", self.stream.synchronize())
    }

    fn multiply(&mut self, product: &Sgemm) -> Result<(), DeviceFailure> {
        use cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        let operation = |transpose| if transpose { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let [a, b, c] = [product.a, product.b, product.c].map(|matrix| self.address(matrix));
        done("binding", self.stream.context().bind_to_thread())?;
        // SAFETY: the matrices are within the memory, which is alive; α and β are on the host,
        // which is cuBLAS's default.
        let result = unsafe {
            cublas::result::sgemm(
                *self.blas.handle(),
                operation(product.transpose_a),
                operation(product.transpose_b),
                int(product.m),
                int(product.n),
                int(product.k),
                &1.0,
                a as *const f32,
                int(product.a.stride),
                b as *const f32,
                int(product.b.stride),
                &product.beta,
                c as *mut f32,
                int(product.c.stride),
            )
        };
        done("sgemm", result)
    }

    fn call(&mut self, call: &Call) -> Result<(), DeviceFailure> {
        enum LaunchValue {
            Address(u64),
            Integer(i32),
            Real(f32),
        }
        let values: Vec<LaunchValue> = call
            .arguments()
            .into_iter()
            .map(|argument| match argument {
                Argument::Array(matrix) => LaunchValue::Address(self.address(matrix)),
                Argument::Integer(number) => LaunchValue::Integer(number),
                Argument::Real(number) => LaunchValue::Real(number),
            })
            .collect();
        let mut launch = self.stream.launch_builder(&self.kernels[call.kernel()]);
        for value in &values {
            match value {
                LaunchValue::Address(address) => launch.arg(address),
                LaunchValue::Integer(number) => launch.arg(number),
                LaunchValue::Real(number) => launch.arg(number),
            };
        }
        let grid = LaunchConfig {
            grid_dim: (int(call.blocks()) as u32, 1, 1),
            block_dim: (BLOCK as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel (a test compares their types), and its
        // arrays are within the memory.
        let launched = unsafe { launch.launch(grid) };
        done(call.kernel(), launched.map(drop))
    }
}

/// The result of a call that succeeds on a working device.
fn done<T, E: Display>(call: &str, result: Result<T, E>) -> Result<T, DeviceFailure> {
    result.map_err(|error| DeviceFailure {
        call: call.to_owned(),
        reason: error.to_string(),
    })
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("fewer than 2^31 rows, columns and blocks")
}
