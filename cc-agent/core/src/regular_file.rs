//! Opening files whose names come from others: regular files only, without waiting, and no more
//! bytes than the caller has room for.
//!
//! `std::fs::read` waits for ever for the writer of a FIFO, and takes all memory when it reads
//! `/dev/zero` or a file that grows. A daemon that runs as root opens files through this module.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Attempts of [`create_anew`] to remove what is in the way, for others may put it back.
const ATTEMPTS: usize = 8;

/// Opens a regular file for reading, without waiting. Symbolic links are followed.
///
/// # Errors
///
/// Returns the error of the operating system, and an error that names the kind of file when it is
/// not a regular one: a FIFO, a device, a directory or a socket.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::empty())
}

/// Opens a regular file for reading, as [`open`] does, unless the path is a symbolic link.
///
/// # Errors
///
/// Returns an error in the cases of [`open`], and when the path is a symbolic link.
pub fn open_itself(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::NOFOLLOW)
}

fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    // Opening a FIFO waits for its other end, and a terminal may become the controlling one,
    // unless these flags are set. They do not change how a regular file is read.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(
            (OFlags::NONBLOCK | OFlags::NOCTTY | flags)
                .bits()
                .cast_signed(),
        )
        .open(path)?;
    expect_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file of at most `limit` bytes.
///
/// The limit holds for the bytes that are read, not for the size that the file system states.
///
/// # Errors
///
/// Returns an error in the cases of [`open`], when the file has more than `limit` bytes, and when
/// it cannot be read.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_open(&open(path)?, limit)
}

/// Reads a regular file of UTF-8 text, as [`read`] does.
///
/// # Errors
///
/// Returns an error in the cases of [`read`], and when the file is not UTF-8.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads the rest of a file that is already open, if that is at most `limit` bytes.
///
/// # Errors
///
/// Returns an error when there are more than `limit` bytes, or when the file cannot be read.
pub fn read_open(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {limit} bytes, which is the limit"),
        ));
    }
    Ok(bytes)
}

/// Creates a file for writing in place of whatever has its name. What was there loses its name and
/// is otherwise left as it is, so a symbolic or hard link costs the file it leads to nothing.
///
/// `mode` holds the permissions of the new file, from which the process's umask is subtracted.
///
/// # Errors
///
/// Returns an error when a directory is in the way, or the file cannot be created.
pub fn create_anew(path: &Path, mode: u32) -> io::Result<File> {
    let create = || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
    };
    for _ in 0..ATTEMPTS {
        match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => return outcome,
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    create()
}

/// Returns an error that names the kind of file unless it is a regular one.
///
/// # Errors
///
/// Returns an error for every other kind of file.
pub fn expect_regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let name = match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_block_device() => "a block device",
        kind if kind.is_socket() => "a socket",
        _ => "of an unknown kind",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {name}; expected a regular file"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};
    use tempfile::TempDir;

    fn scratch() -> (TempDir, PathBuf) {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join("file");
        (directory, path)
    }

    #[test]
    fn a_file_of_the_limit_is_read_and_a_longer_one_is_not() {
        let (_directory, path) = scratch();
        fs::write(&path, [7; 100]).expect("there is space");
        assert_eq!(read(&path, 100).expect("within the limit"), [7; 100]);
        let error = read(&path, 99).expect_err("too long").to_string();
        assert_eq!(error, "it has more than 99 bytes, which is the limit");
    }

    #[test]
    fn fifos_devices_and_directories_are_refused_at_once() {
        let (directory, path) = scratch();
        mknodat(CWD, &path, Kind::Fifo, Mode::RWXU, 0).expect("a FIFO");
        for (path, kind) in [
            (path.as_path(), "a FIFO"),
            (directory.path(), "a directory"),
            (Path::new("/dev/zero"), "a character device"),
        ] {
            let error = read(path, 10).expect_err(kind).to_string();
            let expected = format!("it is {kind}; expected a regular file");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn the_limit_holds_for_what_is_read_and_not_for_the_size_that_is_stated() {
        // Its size is stated as 0, as that of a file that grows after it was looked at.
        let path = Path::new("/proc/self/maps");
        let stated = fs::metadata(path).expect("Linux has it").len();
        assert_eq!(stated, 0);
        assert!(read(path, 100).is_err());
        assert!(read(path, 1 << 24).expect("shorter").len() > 100);
    }

    #[test]
    fn links_are_followed_when_reading_and_replaced_when_writing() {
        let (directory, path) = scratch();
        let victim = directory.path().join("victim");
        fs::write(&victim, "precious").expect("there is space");
        for hard in [false, true] {
            if hard {
                fs::hard_link(&victim, &path).expect("the same file system");
            } else {
                symlink(&victim, &path).expect("a link");
            }
            assert_eq!(read(&path, 100).expect("followed"), b"precious");
            assert_eq!(open_itself(&path).is_ok(), hard);
            let mut file = create_anew(&path, 0o600).expect("a writable directory");
            file.write_all(b"mine").expect("there is space");
            assert_eq!(fs::read(&victim).expect("untouched"), b"precious");
            assert_eq!(fs::read(&path).expect("new"), b"mine");
            fs::remove_file(&path).expect("it is there");
        }
    }
}
