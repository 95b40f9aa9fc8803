//! Tests of object stores by URL, against a small counterpart in the test's own process that speaks
//! the part of Amazon's protocol (S3) that a [`Store`] needs.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use super::*;

/// What the counterpart holds of its one bucket.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    /// The parts of uploads that are under way, by the upload's id and the part's number.
    parts: BTreeMap<(String, u32), Vec<u8>>,
    /// The statuses of the answers to the next requests, whatever they ask for.
    faults: Vec<u16>,
    requests: usize,
}

/// A request as far as it matters.
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    /// Whether it is to be refused where there is such an object.
    is_create: bool,
    body: Vec<u8>,
}

/// A server of a bucket on a loopback address.
struct Counterpart {
    address: SocketAddr,
    bucket: Arc<Mutex<Bucket>>,
}

impl Counterpart {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let bucket = Arc::<Mutex<Bucket>>::default();
        let shared = Arc::clone(&bucket);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let bucket = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &bucket));
            }
        });
        Self { address, bucket }
    }

    /// The store that is a directory of the bucket.
    fn store(&self) -> Store {
        let options = [
            ("aws_endpoint", format!("http://{}", self.address)),
            ("aws_allow_http", "true".into()),
            ("aws_region", "us-east-1".into()),
            ("aws_access_key_id", "a key".into()),
            ("aws_secret_access_key", "a secret".into()),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value));
        Store::open_with("s3://bucket/of/ours", options).expect("this build has it")
    }

    fn bucket(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.bucket.lock().expect("no panic")
    }
}

/// Answers the requests of a connection until its end.
fn serve(stream: TcpStream, bucket: &Mutex<Bucket>) {
    let mut writer = stream.try_clone().expect("another descriptor");
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let (status, body) = bucket.lock().expect("no panic").answer(request);
        let head = format!(
            "HTTP/1.1 {status} -\r\ncontent-length: {}\r\netag: \"1\"\r\nlast-modified: Wed, 25 \
             Nov 2026 10:00:00 GMT\r\n\r\n",
            body.len()
        );
        // The client may have gone.
        let _ = writer.write_all(&[head.into_bytes(), body].concat());
    }
}

/// The next request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut is_create) = (0, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_lowercase();
        match header.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("if-none-match", "*")) => is_create = true,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let url = Url::parse("http://a")
        .and_then(|base| base.join(&target))
        .ok()?;
    Some(Request {
        method,
        path: url
            .path()
            .trim_start_matches("/bucket")
            .trim_matches('/')
            .to_owned(),
        query: url.query_pairs().into_owned().collect(),
        is_create,
        body,
    })
}

impl Bucket {
    /// The status and the body of the answer to a request.
    fn answer(&mut self, request: Request) -> (u16, Vec<u8>) {
        self.requests += 1;
        if !self.faults.is_empty() {
            return (self.faults.remove(0), Vec::new());
        }
        let Request {
            method,
            path,
            query,
            is_create,
            body,
        } = request;
        let upload = query.get("uploadId").cloned();
        match (&*method, upload) {
            ("POST", None) if query.contains_key("uploads") => {
                let id = format!("upload-{}", self.requests);
                let answer = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
                     </InitiateMultipartUploadResult>"
                );
                (200, answer.into())
            }
            ("PUT", Some(id)) => {
                let number = query["partNumber"].parse().expect("a number");
                self.parts.insert((id, number), body);
                (200, Vec::new())
            }
            ("POST", Some(id)) => {
                let whole = self.parts.iter().filter(|((of, _), _)| *of == id);
                let whole = whole.flat_map(|(_, part)| part.clone()).collect();
                self.parts.retain(|(of, _), _| *of != id);
                self.objects.insert(path, whole);
                let answer = "<CompleteMultipartUploadResult><ETag>\"1\"</ETag>\
                              </CompleteMultipartUploadResult>";
                (200, answer.into())
            }
            ("DELETE", Some(id)) => {
                self.parts.retain(|(of, _), _| *of != id);
                (204, Vec::new())
            }
            ("PUT", None) if is_create && self.objects.contains_key(&path) => (412, Vec::new()),
            ("PUT", None) => {
                self.objects.insert(path, body);
                (200, Vec::new())
            }
            ("GET", None) if query.contains_key("list-type") => (200, self.list(&query["prefix"])),
            ("GET", None) => match self.objects.get(&path) {
                Some(object) => (200, object.clone()),
                None => (404, Vec::new()),
            },
            other => panic!("{other:?} {path}"),
        }
    }

    fn list(&self, prefix: &str) -> Vec<u8> {
        let found = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(prefix));
        let contents = found.map(|(key, object)| {
            format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><ETag>\"1\"</ETag>\
                 <LastModified>2026-11-25T10:00:00.000Z</LastModified></Contents>",
                object.len()
            )
        });
        let contents: String = contents.collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
            .into()
    }
}

#[tokio::test]
async fn objects_are_in_the_directory_of_a_bucket() {
    let counterpart = Counterpart::start();
    let store = counterpart.store();
    assert_eq!(store.get("a/b", 9).await.expect("no error"), None);
    for content in [&b"first"[..], b"second"] {
        store.put("a/b", content.to_vec()).await.expect("writes");
    }
    let third = store.create("a/b", b"third".to_vec()).await;
    assert!(!third.expect("no error"), "it is there already");
    assert!(store.create("a/c", Vec::new()).await.expect("creates"));
    let names: Vec<_> = counterpart.bucket().objects.keys().cloned().collect();
    assert_eq!(names, ["of/ours/a/b", "of/ours/a/c"]);
    let listed = store.list("a").await.expect("lists");
    assert_eq!(
        listed,
        BTreeMap::from([("a/b".into(), 6), ("a/c".into(), 0)])
    );
    let found = store.get("a/b", 6).await.expect("reads");
    assert_eq!(found, Some(b"second".to_vec()));
    let error = store.get("a/b", 5).await.expect_err("it is longer");
    assert!(error.to_string().contains("more than 5 bytes"), "{error}");
}

#[tokio::test]
async fn an_object_in_parts_is_in_the_bucket_when_it_is_whole() {
    let counterpart = Counterpart::start();
    let store = counterpart.store();
    let mut upload = store.upload("large").await.expect("begins");
    upload.part(vec![1; Upload::PART]).await.expect("writes");
    upload.part(vec![2; 3]).await.expect("writes");
    assert!(counterpart.bucket().objects.is_empty());
    upload.finish().await.expect("completes");
    let whole = counterpart.bucket().objects["of/ours/large"].clone();
    assert_eq!(
        (whole.len(), whole[0], whole[Upload::PART]),
        (Upload::PART + 3, 1, 2)
    );
    let mut upload = store.upload("given up").await.expect("begins");
    upload.part(vec![1; 9]).await.expect("writes");
    upload.abort().await;
    let bucket = counterpart.bucket();
    assert_eq!((bucket.objects.len(), bucket.parts.len()), (1, 0));
}

#[tokio::test]
async fn a_busy_store_is_asked_again_and_a_refusal_is_an_error() {
    let counterpart = Counterpart::start();
    let store = counterpart.store();
    counterpart.bucket().faults = vec![503, 503];
    store.put("a", b"one".to_vec()).await.expect("at the third");
    assert_eq!(counterpart.bucket().requests, 3);
    counterpart.bucket().faults = vec![403];
    let error = store.put("a", b"two".to_vec()).await.expect_err("refused");
    assert!(
        error
            .to_string()
            .starts_with("writing a of s3://bucket/of/ours: "),
        "{error}"
    );
    assert_eq!(counterpart.bucket().requests, 4, "it is not asked again");
    assert_eq!(counterpart.bucket().objects["of/ours/a"], b"one");
}
