//! A file system that is soon full.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A small file system in memory (tmpfs), unmounted when it is dropped.
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts it over a directory. The size is a number of bytes with a suffix, as in `900k`.
    ///
    /// # Panics
    ///
    /// Panics if the file system cannot be mounted.
    pub fn mount(over: &Path, size: &str) -> Self {
        let disk = Self { path: over.into() };
        disk.set(size, MsFlags::empty());
        disk
    }

    /// Changes its size.
    ///
    /// # Panics
    ///
    /// Panics if the file system cannot be changed.
    pub fn resize(&self, size: &str) {
        self.set(size, MsFlags::MS_REMOUNT);
    }

    /// Fills it up to its last block, and returns the path of the file that does so.
    ///
    /// # Panics
    ///
    /// Panics if writing fails for another reason than a full disk.
    pub fn fill(&self) -> PathBuf {
        let path = self.path.join("ballast");
        let mut ballast = File::create(&path).expect("root may write");
        let error = loop {
            if let Err(error) = ballast.write_all(&[0; 512]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        path
    }

    fn set(&self, size: &str, flags: MsFlags) {
        let options = format!("size={size},mode=755");
        let tmpfs = Some("tmpfs");
        mount(tmpfs, &self.path, tmpfs, flags, Some(options.as_str())).expect("root may mount");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}
