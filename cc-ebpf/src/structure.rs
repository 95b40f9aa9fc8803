//! Kernel structures, whose members are read at the offsets that the loader found.

use core::{marker::PhantomData, mem::MaybeUninit};

use aya_ebpf::{
    cty::c_void,
    helpers::generated::{bpf_get_socket_cookie, bpf_probe_read_kernel},
};

/// The way in which a program reads the kernel's memory.
pub(crate) trait Memory: Copy {
    /// Reads a value.
    ///
    /// # Safety
    ///
    /// Any bytes must be a valid `T`.
    unsafe fn read<T: Copy>(from: *const u8) -> T;

    /// Has the kernel give a socket a cookie unless it has one, where programs may ask for that.
    fn assign_cookie(socket: *mut u8);
}

/// Callbacks, traced functions and tracepoints get pointers whose types the verifier knows, and
/// follow them by plain loads, each of which it checks against the kernel's BTF.
#[derive(Clone, Copy)]
pub(crate) struct Typed;

/// A kprobe gets registers, which are mere numbers to the verifier: it reads memory through a
/// helper. What cannot be read is zero.
#[derive(Clone, Copy)]
pub(crate) struct Probed;

impl Memory for Typed {
    #[inline(always)]
    unsafe fn read<T: Copy>(from: *const u8) -> T {
        // SAFETY: the verifier checks the access; the caller vouches for the bytes.
        unsafe { from.cast::<T>().read() }
    }

    #[inline(always)]
    fn assign_cookie(socket: *mut u8) {
        // SAFETY: the verifier checks that this is a socket.
        unsafe { bpf_get_socket_cookie(socket.cast()) };
    }
}

impl Memory for Probed {
    #[inline(always)]
    unsafe fn read<T: Copy>(from: *const u8) -> T {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the helper fills the value, with zeros where it cannot read; the caller vouches
        // for the bytes. The result is left alone, so that the verifier has no second path to
        // follow.
        unsafe {
            bpf_probe_read_kernel(
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
                from.cast::<c_void>(),
            );
            value.assume_init()
        }
    }

    /// Programs at kprobes may not (`kprobe_prog_func_proto`, kernel/trace/bpf_trace.c).
    #[inline(always)]
    fn assign_cookie(_socket: *mut u8) {}
}

/// A kernel structure, by its address.
#[derive(Clone, Copy)]
pub(crate) struct Structure<M> {
    at: *mut u8,
    memory: PhantomData<M>,
}

impl<M: Memory> Structure<M> {
    /// The structure at an address, which is null or what the kernel passed to the program.
    #[inline(always)]
    pub(crate) fn at(address: *mut c_void) -> Self {
        Self {
            at: address.cast(),
            memory: PhantomData,
        }
    }

    /// The structure's address in the kernel.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.at as u64
    }

    /// The structure, as helpers take it.
    #[inline(always)]
    pub(crate) fn pointer(self) -> *mut c_void {
        self.at.cast()
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.at.is_null()
    }

    /// The member at this offset, an integer or pointer.
    #[inline(always)]
    pub(crate) fn read<T: Copy>(self, offset: u32) -> T {
        // SAFETY: members are read as integers and pointers only, for which any bytes are valid.
        unsafe { M::read(self.at.add(offset as usize)) }
    }

    /// The 16 bytes at this offset. They are read word by word: a copy would become a call to
    /// `memmove`, and the verifier rejects loads there that see kernel and map pointers.
    #[inline(always)]
    pub(crate) fn words(self, offset: u32) -> [u32; 4] {
        [
            self.read(offset),
            self.read(offset + 4),
            self.read(offset + 8),
            self.read(offset + 12),
        ]
    }

    /// The structure that the pointer at this offset leads to.
    #[inline(always)]
    pub(crate) fn follow(self, offset: u32) -> Self {
        Self::at(self.read(offset))
    }

    /// Has the kernel give this socket a cookie unless it has one; does nothing in a kprobe.
    #[inline(always)]
    pub(crate) fn assign_cookie(self) {
        M::assign_cookie(self.at);
    }
}

impl Structure<Typed> {
    /// Writes the member at this offset.
    #[inline(always)]
    pub(crate) fn write<T: Copy>(self, offset: u32, value: T) {
        // SAFETY: the verifier admits only members that struct_ops may write.
        unsafe { self.at.add(offset as usize).cast::<T>().write(value) }
    }
}
