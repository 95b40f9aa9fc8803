//! Reading a configuration file in TOML.

use std::{
    io,
    path::{Path, PathBuf},
};

use cc_core::regular_file;
use serde::de::DeserializeOwned;

/// Size limit of a configuration file, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file in TOML could not be read into a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TomlFileError {
    /// The operating system could not read the file, or it is not UTF-8.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file that could not be read.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The file is not TOML, or has a key or a value that the configuration does not take.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file that does not parse.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: Box<toml::de::Error>,
    },
}

/// Reads a file in TOML into a configuration.
///
/// # Errors
///
/// Returns an error that names the file when it cannot be read or does not parse.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, TomlFileError> {
    let text =
        regular_file::read_to_string(path, MAX_BYTES).map_err(|source| TomlFileError::Read {
            path: path.to_owned(),
            source,
        })?;
    toml::from_str(&text).map_err(|source| TomlFileError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_device_is_no_configuration() {
        let error = read::<toml::Table>(Path::new("/dev/zero")).expect_err("endless");
        assert!(error.to_string().contains("it is a character device"));
    }

    #[test]
    fn an_error_names_the_file_and_what_is_wrong_in_it() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.toml");
        let missing = read::<toml::Table>(&path).expect_err("no file").to_string();
        assert!(missing.starts_with("reading ") && missing.contains("a.toml"));
        fs::write(&path, "a = 1\nb = = 2\n").expect("a file");
        let wrong = read::<toml::Table>(&path).expect_err("no TOML").to_string();
        assert!(
            wrong.contains("a.toml: ") && wrong.contains("line 2"),
            "{wrong}"
        );
        fs::write(&path, "a = 1\n").expect("a file");
        assert_eq!(read::<toml::Table>(&path).expect("TOML")["a"], 1.into());
    }
}
