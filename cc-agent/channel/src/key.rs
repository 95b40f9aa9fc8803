//! The publisher's key: Ed25519 (RFC 8032), the private half as PKCS #8 in PEM (RFC 5958, RFC
//! 7468).

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    str::FromStr,
};

use cc_core::regular_file;
use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};

use crate::ChannelError;

/// Length of a public key, bytes.
const LENGTH: usize = 32;
/// Length of a signature, bytes.
pub(crate) const SIGNATURE: usize = 64;
/// Length of the longest file of a private key, bytes.
const LONGEST: u64 = 1 << 14;
/// The kind of PEM block that holds a private key.
const TAG: &str = "PRIVATE KEY";

/// The private half, which the publisher keeps.
pub struct SigningKey(Ed25519KeyPair);

/// The public half, which agents' hosts are configured with. It is written as 64 hexadecimal
/// digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; LENGTH]);

impl SigningKey {
    /// Makes a key, and writes it to a new file that only its owner can read.
    ///
    /// # Errors
    ///
    /// Returns an error when there is a file of this name already, or it cannot be written.
    pub fn create(path: &Path) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::File {
            path: path.to_owned(),
            source,
        };
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document =
            document.map_err(|_| failed(io::Error::other("no random numbers for a key")))?;
        let key = Self::from_pkcs8(document.as_ref(), "the new key")?;
        let text = pem::encode(&pem::Pem::new(TAG, document.as_ref()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(key)
    }

    /// Reads a key from a file of [`Self::create`] or of `openssl genpkey -algorithm ed25519`.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, when others than its owner may read or write
    /// it, or when it holds no Ed25519 key.
    pub fn read(path: &Path) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::File {
            path: path.to_owned(),
            source,
        };
        let file = regular_file::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode();
        let name = path.display().to_string();
        if mode & 0o077 != 0 {
            return Err(ChannelError::Key {
                reason: format!(
                    "others may read or write the private key (mode {:04o}): chmod 600, and make \
                     another if it was seen",
                    mode & 0o7777
                ),
                what: name,
            });
        }
        let text = regular_file::read_open(&file, LONGEST).map_err(failed)?;
        let block = pem::parse(&text).map_err(|error| ChannelError::Key {
            what: name.clone(),
            reason: format!("expected a private key in PEM: {error}"),
        })?;
        Self::from_pkcs8(block.contents(), &name)
    }

    fn from_pkcs8(document: &[u8], what: &str) -> Result<Self, ChannelError> {
        // "Maybe unchecked": OpenSSL leaves the public half out, which cannot be checked then.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(document);
        pair.map(Self).map_err(|error| ChannelError::Key {
            what: what.into(),
            reason: format!("expected an Ed25519 private key (PKCS #8): {error}"),
        })
    }

    /// The public half, which agents' hosts are configured with.
    pub fn public(&self) -> PublicKey {
        let bytes = self.0.public_key().as_ref();
        PublicKey(
            bytes
                .try_into()
                .expect("an Ed25519 public key has 32 bytes"),
        )
    }

    /// The signature of a message.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

impl PublicKey {
    /// Whether `signature` is this key's, of exactly this message.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        key.verify(message, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; LENGTH];
        match hex::decode_to_slice(text.trim(), &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(error) => Err(format!(
                "expected the 64 hexadecimal digits that `cc-agent channel-key` prints: {error}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_key_is_read_again_and_replaces_none() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("key.pem");
        let key = SigningKey::create(&path).expect("writes");
        let mode = fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = SigningKey::read(&path).expect("reads");
        assert_eq!(read.public(), key.public());
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        let before = fs::read(&path).expect("reads");
        assert!(SigningKey::create(&path).is_err());
        assert_eq!(fs::read(&path).expect("reads"), before);
    }

    #[test]
    fn a_key_of_openssl_is_read() {
        // RFC 8410, section 10.3, as `openssl genpkey -algorithm ed25519` writes it.
        const PEM: &str = "-----BEGIN PRIVATE KEY-----\n\
                           MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                           -----END PRIVATE KEY-----\n";
        // The public half that the RFC gives for it (section 10.1).
        const PUBLIC: &str = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("key.pem");
        fs::write(&path, PEM).expect("writes");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let key = SigningKey::read(&path).expect("reads");
        assert_eq!(key.public().to_string(), PUBLIC);
    }

    #[test]
    fn keys_that_are_none_are_refused_with_the_reason() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("key.pem");
        for (text, mode, part) in [
            ("", 0o600, "expected a private key in PEM"),
            (
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                0o600,
                "Ed25519",
            ),
            ("", 0o640, "chmod 600"),
        ] {
            fs::write(&path, text).expect("writes");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            let error = SigningKey::read(&path).err().expect(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        for text in ["", "ab", &"g".repeat(64), &"a".repeat(66)] {
            let error = text.parse::<PublicKey>().expect_err(text);
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }
}
