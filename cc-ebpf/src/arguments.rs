//! What the kernel hands to a program, and how an entry point is written.

use aya_ebpf::{EbpfContext, cty::c_void, helpers::bpf_skc_to_tcp_sock};

use crate::socket::{RateSample, Segment, Socket};

/// The arguments of a callback, traced function or tracepoint, eight bytes each.
pub(crate) struct Arguments(*mut c_void);

impl EbpfContext for Arguments {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

impl Arguments {
    /// `context` is what the kernel called the program with.
    #[inline(always)]
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> u64 {
        // SAFETY: the verifier knows how many arguments there are, and their types.
        unsafe { *self.0.cast::<u64>().add(index) }
    }

    /// The socket of a congestion-control callback: the kernel passes a `tcp_sock`.
    #[inline(always)]
    pub(crate) fn socket(&self) -> Socket {
        // SAFETY: every callback's first argument is the socket.
        unsafe { Socket::new(*self.0.cast::<*mut c_void>()) }
    }

    /// The socket of a traced function or tracepoint, whose first argument is a `sock`; `None` when that is no full TCP
    /// socket.
    #[inline(always)]
    pub(crate) fn traced_socket(&self) -> Option<Socket> {
        // SAFETY: the first argument is a socket, and the helper tells which one is a `tcp_sock`.
        let socket = unsafe { bpf_skc_to_tcp_sock(*self.0.cast::<*mut c_void>()) };
        // SAFETY: what the helper returns is a `tcp_sock`, locked like the argument.
        (!socket.is_null()).then(|| unsafe { Socket::new(socket.cast()) })
    }

    #[inline(always)]
    pub(crate) fn segment(&self, index: usize) -> Segment {
        // SAFETY: `index` is the position of the segment in this program's arguments.
        unsafe { Segment::new(*self.0.cast::<*const c_void>().add(index)) }
    }

    #[inline(always)]
    pub(crate) fn rate_sample(&self, index: usize) -> RateSample {
        // SAFETY: `index` is the position of the rate sample in this program's arguments.
        unsafe { RateSample::new(*self.0.cast::<*const c_void>().add(index)) }
    }
}

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
