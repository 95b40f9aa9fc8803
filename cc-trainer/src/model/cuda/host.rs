//! The kernels on the CPU, to test the device's arithmetic without a GPU:
//! `kernels.cu` compiled as C++, with the threads of a kernel run one after the
//! other, and a matrix product by BLAS's definition.

use std::{
    collections::HashMap,
    env,
    ffi::{CStr, CString, c_char, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    call::{Argument, BLOCK, Call, KERNELS},
    machine::Machine,
    matrix::{DeviceMatrix, Sgemm},
};
use crate::model::DeviceFailure;

/// The kernels, with definitions of what CUDA adds to C++.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/model/cuda/host.cpp");

type RunKernel = unsafe extern "C" fn(c_uint, c_uint, *mut *mut c_void);

/// The CPU in place of a GPU. Memory that was not written to holds NaN.
pub(super) struct HostMachine {
    kernels: &'static HashMap<&'static str, Kernel>,
    memory: Vec<f32>,
    /// Number of operations until the machine fails; every later one fails too.
    pub(super) left: Arc<AtomicUsize>,
}

struct Kernel {
    run: RunKernel,
    /// Type of each parameter: p for a pointer, i for an integer, f for a float.
    signature: String,
}

impl HostMachine {
    /// `None`, with a message on standard error, if there is no C++ compiler.
    pub(super) fn new() -> Option<Self> {
        static KERNELS: OnceLock<Option<HashMap<&'static str, Kernel>>> = OnceLock::new();
        let kernels = KERNELS.get_or_init(compile).as_ref();
        if kernels.is_none() {
            eprintln!(
                "SKIPPED: no C++ compiler (`c++`, or what CXX names) to run the kernels here"
            );
        }
        kernels.map(|kernels| Self {
            kernels,
            memory: Vec::new(),
            left: Arc::new(AtomicUsize::new(usize::MAX)),
        })
    }

    /// Counts an operation, which fails if there are none left.
    fn take_turn(&self, operation: &str) -> Result<(), DeviceFailure> {
        let less = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Relaxed, Relaxed, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(DeviceFailure {
                call: operation.to_owned(),
                reason: "the test wants it so".to_owned(),
            }),
        }
    }

    fn check(&self, matrix: DeviceMatrix) {
        assert!(matrix.range().end <= self.memory.len(), "{matrix:?}");
    }
}

impl Machine for HostMachine {
    fn grow(&mut self, len: usize) -> Result<(), DeviceFailure> {
        self.take_turn("grow")?;
        let len = len.max(self.memory.len());
        self.memory.resize(len, f32::NAN);
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[f32]) -> Result<(), DeviceFailure> {
        self.take_turn("write")?;
        self.memory[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read(&self, at: usize, into: &mut [f32]) -> Result<(), DeviceFailure> {
        self.take_turn("read")?;
        into.copy_from_slice(&self.memory[at..at + into.len()]);
        Ok(())
    }

    /// As the reference BLAS defines it: element (i, j) of a column-major matrix with leading
    /// dimension l is at i + j l.
    fn multiply(&mut self, product: &Sgemm) -> Result<(), DeviceFailure> {
        self.take_turn("multiply")?;
        let Sgemm { a, b, c, .. } = *product;
        [a, b, c].into_iter().for_each(|matrix| self.check(matrix));
        let at = |matrix: DeviceMatrix, transposed: bool, i: usize, j: usize| {
            let (i, j) = if transposed { (j, i) } else { (i, j) };
            matrix.at + i + j * matrix.stride
        };
        for j in 0..product.n {
            for i in 0..product.m {
                let term = |p| {
                    let a = self.memory[at(a, product.transpose_a, i, p)];
                    let b = self.memory[at(b, product.transpose_b, p, j)];
                    f64::from(a) * f64::from(b)
                };
                let sum = (0..product.k).map(term).sum::<f64>() as f32;
                let c = at(c, false, i, j);
                // β = 0 overwrites, even NaN.
                self.memory[c] = match product.beta {
                    0.0 => sum,
                    beta => sum + beta * self.memory[c],
                };
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Result<(), DeviceFailure> {
        self.take_turn(call.kernel())?;
        let kernel = &self.kernels[call.kernel()];
        let arguments = call.arguments();
        let letters = arguments.iter().map(|argument| match argument {
            Argument::Array(_) => 'p',
            Argument::Integer(_) => 'i',
            Argument::Real(_) => 'f',
        });
        assert_eq!(letters.collect::<String>(), kernel.signature, "{call:?}");

        let memory = self.memory.as_mut_ptr();
        let mut values: Vec<[u8; 8]> = arguments
            .iter()
            .map(|argument| match *argument {
                Argument::Array(matrix) => {
                    self.check(matrix);
                    (memory as usize + matrix.at * size_of::<f32>()).to_ne_bytes()
                }
                Argument::Integer(number) => first_bytes(number.to_ne_bytes()),
                Argument::Real(number) => first_bytes(number.to_ne_bytes()),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = values
            .iter_mut()
            .map(|value| value.as_mut_ptr().cast())
            .collect();
        let (blocks, width) = (call.blocks() as c_uint, BLOCK as c_uint);
        // SAFETY: the arguments have the number and the types of the kernel's parameters, and its
        // arrays are within the memory.
        unsafe { (kernel.run)(blocks, width, pointers.as_mut_ptr()) };
        Ok(())
    }
}

fn first_bytes(bytes: [u8; 4]) -> [u8; 8] {
    let mut all = [0; 8];
    all[..4].copy_from_slice(&bytes);
    all
}

/// Compiles and loads the kernels; `None` if there is no C++ compiler.
fn compile() -> Option<HashMap<&'static str, Kernel>> {
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    Command::new(&compiler).arg("--version").output().ok()?;

    let dir = tempfile::tempdir().expect("a scratch directory");
    let library = dir.path().join("kernels.so");
    let each = KERNELS.map(|name| format!("KERNEL({name}) ")).concat();
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"])
        .args([&format!("-DKERNELS={each}"), SOURCE])
        .arg("-o")
        .arg(&library)
        .output()
        .expect("a C++ compiler");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");

    let path = CString::new(library.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a library of the functions above, without initialisers. It is never unloaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{}", path.to_string_lossy());
    let find = |name: String| {
        let name = CString::new(name).expect("a name");
        // SAFETY: the library is open, and the name is a C string.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!function.is_null(), "{}", name.to_string_lossy());
        function
    };
    let kernel = |name: &str| {
        type Signature = unsafe extern "C" fn() -> *const c_char;
        let (run, signature) = (
            find(format!("run_{name}")),
            find(format!("signature_{name}")),
        );
        // SAFETY: the functions have the types declared above, and the string is static.
        let (run, signature) = unsafe {
            let signature: Signature = std::mem::transmute(signature);
            (
                std::mem::transmute::<*mut c_void, RunKernel>(run),
                CStr::from_ptr(signature()),
            )
        };
        Kernel {
            run,
            signature: signature.to_string_lossy().into_owned(),
        }
    };
    Some(
        KERNELS
            .into_iter()
            .map(|name| (name, kernel(name)))
            .collect(),
    )
}
