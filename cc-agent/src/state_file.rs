//! Small files by which an agent remembers something beyond its end, as JSON.
//!
//! They lie beside its socket or in its state directory. A file that somebody else may have written
//! is refused.

use std::{
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use cc_core::{
    durable::replace_durably,
    regular_file::{open_itself, read_open},
};
use nix::unistd::geteuid;
use serde::{Serialize, de::DeserializeOwned};

/// Length of the longest such file, bytes.
const LONGEST: u64 = 1 << 16;

/// The directory that systemd names in `STATE_DIRECTORY`; `None` where there is none.
pub(crate) fn directory() -> Option<PathBuf> {
    let several = env::var_os("STATE_DIRECTORY")?;
    // They are separated by colons; the first is the agent's.
    env::split_paths(&several).next()
}

/// Replaces the file with `value`.
///
/// # Errors
///
/// Returns an error when the directory cannot be written to.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    replace_durably(path, &text).map_err(io::Error::other)
}

/// Reads the file; `None` when there is none.
///
/// # Errors
///
/// Returns an error when the file cannot be read, is not one that this user or root has written, or
/// holds something else.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match open_itself(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let found = file.metadata()?;
    let own = geteuid().as_raw();
    // The agent may run as another user, whose directory it is then.
    let directory = path.parent().map(fs::symlink_metadata).transpose()?;
    let is_trusted = |uid| uid == own || uid == 0 || directory.is_some_and(|it| it.uid() == uid);
    if !is_trusted(found.uid()) || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others than the agent's user and root may have written it",
        ));
    }
    let text = read_open(&file, LONGEST)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::{sys::stat::Mode, unistd::mkfifo};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.former");
        assert_eq!(read::<String>(&path).expect("no file is no error"), None);
        write(&path, &"bbr").expect("writes");
        assert_eq!(
            read::<String>(&path).expect("reads"),
            Some("bbr".to_owned())
        );
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let directory = TempDir::new().expect("a directory for the test");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("open"), "\"evil\"").expect("writes");
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(at("open"), everybody).expect("it is ours");
        symlink(at("open"), at("link")).expect("links");
        mkfifo(&at("fifo"), Mode::S_IRUSR).expect("makes a FIFO");
        for name in ["open", "link", "fifo"] {
            read::<String>(&at(name)).expect_err(name);
        }
    }
}
