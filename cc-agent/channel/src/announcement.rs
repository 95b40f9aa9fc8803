//! What a publisher announces: a policy, and how it is to come into service.

use std::fmt;

use cc_core::{canary::CanaryBy, policy::MAX_BYTES};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{ChannelError, PublicKey, SigningKey, key::SIGNATURE};

/// The version of the format of announcements.
const FORMAT: u32 = 1;
/// What is signed in front of the text, so that the signature is worth nothing elsewhere.
const DOMAIN: &[u8] = b"cc-agent policy channel\n";
/// Length of the longest signed announcement, bytes.
pub(crate) const LONGEST: u64 = 1 << 16;

/// An announcement: agents shall serve this policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announcement {
    /// Version of the format of announcements; others are refused.
    format: u32,
    /// Number of the announcement; higher than those of all before it.
    pub sequence: u64,
    /// When it was published, in s since 1970, by the publisher's clock.
    pub published_s: u64,
    /// SHA-256 of the policy file, in lower-case hexadecimal digits.
    pub sha256: String,
    /// Length of the policy file, bytes.
    pub bytes: u64,
    /// Name of the policy, for people.
    pub name: String,
    /// How the policy is compared with the one before it; `None` to serve it to all flows at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryTerms>,
}

/// How a policy is compared with the one before it, as `cc-agent reload --canary` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanaryTerms {
    /// Share of the flows, paths or hosts that the policy decides for at first, percent.
    pub percent: f64,
    /// What is compared, and hence assigned to an arm.
    pub by: CanaryBy,
}

/// An announcement whose signature was checked or made.
#[derive(Clone, Debug, PartialEq)]
pub struct Signed {
    /// The announcement, as it was signed.
    pub announcement: Announcement,
    /// SHA-256 of what was signed, in hexadecimal digits: two announcements with one number differ
    /// in it.
    pub digest: String,
}

impl Announcement {
    pub(crate) fn new(
        sequence: u64,
        published_s: u64,
        policy: &[u8],
        name: &str,
        canary: Option<CanaryTerms>,
    ) -> Self {
        Self {
            format: FORMAT,
            sequence,
            published_s,
            sha256: format!("{:x}", Sha256::digest(policy)),
            bytes: policy.len() as u64,
            name: name.into(),
            canary,
        }
    }

    /// Name of the object that the policy file is in.
    pub fn object(&self) -> String {
        format!("policies/{}.onnx", self.sha256)
    }

    /// Checks that a file is the announced one.
    ///
    /// # Errors
    ///
    /// Returns an error when its length or SHA-256 is another one.
    pub fn check_policy(&self, file: &[u8]) -> Result<(), ChannelError> {
        let found = format!("{:x}", Sha256::digest(file));
        match found == self.sha256 && file.len() as u64 == self.bytes {
            true => Ok(()),
            false => Err(ChannelError::Policy {
                object: self.object(),
                found,
                bytes: file.len(),
            }),
        }
    }

    /// Checks what types do not say.
    fn check(&self) -> Result<(), String> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if self.format != FORMAT {
            return Err(format!("format {}, expected {FORMAT}", self.format));
        }
        if self.sha256.len() != 64 || !self.sha256.bytes().all(is_digit) {
            return Err("sha256: expected 64 lower-case hexadecimal digits".into());
        }
        if self.bytes == 0 || self.bytes > MAX_BYTES {
            return Err(format!("bytes: {}, expected 1 to {MAX_BYTES}", self.bytes));
        }
        let percent = self.canary.as_ref().map_or(1.0, |canary| canary.percent);
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(format!(
                "percent: {percent}, expected more than 0 and at most 100"
            ));
        }
        Ok(())
    }
}

/// The announcement for people, in a line.
impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequence, name, sha256) = (self.sequence, &self.name, &self.sha256);
        write!(f, "announcement {sequence}: {name}, SHA-256 {sha256}")?;
        match &self.canary {
            Some(CanaryTerms { percent, by }) => {
                write!(f, ", after a canary of {percent} % by {by}")
            }
            None => Ok(()),
        }
    }
}

impl Signed {
    /// Signs an announcement. Returns it with the object that holds it: the signature in
    /// hexadecimal digits, a line feed, and the announcement as JSON.
    pub(crate) fn sign(announcement: Announcement, key: &SigningKey) -> (Self, Vec<u8>) {
        let text = serde_json::to_vec(&announcement).expect("its keys are strings");
        let message = [DOMAIN, &text].concat();
        let mut object = hex::encode(key.sign(&message)).into_bytes();
        object.push(b'\n');
        object.extend_from_slice(&text);
        let digest = format!("{:x}", Sha256::digest(&text));
        let signed = Self {
            announcement,
            digest,
        };
        (signed, object)
    }

    /// Checks the signature of an object, then reads it. Nothing of the text is looked at before.
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError::Unsigned`] for everything that this key has not signed, and
    /// [`ChannelError::Format`] when what it has signed is not an announcement of this version.
    pub fn verify(object: &[u8], key: &PublicKey) -> Result<Self, ChannelError> {
        let unsigned = || ChannelError::Unsigned {
            key: key.to_string(),
        };
        let (digits, rest) = object
            .split_at_checked(2 * SIGNATURE)
            .ok_or_else(unsigned)?;
        let text = rest.strip_prefix(b"\n").ok_or_else(unsigned)?;
        let mut signature = [0; SIGNATURE];
        hex::decode_to_slice(digits, &mut signature).map_err(|_| unsigned())?;
        if !key.verifies(&[DOMAIN, text].concat(), &signature) {
            return Err(unsigned());
        }
        let announcement: Announcement = serde_json::from_slice(text)
            .map_err(|error| ChannelError::Format(error.to_string()))?;
        announcement.check().map_err(ChannelError::Format)?;
        Ok(Self {
            announcement,
            digest: format!("{:x}", Sha256::digest(text)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    static KEYS: LazyLock<[SigningKey; 2]> = LazyLock::new(|| {
        let directory = TempDir::new().expect("a directory for the test");
        ["a", "b"].map(|name| SigningKey::create(&directory.path().join(name)).expect("writes"))
    });

    fn announcement() -> Announcement {
        let canary = Some(CanaryTerms {
            percent: 5.0,
            by: CanaryBy::Path,
        });
        Announcement::new(7, 1_795_000_000, b"a policy", "always-20", canary)
    }

    #[test]
    fn what_was_signed_is_read_and_another_key_refuses_it() {
        let [ours, theirs] = &*KEYS;
        let (signed, object) = Signed::sign(announcement(), ours);
        let read = Signed::verify(&object, &ours.public()).expect("it is ours");
        assert_eq!(read, signed);
        let error = Signed::verify(&object, &theirs.public()).expect_err("not theirs");
        assert!(error.is_suspicious(), "{error}");
    }

    #[test]
    fn what_is_signed_but_not_understood_is_refused() {
        let key = &KEYS[0];
        let changes: [fn(&mut Announcement); 5] = [
            |it| it.format = 2,
            |it| it.sha256 = "../../etc/passwd".into(),
            |it| it.bytes = MAX_BYTES + 1,
            |it| it.canary.as_mut().expect("it has one").percent = 0.0,
            |it| it.canary.as_mut().expect("it has one").percent = 101.0,
        ];
        for change in changes {
            let mut changed = announcement();
            change(&mut changed);
            let (_, object) = Signed::sign(changed, key);
            let error = Signed::verify(&object, &key.public()).expect_err("refused");
            assert!(matches!(error, ChannelError::Format(_)), "{error}");
        }
    }

    #[test]
    fn a_policy_is_the_announced_one_to_the_byte() {
        let announcement = announcement();
        announcement.check_policy(b"a policy").expect("it is");
        for other in [&b"a policy "[..], b"A policy", b""] {
            let error = announcement.check_policy(other).expect_err("it is not");
            assert!(error.is_suspicious(), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_change_of_any_byte_is_noticed(place in any::<prop::sample::Index>(), by in 1..=255u8) {
            let key = &KEYS[0];
            let (_, mut object) = Signed::sign(announcement(), key);
            let place = place.index(object.len());
            object[place] ^= by;
            // Digits of the signature have two cases that mean the same.
            let same = place < 2 * SIGNATURE && by == 0x20 && object[place].is_ascii_alphabetic();
            prop_assert_eq!(Signed::verify(&object, &key.public()).is_ok(), same);
        }

        #[test]
        fn whatever_is_not_signed_is_refused(object in prop::collection::vec(any::<u8>(), 0..300)) {
            let error = Signed::verify(&object, &KEYS[0].public()).expect_err("it is not signed");
            prop_assert!(error.is_suspicious());
        }
    }
}
