//! The arguments of a BPF program, and the macro that declares an entry point.

use aya_ebpf::{EbpfContext, cty::c_void, helpers::bpf_skc_to_tcp_sock};

use crate::socket::{RateSample, Segment, Socket};

/// The arguments of a callback, traced function or tracepoint: an array of 8-byte words.
pub(crate) struct Arguments(*mut c_void);

impl EbpfContext for Arguments {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

impl Arguments {
    /// Wraps the context that the kernel passed to the program.
    #[inline(always)]
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    /// The argument at this position, as a number.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> u64 {
        // SAFETY: the verifier checks the position against the number of arguments.
        unsafe { *self.0.cast::<u64>().add(index) }
    }

    /// The socket of a congestion-control callback, which the kernel passes as a `tcp_sock`.
    #[inline(always)]
    pub(crate) fn socket(&self) -> Socket {
        // SAFETY: every callback's first argument is the socket.
        unsafe { Socket::new(*self.0.cast::<*mut c_void>()) }
    }

    /// The socket of a traced function or tracepoint, whose first argument is a `sock`; `None` when
    /// that is not a full TCP socket.
    #[inline(always)]
    pub(crate) fn traced_socket(&self) -> Option<Socket> {
        // SAFETY: the first argument is a socket, and the helper returns null unless it is a
        // `tcp_sock`.
        let socket = unsafe { bpf_skc_to_tcp_sock(*self.0.cast::<*mut c_void>()) };
        // SAFETY: the helper returns a `tcp_sock`, locked like the argument.
        (!socket.is_null()).then(|| unsafe { Socket::new(socket.cast()) })
    }

    /// The argument at this position, which is an `sk_buff`.
    #[inline(always)]
    pub(crate) fn segment(&self, index: usize) -> Segment {
        // SAFETY: `index` is the position of the segment in this program's arguments.
        unsafe { Segment::new(*self.0.cast::<*const c_void>().add(index)) }
    }

    /// The argument at this position, which is a `rate_sample`.
    #[inline(always)]
    pub(crate) fn rate_sample(&self, index: usize) -> RateSample {
        // SAFETY: `index` is the position of the rate sample in this program's arguments.
        unsafe { RateSample::new(*self.0.cast::<*const c_void>().add(index)) }
    }
}

/// Declares a program: its name, the section that aya attaches it by, and its body, a `u32`
/// expression of its [`Arguments`].
macro_rules! entry_point {
    ($(#[$doc:meta])* $name:ident, $section:literal, |$arguments:ident| $body:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = $section)]
        pub(crate) extern "C" fn $name(context: *mut ::aya_ebpf::cty::c_void) -> u32 {
            let $arguments = $crate::arguments::Arguments::new(context);
            $body
        }
    };
}

pub(crate) use entry_point;
