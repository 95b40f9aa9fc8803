//! The addresses of flows in recordings: absent, hashed or plain.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// How the addresses of flows are written to recordings.
#[derive(Clone, Debug, Default)]
pub enum Addresses {
    /// Rows have no addresses: their columns are null.
    #[default]
    Absent,
    /// Rows have a keyed hash (HMAC-SHA-256) of the address: equal addresses have equal hashes
    /// under the same key, and nothing else can be learnt without it.
    Hashed(AddressKey),
    /// Rows have the address and port as text.
    Plain,
}

/// The form of the addresses in a file: [`Addresses`] without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The file has no addresses.
    Absent,
    /// The file has keyed hashes.
    Hashed,
    /// The file has addresses and ports.
    Plain,
}

/// The key of hashed addresses. With the key, the address of a hash can be found by trying all
/// addresses.
#[derive(Clone)]
pub struct AddressKey(Vec<u8>);

impl AddressKey {
    /// The smallest length of a key in bytes, so that it cannot be guessed.
    pub const SHORTEST: usize = 16;

    /// Creates a key. Returns `None` for fewer than [`Self::SHORTEST`] bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() >= Self::SHORTEST).then_some(Self(bytes))
    }
}

impl fmt::Debug for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressKey(…)")
    }
}

impl Addresses {
    /// The text for `address` in a row; `None` when addresses are absent. A hash leaves out the
    /// port, because ports change between the connections of a host.
    pub fn write(&self, address: SocketAddr) -> Option<Arc<str>> {
        match self {
            Self::Absent => None,
            Self::Plain => Some(address.to_string().into()),
            Self::Hashed(key) => {
                let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
                mac.update(address.ip().to_string().as_bytes());
                let hash = mac.finalize().into_bytes();
                let hex = hash[..16].iter().map(|byte| format!("{byte:02x}"));
                Some(hex.collect::<String>().into())
            }
        }
    }

    /// The form that files state, without the key.
    pub fn form(&self) -> Form {
        match self {
            Self::Absent => Form::Absent,
            Self::Hashed(_) => Form::Hashed,
            Self::Plain => Form::Plain,
        }
    }
}

impl Form {
    /// The form's name in files: `absent`, `hashed` or `plain`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Hashed => "hashed",
            Self::Plain => "plain",
        }
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Absent, Self::Hashed, Self::Plain]
            .into_iter()
            .find(|form| form.name() == name)
            .ok_or_else(|| format!("`{name}`: expected `absent`, `hashed` or `plain`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_the_key_and_not_on_the_port() {
        let hashed = |key: &str, address: &str| {
            let key = AddressKey::new(key).expect("long enough");
            let address = address.parse().expect("an address");
            Addresses::Hashed(key).write(address).expect("a hash")
        };
        let one = hashed("a key of 16 byte", "10.0.0.1:80");
        assert_eq!(one.len(), 32);
        assert_eq!(one, hashed("a key of 16 byte", "10.0.0.1:443"));
        assert_ne!(one, hashed("a key of 16 byte", "10.0.0.2:80"));
        assert_ne!(one, hashed("another, as long", "10.0.0.1:80"));
        assert!(!format!("{:?}", AddressKey::new("a key of 16 byte")).contains("key of"));
        assert!(AddressKey::new("short").is_none());
    }

    #[test]
    fn absent_and_plain() {
        let address = "[2001:db8::1]:443".parse().expect("an address");
        assert_eq!(Addresses::Absent.write(address), None);
        assert_eq!(
            Addresses::Plain.write(address).as_deref(),
            Some("[2001:db8::1]:443")
        );
    }
}
