//! The arguments of a BPF program, and the macro that declares an entry point.

use aya_ebpf::{EbpfContext, cty::c_void, helpers::bpf_skc_to_tcp_sock};

use crate::{
    layout::offset,
    socket::{RateSample, Segment, Socket},
    structure::{Probed, Structure, Typed},
};

/// What the kernel passes to a program. For a callback, traced function or tracepoint these are the
/// arguments, an array of 8-byte words; for a kprobe, the registers ([`Self::registers`]).
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
        unsafe { Socket::new(self.structure(0)) }
    }

    /// The socket of a traced function or tracepoint, whose first argument is a `sock`; `None` when
    /// that is not a full TCP socket.
    #[inline(always)]
    pub(crate) fn traced_socket(&self) -> Option<Socket> {
        // SAFETY: the first argument is a socket, and the helper returns null unless it is a
        // `tcp_sock`.
        let socket = unsafe { bpf_skc_to_tcp_sock(*self.0.cast::<*mut c_void>()) };
        // SAFETY: the helper returns a `tcp_sock`, locked like the argument.
        (!socket.is_null()).then(|| unsafe { Socket::new(Structure::at(socket.cast())) })
    }

    /// The argument at this position, which is an `sk_buff`.
    #[inline(always)]
    pub(crate) fn segment(&self, index: usize) -> Segment<Typed> {
        // SAFETY: `index` is the position of the segment in this program's arguments.
        unsafe { Segment::new(self.structure(index)) }
    }

    /// The argument at this position, which is a `rate_sample`.
    #[inline(always)]
    pub(crate) fn rate_sample(&self, index: usize) -> RateSample {
        // SAFETY: `index` is the position of the rate sample in this program's arguments.
        unsafe { RateSample::new(self.structure(index)) }
    }

    /// The structure that the argument at this position points to.
    #[inline(always)]
    fn structure(&self, index: usize) -> Structure<Typed> {
        // SAFETY: the verifier checks the position against the number of arguments.
        Structure::at(unsafe { *self.0.cast::<*mut c_void>().add(index) })
    }

    /// The registers where a probed function was entered.
    #[inline(always)]
    pub(crate) fn registers(&self) -> Registers {
        // By the helper, since the verifier takes loads from a context at offsets in the
        // instruction only, and these are of the loader's table.
        Registers(Structure::at(self.0))
    }
}

/// The registers (`pt_regs`) where a kprobe's function was entered: they hold its arguments.
pub(crate) struct Registers(Structure<Probed>);

impl Registers {
    /// The first argument, which is a TCP socket.
    #[inline(always)]
    pub(crate) fn socket(&self) -> Socket<Probed> {
        let socket = self.0.follow(offset!(first_argument));
        // SAFETY: the functions that are probed take a `tcp_sock`, locked, as their first argument.
        unsafe { Socket::new(socket) }
    }

    /// The second argument, which is an `sk_buff`.
    #[inline(always)]
    pub(crate) fn segment(&self) -> Segment<Probed> {
        let segment = self.0.follow(offset!(second_argument));
        // SAFETY: it is called for functions whose second argument is a segment.
        unsafe { Segment::new(segment) }
    }

    /// The second argument, as a number.
    #[inline(always)]
    pub(crate) fn second(&self) -> u64 {
        self.0.read(offset!(second_argument))
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
