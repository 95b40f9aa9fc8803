//! Who could change what a path leads to.
//!
//! A daemon that runs as root acts on the content of the files that it is given. Whoever may write
//! such a file, or a directory or symbolic link on the way to it, decides what root does.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::{fmt, fs, io};

use rustix::process::geteuid;

/// Symbolic links that are followed before a path counts as a loop, as in Linux's `namei.c`.
const MOST_LINKS: usize = 40;

/// A file, directory or link by which somebody else can change what a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The file, directory or link.
    pub path: PathBuf,
    /// Who can change it, beside root and this user.
    pub by: Writer,
}

/// Who can change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Its owner, by user id.
    Owner(u32),
    /// The members of its group, by group id.
    Group(u32),
    /// Everybody: it is writable for others.
    Everybody,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.by {
            Writer::Owner(uid) => write!(f, "{path} belongs to uid {uid}"),
            Writer::Group(gid) => write!(f, "{path} can be written by the group {gid}"),
            Writer::Everybody => write!(f, "{path} can be written by everybody"),
        }
    }
}

/// Returns the first file, directory or link on the way of `path` that somebody who is not
/// `trusted` can change, `None` where there is none.
///
/// Symbolic links are followed. In a sticky directory, such as `/tmp`, only an entry's own owner
/// counts.
///
/// # Errors
///
/// Returns an error when a part of the path cannot be looked up.
pub fn exposure(path: &Path, trusted: impl Fn(Writer) -> bool) -> io::Result<Option<Exposure>> {
    let absolute = std::path::absolute(path)?;
    let mut ahead: VecDeque<Step> = steps(&absolute).collect();
    let mut place = PathBuf::new();
    let mut links = 0;
    while let Some(step) = ahead.pop_front() {
        let next = match step {
            Step::Root => PathBuf::from("/"),
            Step::Up => {
                // Links are resolved, so this is the parent; it has been checked.
                place.pop();
                continue;
            }
            Step::Down(name) => place.join(name),
        };
        let metadata = fs::symlink_metadata(&next)?;
        if let Some(by) = writer(&metadata, &trusted) {
            return Ok(Some(Exposure { path: next, by }));
        }
        if metadata.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other("too many symbolic links"));
            }
            for step in steps(&fs::read_link(&next)?).rev() {
                ahead.push_front(step);
            }
        } else {
            place = next;
        }
    }
    Ok(None)
}

/// Returns who other than this process could change what a path leads to, `None` where nobody can
/// or the process does not run as root.
///
/// Root, the process's own user and the user that started it through `sudo` are trusted.
///
/// # Errors
///
/// Returns an error in the cases of [`exposure`].
pub fn exposure_to_root(path: &Path) -> io::Result<Option<Exposure>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let behind_sudo = std::env::var("SUDO_UID").ok();
    let behind_sudo: Option<u32> = behind_sudo.and_then(|uid| uid.parse().ok());
    exposure(path, |writer| match writer {
        Writer::Owner(uid) => uid == 0 || Some(uid) == behind_sudo,
        Writer::Group(gid) => gid == 0,
        Writer::Everybody => false,
    })
}

/// Who but the trusted users can change this one file, directory or link.
fn writer(metadata: &Metadata, trusted: impl Fn(Writer) -> bool) -> Option<Writer> {
    /// The permission bit of a directory whose entries only their owners may remove.
    const STICKY: u32 = 0o1000;
    let mode = metadata.mode();
    let by_mode = !(metadata.is_symlink() || metadata.is_dir() && mode & STICKY != 0);
    [
        (true, Writer::Owner(metadata.uid())),
        (by_mode && mode & 0o002 != 0, Writer::Everybody),
        (by_mode && mode & 0o020 != 0, Writer::Group(metadata.gid())),
    ]
    .into_iter()
    .find_map(|(may, writer)| (may && !trusted(writer)).then_some(writer))
}

/// One component of a path.
enum Step {
    Root,
    Up,
    Down(OsString),
}

fn steps(path: &Path) -> impl DoubleEndedIterator<Item = Step> {
    path.components().filter_map(|component| match component {
        Component::Prefix(_) | Component::CurDir => None,
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use tempfile::TempDir;

    const OTHER: u32 = 12_345;

    /// Trusts root and whoever runs the test.
    fn found(path: &Path) -> Option<Exposure> {
        let own = geteuid().as_raw();
        let trusted = |writer| match writer {
            Writer::Owner(uid) => uid == 0 || uid == own,
            Writer::Group(gid) => gid == 0,
            Writer::Everybody => false,
        };
        exposure(path, trusted).expect("it is there")
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }

    fn scratch() -> (TempDir, PathBuf) {
        let directory = TempDir::new().expect("a scratch directory");
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).expect("a directory");
        chmod(&inner, 0o755);
        let file = inner.join("file");
        fs::write(&file, "").expect("there is space");
        chmod(&file, 0o644);
        (directory, file)
    }

    #[test]
    fn a_file_and_its_directories_must_be_closed_to_others() {
        let (_directory, file) = scratch();
        let inner = file.parent().expect("a directory").to_owned();
        assert_eq!(found(&file), None);
        chmod(&file, 0o646);
        let exposure = |path: &Path, by| {
            Some(Exposure {
                path: path.to_owned(),
                by,
            })
        };
        assert_eq!(found(&file), exposure(&file, Writer::Everybody));
        chmod(&file, 0o644);
        chmod(&inner, 0o777);
        assert_eq!(found(&file), exposure(&inner, Writer::Everybody));
        chmod(&inner, 0o1777);
        assert_eq!(found(&file), None, "a sticky directory, as /tmp is");
    }

    #[test]
    fn every_link_on_the_way_is_followed_and_checked() {
        let (directory, file) = scratch();
        let open = directory.path().join("open");
        fs::create_dir(&open).expect("a directory");
        symlink("../inner", open.join("hop")).expect("a link");
        let path = directory.path().join("inner/../open/./hop/file");
        assert_eq!(found(&path), None);
        chmod(&open, 0o777);
        assert_eq!(found(&path).expect("by way of it").path, open);
        assert_eq!(found(&file), None);
        let circle = directory.path().join("circle");
        symlink(&circle, &circle).expect("a link");
        assert!(exposure(&circle, |_| true).is_err());
    }

    #[test]
    fn files_of_another_user_are_found() {
        if !geteuid().is_root() {
            return;
        }
        let (_directory, file) = scratch();
        let inner = file.parent().expect("a directory").to_owned();
        chown(&file, Some(OTHER), None).expect("root may");
        assert_eq!(found(&file).expect("theirs").by, Writer::Owner(OTHER));
        chown(&file, Some(0), Some(OTHER)).expect("root may");
        chmod(&file, 0o664);
        assert_eq!(found(&file).expect("theirs").by, Writer::Group(OTHER));
        chown(&file, None, Some(0)).expect("root may");
        assert_eq!(found(&file), None, "root's own group");
        chown(&inner, Some(OTHER), None).expect("root may");
        let text = found(&file).expect("theirs").to_string();
        assert_eq!(text, format!("{} belongs to uid 12345", inner.display()));
    }
}
