//! The directory of recordings, reached by its descriptor.
//!
//! The agent runs as root, and the directory may belong to somebody else. Therefore files are named
//! relative to the open directory, links are never followed, new files never replace what is there,
//! and files of an earlier run are used only if they are regular, have one name and belong to the
//! directory's owner. Root does its work in another user's directory with that user's file-system
//! identity, so the kernel grants it there what it grants them.

use std::{
    fs::{DirBuilder, File},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use cc_core::{
    ownership::{Writer, exposure},
    regular_file::{expect_regular, read_open},
};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fchmod, fsync, open, openat, renameat,
        renameat_with, statat, unlinkat,
    },
    io::Errno,
    process::{getegid, geteuid},
    thread::set_thread_groups,
};

use crate::{RecordingError, name::with_suffix};

/// Permissions of a new directory: its group may read.
const DIRECTORY_MODE: u32 = 0o750;
/// Permissions of new files, whatever the umask: their group may read.
const FILE_MODE: Mode = Mode::from_raw_mode(0o640);
/// The extension that [`Directory::replace`] adds to the name of its draft.
const DRAFT: &str = "new";
/// The group whose identity root takes in a directory of somebody else whose group is root's own:
/// Linux's overflow group, which owns nothing.
const NOBODYS_GROUP: u32 = 65_534;

/// An open directory, in which files are named relative to its descriptor.
#[derive(Debug)]
pub(crate) struct Directory {
    handle: OwnedFd,
    path: PathBuf,
    owner: u32,
    group: u32,
}

impl Directory {
    /// Opens a directory for writing; it is created, with the parents that it lacks, if it is
    /// missing. Root's thread has the identity of the directory's owner from then on; that of a new
    /// directory is the owner of the one that it is created in.
    pub(crate) fn take(path: &Path) -> Result<Self, RecordingError> {
        let failed = |source| RecordingError::io(path, source);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let place = absolute.ancestors().find(|place| place.exists());
        let existing = Self::open(place.unwrap_or(&absolute))?;
        existing.expect_guarded()?;
        existing.take_owners_identity()?;
        if place == Some(&absolute) {
            existing.expect_writable()?;
            return Ok(Self {
                path: path.into(),
                ..existing
            });
        }
        let mut builder = DirBuilder::new();
        builder.mode(DIRECTORY_MODE).recursive(true);
        builder.create(path).map_err(failed)?;
        let created = Self::open(path)?;
        fchmod(&created.handle, Mode::from_raw_mode(DIRECTORY_MODE))
            .map_err(|error| failed(error.into()))?;
        Ok(created)
    }

    /// Opens a directory that exists.
    pub(crate) fn open(path: &Path) -> Result<Self, RecordingError> {
        let failed = |source: io::Error| RecordingError::io(path, source);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let file = File::from(handle);
        let metadata = file.metadata().map_err(failed)?;
        Ok(Self {
            handle: file.into(),
            path: path.into(),
            owner: metadata.uid(),
            group: metadata.gid(),
        })
    }

    /// Opens the directory of a file and returns the file's name in it.
    pub(crate) fn of(file: &Path) -> Result<(Self, String), RecordingError> {
        let invalid = || RecordingError::io(file, io::ErrorKind::InvalidInput.into());
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(invalid)?.to_owned();
        let parent = file.parent().ok_or_else(invalid)?;
        let parent = match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        };
        Ok((Self::open(parent)?, name))
    }

    /// The path of a file of this name, for messages and for readers.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path by which the directory was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a directory that others than root and its owner could write, or could replace by
    /// another one.
    pub(crate) fn expect_guarded(&self) -> Result<(), RecordingError> {
        let own_group = (!geteuid().is_root()).then(|| getegid().as_raw());
        let trusted = |writer| match writer {
            Writer::Owner(uid) => uid == 0 || uid == self.owner || uid == geteuid().as_raw(),
            Writer::Group(gid) => gid == 0 || Some(gid) == own_group,
            Writer::Everybody => false,
        };
        match exposure(&self.path, trusted) {
            Ok(None) => Ok(()),
            Ok(Some(exposure)) => Err(RecordingError::Exposed {
                path: self.path.clone(),
                exposure,
            }),
            Err(source) => Err(RecordingError::io(&self.path, source)),
        }
    }

    /// Whether this process is root and the directory another user's.
    pub(crate) fn is_foreign_to_root(&self) -> bool {
        geteuid().is_root() && self.owner != 0
    }

    /// Gives the calling thread, for the rest of its life, the file-system identity of the
    /// directory's owner, if the process is root and the directory another user's.
    ///
    /// In Linux credentials belong to threads, and the kernel takes the capabilities that bear on
    /// files away from a thread whose file-system user is no longer root (`cap_task_fix_setuid`).
    /// The user itself stays root, so that the owner may not send the thread signals, of which
    /// SIGKILL would end the process.
    pub(crate) fn take_owners_identity(&self) -> Result<(), RecordingError> {
        if !self.is_foreign_to_root() {
            return Ok(());
        }
        let group = match self.group {
            0 => NOBODYS_GROUP,
            group => group,
        };
        let failed = |source| RecordingError::Identity {
            path: self.path.clone(),
            owner: self.owner,
            source,
        };
        set_thread_groups(&[]).map_err(|error| failed(error.into()))?;
        set_file_group(group);
        set_file_user(self.owner);
        // An id that no user has changes nothing and returns the present one.
        let (user_now, group_now) = (set_file_user(u32::MAX), set_file_group(u32::MAX));
        if (user_now, group_now) == (self.owner, group) {
            Ok(())
        } else {
            Err(failed(io::ErrorKind::PermissionDenied.into()))
        }
    }

    /// Returns an error unless this thread may create files here. A full disk is accepted, since it
    /// may have room later.
    fn expect_writable(&self) -> Result<(), RecordingError> {
        let probe = format!(".{}", std::process::id());
        let outcome = self
            .remove(&probe)
            .and_then(|()| self.create_file(&probe))
            .and_then(|_| self.remove(&probe));
        match outcome {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => {
                Err(RecordingError::io(&self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// The names of all entries.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            // Names that are not UTF-8 are none of the agent's.
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Whether anything has this name, a link that leads nowhere included.
    pub(crate) fn contains(&self, name: &str) -> io::Result<bool> {
        match statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The size of a regular file in bytes; 0 for anything else, and if it has gone.
    pub(crate) fn size(&self, name: &str) -> u64 {
        statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)
            .ok()
            .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
            .map_or(0, |stat| stat.st_size.cast_unsigned())
    }

    /// Creates a file, for writing, of a name that nothing has.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let file = openat(&self.handle, name, flags, FILE_MODE)?;
        fchmod(&file, FILE_MODE)?;
        Ok(file.into())
    }

    /// Opens a file that an earlier run left, for reading and writing; `None` if there is none.
    ///
    /// An error says why a file is not one of those: it is a link or no regular file, has further
    /// names, or belongs to another user.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(io::Error::other("it is a symbolic link")),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        expect_regular(metadata.file_type())?;
        if metadata.nlink() != 1 {
            let names = metadata.nlink();
            return Err(io::Error::other(format!(
                "it has {names} names (hard links)"
            )));
        }
        let (owner, found) = (self.expected_owner(), metadata.uid());
        if found != owner {
            let text = format!("it belongs to uid {found}; expected uid {owner}");
            return Err(io::Error::other(text));
        }
        Ok(Some(file))
    }

    /// Whether a name still leads to this open file.
    pub(crate) fn names_file(&self, name: &str, file: &File) -> io::Result<bool> {
        let ours = file.metadata()?;
        match statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok(named.st_ino == ours.ino() && named.st_dev == ours.dev()),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a whole file as [`Self::open_file`] opens it, if it has at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = self.open_file(name)?;
        file.map(|file| read_open(&file, limit)).transpose()
    }

    /// Replaces a file, or creates it, so that a crash leaves either content whole.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let draft = with_suffix(name, DRAFT);
        self.remove(&draft)?;
        let written = self.create_file(&draft).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_data()?;
            renameat(&self.handle, &draft, &self.handle, name)?;
            Ok(())
        });
        if written.is_err() {
            // The error that is returned says why; a draft that stays is removed next time.
            let _ = self.remove(&draft);
        }
        written?;
        self.flush()
    }

    /// Gives a file a name that nothing has.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        match renameat_with(&self.handle, from, &self.handle, to, flags) {
            // A file system without that flag, such as NFS.
            Err(Errno::INVAL) if !self.contains(to)? => {
                Ok(renameat(&self.handle, from, &self.handle, to)?)
            }
            Err(Errno::INVAL) => Err(io::ErrorKind::AlreadyExists.into()),
            outcome => Ok(outcome?),
        }
    }

    /// Removes a file, or a link and not what it leads to. It may have gone already.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Flushes the directory, so that its entries stay so after power loss.
    pub(crate) fn flush(&self) -> io::Result<()> {
        Ok(fsync(&self.handle)?)
    }

    /// The owner of the files that agents create here.
    fn expected_owner(&self) -> u32 {
        match geteuid() {
            root if root.is_root() => self.owner,
            own => own.as_raw(),
        }
    }
}

/// Sets the file-system user of this thread and returns the former one. Whether it was set shows in
/// the next call.
fn set_file_user(uid: u32) -> u32 {
    // SAFETY: the call takes and returns a number; glibc does not spread it to other threads.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// Sets the file-system group of this thread and returns the former one. Whether it was set shows
/// in the next call.
fn set_file_group(gid: u32) -> u32 {
    // SAFETY: the call takes and returns a number; glibc does not spread it to other threads.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

#[cfg(test)]
mod tests;
