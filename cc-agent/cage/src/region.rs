//! The memory that the agent and a child share.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use memmap2::MmapRaw;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

/// A file in memory of `bytes` bytes whose length nobody can change, so that no access to a mapping
/// of it can fault.
pub(crate) fn sealed_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// A word of memory that the other process may write at any time: what is read is copied, and
/// checked afterwards. Words have no order among each other; messages give it to them.
pub(crate) trait Word {
    /// Copies the word.
    fn get(&self) -> u32;

    /// Replaces the word.
    fn set(&self, value: u32);
}

impl Word for AtomicU32 {
    fn get(&self) -> u32 {
        self.load(Relaxed)
    }

    fn set(&self, value: u32) {
        self.store(value, Relaxed);
    }
}

/// A mapping of a [`sealed_file`], which is reached as [`Word`]s only.
pub(crate) struct Region {
    map: MmapRaw,
}

impl Region {
    /// Maps the whole of a file.
    pub(crate) fn map(file: &impl AsRawFd) -> io::Result<Self> {
        let map = MmapRaw::map_raw(file.as_raw_fd())?;
        Ok(Self { map })
    }

    /// The memory as words of 32 bits.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        let length = self.map.len() / size_of::<AtomicU32>();
        // SAFETY: the mapping begins at a page, has at least `length` words, and lives as long as
        // `self`. The file cannot shrink, for it is sealed. This process reaches the memory only
        // through the atomics returned here, and any bits are a valid word.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast(), length) }
    }

    /// Writes a text to the start of the memory, cut to `most` bytes. Returns its length.
    pub(crate) fn write_text(&self, text: &[u8], most: usize) -> usize {
        let words = self.words();
        let text = &text[..text.len().min(most).min(4 * words.len())];
        for (word, bytes) in words.iter().zip(text.chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.set(u32::from_ne_bytes(whole));
        }
        text.len()
    }

    /// Copies a text of `length` bytes from the start of the memory; `None` when it is longer than
    /// `most` bytes or than the memory.
    pub(crate) fn read_text(&self, length: usize, most: usize) -> Option<Vec<u8>> {
        let words = self.words();
        if length > most || length > 4 * words.len() {
            return None;
        }
        let mut text: Vec<u8> = words[..length.div_ceil(4)]
            .iter()
            .flat_map(|word| word.get().to_ne_bytes())
            .collect();
        text.truncate(length);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_are_one_memory() {
        let file = sealed_file(c"test", 4_096).expect("memory");
        let [ours, theirs] = [(), ()].map(|()| Region::map(&file).expect("maps"));
        assert_eq!(theirs.words().len(), 1_024);
        assert_eq!(ours.write_text(b"hello", 100), 5);
        assert_eq!(theirs.read_text(5, 100), Some(b"hello".to_vec()));
        assert_eq!(ours.write_text(&[b'x'; 5_000], 5_000), 4_096);
        assert_eq!(theirs.read_text(4_097, 5_000), None, "beyond the memory");
        assert_eq!(theirs.read_text(101, 100), None, "beyond what is allowed");
    }

    #[test]
    fn nobody_can_resize_it() {
        let file = sealed_file(c"test", 4_096).expect("memory");
        assert!(file.set_len(0).is_err() && file.set_len(8_192).is_err());
    }
}
