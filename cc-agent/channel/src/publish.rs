//! Publishing a policy, and reading what was published.

use std::path::Path;

use cc_core::{
    policy::{MAX_BYTES, PolicyFile},
    regular_file,
};

use crate::{
    Announcement, CanaryTerms, ChannelError, PublicKey, Signed, SigningKey, Store,
    announcement::LONGEST,
};

/// The object that holds the latest announcement.
const LATEST: &str = "channel";
/// What the names of all announcements begin with.
const ANNOUNCEMENTS: &str = "announcements";

/// Publishes the policy file at `path`: writes it to the store, then the announcement that follows
/// the last one. `now_s` is the time in s since 1970.
///
/// # Errors
///
/// Returns an error when the file is not a policy, when the last announcement is another key's,
/// when somebody else publishes at the same time, and when the store cannot be written to. Agents
/// serve on what was announced before then.
pub async fn publish(
    store: &Store,
    key: &SigningKey,
    path: &Path,
    canary: Option<CanaryTerms>,
    now_s: u64,
) -> Result<Announcement, ChannelError> {
    let bytes = regular_file::read(path, MAX_BYTES).map_err(|source| ChannelError::File {
        path: path.to_owned(),
        source,
    })?;
    let policy = PolicyFile::parse(&bytes).map_err(|source| ChannelError::NotAPolicy {
        path: path.to_owned(),
        source,
    })?;
    let latest = match latest(store, &key.public()).await {
        Ok(signed) => signed.announcement.sequence,
        Err(ChannelError::Empty(_)) => 0,
        Err(error) => return Err(error),
    };
    // One that was created before its publisher could complete it is left out.
    let last = store.list(ANNOUNCEMENTS).await?.into_keys();
    let last = last.filter_map(|name| name.rsplit('/').next()?.parse().ok());
    let sequence = last.max().unwrap_or(0).max(latest) + 1;
    let name = &policy.meta().name;
    let announcement = Announcement::new(sequence, now_s, &bytes, name, canary);
    store.put(&announcement.object(), bytes).await?;
    let (signed, object) = Signed::sign(announcement, key);
    let numbered = format!("{ANNOUNCEMENTS}/{sequence:010}");
    if !store.create(&numbered, object.clone()).await? {
        return Err(ChannelError::Overtaken(sequence));
    }
    store.put(LATEST, object).await?;
    Ok(signed.announcement)
}

/// The latest announcement, if `key` has signed it.
///
/// # Errors
///
/// Returns [`ChannelError::Empty`] when there is none, and an error when it is not signed by this
/// key or cannot be read.
pub async fn latest(store: &Store, key: &PublicKey) -> Result<Signed, ChannelError> {
    let object = store.get(LATEST, LONGEST).await?;
    let object = object.ok_or_else(|| ChannelError::Empty(store.to_string()))?;
    Signed::verify(&object, key)
}

/// The policy file of an announcement.
///
/// # Errors
///
/// Returns an error when it is not in the store, when it is another one than announced, and when it
/// cannot be read.
pub async fn policy(store: &Store, announcement: &Announcement) -> Result<Vec<u8>, ChannelError> {
    let object = announcement.object();
    let file = store.get(&object, announcement.bytes).await?;
    let file = file.ok_or_else(|| ChannelError::Missing {
        object,
        place: store.to_string(),
    })?;
    announcement.check_policy(&file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cc_core::policy::DEFAULT_POLICY;
    use tempfile::TempDir;

    use super::*;

    /// A channel, its key, and a policy file.
    struct Place {
        directory: TempDir,
        store: Store,
        key: SigningKey,
    }

    impl Place {
        fn new() -> Self {
            let directory = TempDir::new().expect("a directory for the test");
            let at = |name: &str| directory.path().join(name);
            fs::create_dir(at("channel")).expect("creates");
            fs::write(at("policy.onnx"), DEFAULT_POLICY).expect("writes");
            let place = at("channel").display().to_string();
            Self {
                store: Store::open(&place).expect("it is a directory"),
                key: SigningKey::create(&at("key.pem")).expect("writes"),
                directory,
            }
        }

        async fn publish(&self) -> Result<Announcement, ChannelError> {
            let path = self.directory.path().join("policy.onnx");
            publish(&self.store, &self.key, &path, None, 0).await
        }
    }

    #[tokio::test]
    async fn what_was_published_is_found_with_its_policy() {
        let place = Place::new();
        let error = latest(&place.store, &place.key.public())
            .await
            .expect_err("empty");
        assert!(matches!(error, ChannelError::Empty(_)), "{error}");
        for sequence in 1..=3 {
            let announced = place.publish().await.expect("publishes");
            assert_eq!(announced.sequence, sequence);
            let found = latest(&place.store, &place.key.public())
                .await
                .expect("signed");
            assert_eq!(found.announcement, announced);
            let file = policy(&place.store, &announced).await.expect("announced");
            assert_eq!(file, DEFAULT_POLICY);
        }
    }

    #[tokio::test]
    async fn a_number_is_given_once() {
        let place = Place::new();
        place.publish().await.expect("publishes");
        // Its publisher was killed before it became the latest.
        let half = format!("{ANNOUNCEMENTS}/{:010}", 2);
        assert!(
            place
                .store
                .create(&half, Vec::new())
                .await
                .expect("creates")
        );
        assert_eq!(place.publish().await.expect("publishes").sequence, 3);
    }

    #[tokio::test]
    async fn a_changed_policy_and_a_foreign_channel_are_refused() {
        let place = Place::new();
        let announced = place.publish().await.expect("publishes");
        let mut other = DEFAULT_POLICY.to_vec();
        other[100] ^= 1;
        for (file, part) in [
            (other, "not the announced one"),
            ([DEFAULT_POLICY, b" "].concat(), "which is the limit"),
        ] {
            place
                .store
                .put(&announced.object(), file)
                .await
                .expect("writes");
            let error = policy(&place.store, &announced).await.expect_err(part);
            assert!(
                error.is_suspicious() && error.to_string().contains(part),
                "{error}"
            );
        }
        let theirs = Place::new();
        let error = latest(&place.store, &theirs.key.public())
            .await
            .expect_err("not theirs");
        assert!(error.is_suspicious(), "{error}");
        // Nobody publishes over what is not his own.
        let stolen = Place {
            store: place.store.clone(),
            ..theirs
        };
        let error = stolen.publish().await.expect_err("not theirs");
        assert!(matches!(error, ChannelError::Unsigned { .. }), "{error}");
    }

    #[tokio::test]
    async fn what_is_no_policy_is_not_published() {
        let place = Place::new();
        let path = place.directory.path().join("policy.onnx");
        fs::write(&path, "no policy").expect("writes");
        let error = place.publish().await.expect_err("no policy");
        assert!(matches!(error, ChannelError::NotAPolicy { .. }), "{error}");
        assert!(place.store.list("").await.expect("lists").is_empty());
    }
}
