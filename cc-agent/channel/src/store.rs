//! The directory or object store that a channel is in, and recordings are shipped to.

#[cfg(all(test, feature = "cloud"))]
mod counterpart;

use std::{collections::BTreeMap, fmt, fs, path::Path as FilePath, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    local::LocalFileSystem, parse_url_opts, path::Path, prefix::PrefixStore,
};
use tokio::time::timeout;
use url::Url;

use crate::ChannelError;

/// Time that an operation on one object, or a part of a large one, may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Environment variables with these beginnings are options of an object store, such as
/// `AWS_ACCESS_KEY_ID`.
const OPTIONS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Name of the store whose builds have it, for errors.
const CLOUDS: &str = "s3://, gs:// and az:// need a build with `--features cloud`";

/// Objects under a path or URL.
#[derive(Clone)]
pub struct Store {
    place: String,
    objects: Arc<dyn ObjectStore>,
}

/// An object that is being written in parts. It is there when [`Self::finish`] returns, and not
/// before.
pub struct Upload {
    store: Store,
    name: String,
    parts: Box<dyn MultipartUpload>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.place).finish()
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl Store {
    /// Opens the store at a path, `file://` URL, or URL of an object store (`s3://BUCKET/PREFIX`)
    /// in a build that has them. Credentials and endpoints of those are environment variables, as
    /// their own tools have them. Nothing is connected to.
    ///
    /// # Errors
    ///
    /// Returns an error when a directory is not there, and when this build cannot open the URL.
    pub fn open(place: &str) -> Result<Self, ChannelError> {
        let options = std::env::vars().filter_map(|(key, value)| {
            let is_option = OPTIONS.iter().any(|option| key.starts_with(option));
            is_option.then(|| (key.to_lowercase(), value))
        });
        Self::open_with(place, options)
    }

    /// Opens the store as [`Self::open`] does, with these options of an object store.
    fn open_with(
        place: &str,
        options: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ChannelError> {
        let failed = |reason: String| ChannelError::Place {
            place: shown(place),
            reason,
        };
        let url = match place.contains("://") {
            true => Url::parse(place).map_err(|error| failed(error.to_string()))?,
            false => {
                let directory = fs::canonicalize(place)
                    .map_err(|error| failed(format!("expected a directory or a URL: {error}")))?;
                return Self::directory(&directory, place);
            }
        };
        if url.scheme() == "file" {
            let directory = url
                .to_file_path()
                .map_err(|()| failed("expected file:///an/absolute/path".into()))?;
            return Self::directory(&directory, place);
        }
        #[cfg(feature = "cloud")]
        // Fails only where the process has a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (objects, prefix) = match parse_url_opts(&url, options) {
            Ok(found) => found,
            Err(error) if cfg!(feature = "cloud") => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(format!("{error} ({CLOUDS})"))),
        };
        Ok(Self {
            place: shown(place),
            objects: Arc::new(PrefixStore::new(objects, prefix)),
        })
    }

    fn directory(directory: &FilePath, place: &str) -> Result<Self, ChannelError> {
        match LocalFileSystem::new_with_prefix(directory) {
            Ok(objects) => Ok(Self {
                place: shown(place),
                // Others see an object once all of it has been written to the disk.
                objects: Arc::new(objects.with_fsync(true)),
            }),
            Err(error) => Err(ChannelError::Place {
                place: shown(place),
                reason: format!("expected a directory: {error}"),
            }),
        }
    }

    /// The object of this name, of at most `most` bytes; `None` when there is none.
    ///
    /// # Errors
    ///
    /// Returns an error when it is longer, and when it cannot be read within a minute.
    pub async fn get(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, ChannelError> {
        let what = "reading";
        let too_long = || ChannelError::TooLong {
            object: name.into(),
            place: self.place.clone(),
            most,
        };
        let read = async {
            let found = match self.objects.get(&Path::from(name)).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                found => found.map_err(|source| self.failed(what, name, source))?,
            };
            if found.meta.size > most {
                return Err(too_long());
            }
            let mut bytes = Vec::new();
            let mut chunks = found.into_stream();
            // The store may send more than it said.
            while let Some(chunk) = chunks.next().await {
                bytes.extend(chunk.map_err(|source| self.failed(what, name, source))?);
                if bytes.len() as u64 > most {
                    return Err(too_long());
                }
            }
            Ok(Some(bytes))
        };
        self.in_time(what, name, read).await
    }

    /// Writes an object, in the place of one that is there.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be written within a minute.
    pub async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), ChannelError> {
        let what = "writing";
        let write = async {
            let put = self.objects.put(&Path::from(name), bytes.into()).await;
            put.map_err(|source| self.failed(what, name, source))
        };
        self.in_time(what, name, write).await.map(drop)
    }

    /// Writes an object unless there is one of this name. Returns whether it was written: of
    /// several who do so at once, one gets `true`.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be written within a minute.
    pub async fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool, ChannelError> {
        let what = "writing";
        let write = async {
            let options = PutOptions::from(PutMode::Create);
            let path = Path::from(name);
            match self.objects.put_opts(&path, bytes.into(), options).await {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. }) => Ok(false),
                Err(source) => Err(self.failed(what, name, source)),
            }
        };
        self.in_time(what, name, write).await
    }

    /// The names of all objects under a name, and their lengths in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error when they cannot be listed within a minute.
    pub async fn list(&self, under: &str) -> Result<BTreeMap<String, u64>, ChannelError> {
        let what = "listing";
        let list = async {
            let found = self.objects.list(Some(&Path::from(under)));
            let found = found.map_ok(|meta| (meta.location.to_string(), meta.size));
            let found: Result<_, _> = found.try_collect().await;
            found.map_err(|source| self.failed(what, under, source))
        };
        self.in_time(what, under, list).await
    }

    /// Begins to write an object in parts.
    ///
    /// # Errors
    ///
    /// Returns an error when the store does not begin it within a minute.
    pub async fn upload(&self, name: &str) -> Result<Upload, ChannelError> {
        let what = "writing";
        let begin = async {
            let parts = self.objects.put_multipart(&Path::from(name)).await;
            parts.map_err(|source| self.failed(what, name, source))
        };
        let parts = self.in_time(what, name, begin).await?;
        Ok(Upload {
            store: self.clone(),
            name: name.into(),
            parts,
        })
    }

    async fn in_time<T>(
        &self,
        what: &'static str,
        object: &str,
        operation: impl Future<Output = Result<T, ChannelError>>,
    ) -> Result<T, ChannelError> {
        timeout(LIMIT, operation).await.unwrap_or_else(|_| {
            Err(ChannelError::Late {
                what,
                object: object.into(),
                place: self.place.clone(),
                limit: LIMIT,
            })
        })
    }

    fn failed(&self, what: &'static str, object: &str, source: Error) -> ChannelError {
        ChannelError::Store {
            what,
            object: object.into(),
            place: self.place.clone(),
            source: source.into(),
        }
    }
}

impl Upload {
    /// Length of each part but the last, bytes: the least that Amazon's store takes.
    pub const PART: usize = 5 << 20;

    /// Writes the next part, of [`Self::PART`] bytes unless it is the last.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be written within a minute.
    pub async fn part(&mut self, bytes: Vec<u8>) -> Result<(), ChannelError> {
        let part = self.parts.put_part(bytes.into());
        let (store, name) = (&self.store, &self.name);
        let write = async {
            part.await
                .map_err(|source| store.failed("writing", name, source))
        };
        store.in_time("writing", name, write).await
    }

    /// Completes the object, in the place of one that is there.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be completed within a minute.
    pub async fn finish(mut self) -> Result<(), ChannelError> {
        let (store, name) = (&self.store, &self.name);
        let complete = self.parts.complete();
        let write = async {
            let done = complete.await;
            done.map_err(|source| store.failed("writing", name, source))
        };
        store.in_time("writing", name, write).await.map(drop)
    }

    /// Gives the object up, and removes its parts as far as the store lets us.
    pub async fn abort(mut self) {
        // What stays is invisible, and stores have rules to remove it.
        let _ = timeout(LIMIT, self.parts.abort()).await;
    }
}

/// A place as it may be shown: without the user and password of a URL.
fn shown(place: &str) -> String {
    match Url::parse(place) {
        Ok(mut url) if url.has_authority() => {
            // Fail for URLs that can have neither.
            let _ = url.set_password(None);
            let _ = url.set_username("");
            url.set_query(None);
            url.to_string()
        }
        _ => place.into(),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn store() -> (TempDir, Store) {
        let directory = TempDir::new().expect("a directory for the test");
        let place = directory.path().to_str().expect("its name is ASCII");
        let store = Store::open(place).expect("it is a directory");
        (directory, store)
    }

    #[tokio::test]
    async fn objects_are_files_of_a_directory() {
        let (directory, store) = store();
        assert_eq!(store.get("a/b", 9).await.expect("no error"), None);
        store.put("a/b", b"first".to_vec()).await.expect("writes");
        store
            .put("a/b", b"second".to_vec())
            .await
            .expect("replaces");
        assert!(
            !store
                .create("a/b", b"third".to_vec())
                .await
                .expect("no error")
        );
        assert!(store.create("a/c", Vec::new()).await.expect("creates"));
        let found = fs::read(directory.path().join("a/b")).expect("it is there");
        assert_eq!(found, b"second");
        let found = store.list("a").await.expect("lists");
        assert_eq!(
            found,
            BTreeMap::from([("a/b".into(), 6), ("a/c".into(), 0)])
        );
        assert_eq!(
            store.get("a/b", 6).await.expect("reads"),
            Some(b"second".to_vec())
        );
        let error = store
            .get("a/b", 5)
            .await
            .expect_err("it is longer")
            .to_string();
        assert!(error.contains("more than 5 bytes"), "{error}");
    }

    #[tokio::test]
    async fn an_object_in_parts_is_there_when_it_is_whole() {
        let (_directory, store) = store();
        let mut upload = store.upload("large").await.expect("begins");
        upload.part(vec![1; Upload::PART]).await.expect("writes");
        upload.part(vec![2; 3]).await.expect("writes");
        assert_eq!(store.get("large", 1 << 30).await.expect("no error"), None);
        upload.finish().await.expect("completes");
        let whole = store
            .get("large", 1 << 30)
            .await
            .expect("reads")
            .expect("there");
        assert_eq!(whole.len(), Upload::PART + 3);
        let mut upload = store.upload("given up").await.expect("begins");
        upload.part(vec![1; 9]).await.expect("writes");
        upload.abort().await;
        assert_eq!(store.list("").await.expect("lists").len(), 1);
    }

    #[test]
    fn places_that_are_none_are_refused_with_the_remedy() {
        let build = match cfg!(feature = "cloud") {
            true => "Unable to recognise URL",
            false => "--features cloud",
        };
        for (place, part) in [
            ("/no/such/directory", "expected a directory or a URL"),
            ("file://elsewhere/x", "expected file:///an/absolute/path"),
            ("nonsense://x", "nonsense"),
            ("s3://", build),
        ] {
            let error = Store::open(place).expect_err(place).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(shown("s3://me:secret@bucket/p?sig=secret"), "s3://bucket/p");
        assert_eq!(shown("/a/directory"), "/a/directory");
    }
}
