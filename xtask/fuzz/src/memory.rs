//! Counts the memory that a target allocates.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, which counts the bytes that each thread allocates.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed; negative when it has freed others'.
    static NOW: Cell<isize> = const { Cell::new(0) };
    /// The largest value of `NOW` since [`peak`] was called.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing, as cells
// of integers with constant values need neither memory nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

fn count(bytes: isize) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

/// Runs `work` and returns the most memory that this thread had allocated at once beyond what it
/// had before, bytes.
pub(crate) fn peak(work: impl FnOnce()) -> usize {
    let before = NOW.get();
    PEAK.set(before);
    work();
    PEAK.get().abs_diff(before)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn the_most_at_once_is_counted() {
        let found = peak(|| {
            for bytes in [1_000, 5_000, 3_000] {
                drop(black_box(vec![0u8; bytes]));
            }
        });
        assert_eq!(found, 5_000);
    }
}
