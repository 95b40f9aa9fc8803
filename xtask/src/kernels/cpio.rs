//! Archives of files as the kernel unpacks them at boot: cpio's "newc" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst, Linux 6.18).

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Type and permissions of an entry (inode(7)).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that is being written. The kernel unpacks archives that follow one another.
pub(super) struct Archive<W> {
    out: W,
    written: u64,
    directories: BTreeSet<PathBuf>,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            directories: BTreeSet::new(),
            entries: 0,
        }
    }

    /// Adds a file that may be executed, and the directories above it. `path` is absolute.
    pub(super) fn add(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for directory in above
            .into_iter()
            .rev()
            .filter(|path| path.parent().is_some())
        {
            if self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[])?;
            }
        }
        self.entry(path, PROGRAM, content)
    }

    /// Writes the end of the archive and returns what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry(Path::new("TRAILER!!!"), 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path);
        let name = name.as_os_str().as_encoded_bytes();
        let too_large = |_| io::Error::other(format!("{}: over 4 GiB", path.display()));
        let size = u32::try_from(content.len()).map_err(too_large)?;
        self.entries += 1;
        // Inode, mode, owner and group, links, time, size, device and special device, length of the
        // name with its NUL, and a checksum that this format does not use.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.write(b"070701")?;
        for field in fields {
            self.write(format!("{field:08x}").as_bytes())?;
        }
        self.write(name)?;
        self.write(b"\0")?;
        self.align()?;
        self.write(content)?;
        self.align()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Fills up to the next multiple of four bytes.
    fn align(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(4) - self.written;
        self.write(&[0; 3][..missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them_and_once() {
        let mut archive = Archive::new(Vec::new());
        archive
            .add(Path::new("/a/b/one"), b"first")
            .expect("memory");
        archive.add(Path::new("/a/two"), b"second").expect("memory");
        let bytes = archive.finish().expect("memory");
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).expect("text was added");
        let mut names = Vec::new();
        let mut rest = text.as_str();
        while let Some(entry) = rest.strip_prefix("070701") {
            let field = |index: usize| {
                let digits = &entry[8 * index..8 * index + 8];
                usize::from_str_radix(digits, 16).expect("hexadecimal digits")
            };
            let (size, name_length) = (field(6), field(11));
            names.push(entry[104..104 + name_length - 1].to_owned());
            let content = (110 + name_length).next_multiple_of(4);
            rest = &rest[(content + size).next_multiple_of(4)..];
        }
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/two", "TRAILER!!!"]);
        assert!(rest.is_empty(), "{rest:?}");
    }
}
