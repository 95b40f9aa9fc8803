//! Certificates and keys from PEM files. Both sides prove who they are.

use std::path::{Path, PathBuf};

use cc_core::regular_file;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Size limit of a PEM file, bytes.
pub(crate) const MAX_PEM: u64 = 1 << 20;

/// The PEM files of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign the other side's certificate.
    pub ca: PathBuf,
    /// This side's certificate, followed by those of intermediate authorities.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// The content of [`TlsFiles`]: certificates and a key.
#[derive(Clone)]
pub(crate) struct Pem {
    ca: Certificate,
    identity: Identity,
}

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file that could not be read.
        path: PathBuf,
        /// Answer of the system call.
        source: std::io::Error,
    },
    /// A file has another content.
    #[error("{path}: expected PEM with a section `{expected}`")]
    Content {
        /// The file that has no such section.
        path: PathBuf,
        /// What the section's label ends with.
        expected: &'static str,
    },
    /// The certificates and the key do not make a configuration.
    #[error("the certificates and the key are refused: {reason}")]
    Refused {
        /// What is wrong with the certificates or the key.
        reason: String,
    },
}

impl TlsFiles {
    /// Reads the files, each of which must be PEM of its kind.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be read or is not PEM of its kind.
    pub(crate) fn read(&self) -> Result<Pem, TlsError> {
        let ca = read(&self.ca, "CERTIFICATE-----")?;
        let cert = read(&self.cert, "CERTIFICATE-----")?;
        let key = read(&self.key, "PRIVATE KEY-----")?;
        Ok(Pem {
            ca: Certificate::from_pem(ca),
            identity: Identity::from_pem(cert, key),
        })
    }
}

impl Pem {
    /// A server's configuration: agents must have a certificate of the authorities.
    pub(crate) fn of_server(self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity)
            .client_ca_root(self.ca)
    }

    /// An agent's configuration: the server must have a certificate of the authorities for `host`.
    pub(crate) fn of_client(self, host: &str) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .identity(self.identity)
            .ca_certificate(self.ca)
            .domain_name(host)
    }
}

fn read(path: &Path, expected: &'static str) -> Result<String, TlsError> {
    let text = regular_file::read_to_string(path, MAX_PEM).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })?;
    match text.contains(expected) {
        true => Ok(text),
        false => Err(TlsError::Content {
            path: path.to_owned(),
            expected,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("empty.pem");
        std::fs::write(&file, "nothing").expect("written");
        let missing = directory.path().join("missing.pem");
        for (path, expected) in [
            (&file, "empty.pem: expected PEM"),
            (&missing, "missing.pem: No"),
        ] {
            let files = TlsFiles {
                ca: path.clone(),
                cert: path.clone(),
                key: path.clone(),
            };
            let error = files.read().err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
