//! A client of other projects' servers of HTTP: one GET, over TLS, on a connection of its own.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cc_core::{error_chain, regular_file};
use http_body_util::Empty;
use hyper::{
    HeaderMap, Request, Response, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::tls::{MAX_PEM, TlsError};

/// Time for a connection, its TLS handshake and the head of the answer.
const HEAD: Duration = Duration::from_secs(20);
/// Silence after which the other end is probed, and between two probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Probes without an answer after which a connection is broken.
const PROBES: u32 = 3;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpsError {
    /// The URL is not one of a server that can be asked.
    #[error(
        "`{url}`: expected https://HOST:PORT, or http://HOST:PORT on this host, such as that of \
         `kubectl proxy`"
    )]
    Url {
        /// The URL that was given.
        url: String,
    },
    /// The certificates of the authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There was no connection, or it was broken before the answer.
    #[error("{server}: {reason}")]
    Connection {
        /// URL of the server that was asked.
        server: String,
        /// What went wrong, with its causes.
        reason: String,
    },
    /// The server did not answer in time.
    #[error("{server}: no answer within {} s", HEAD.as_secs())]
    Silent {
        /// URL of the server that was asked.
        server: String,
    },
}

/// A server that is asked by GET.
#[derive(Clone, Debug)]
pub struct HttpsClient {
    host: String,
    port: u16,
    /// Certificates of the authorities, in PEM; `None` where the connection is not encrypted.
    ca: Option<PathBuf>,
}

impl HttpsClient {
    /// A client of the server at a URL without a path, whose certificate an authority in the file
    /// `ca` must have signed. The file is read for each connection: authorities change. Without TLS
    /// only servers of this host are asked.
    ///
    /// # Errors
    ///
    /// Returns an error when the URL is another one.
    pub fn new(url: &str, ca: &Path) -> Result<Self, HttpsError> {
        let parse = || {
            let uri: Uri = url.parse().ok()?;
            let host = uri.host()?.trim_matches(['[', ']']).to_owned();
            let (default, ca) = match uri.scheme_str()? {
                "https" => (443, Some(ca.to_owned())),
                "http" if is_loopback(&host) => (80, None),
                _ => return None,
            };
            let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
            is_bare.then_some(Self {
                host,
                port: uri.port_u16().unwrap_or(default),
                ca,
            })
        };
        parse().ok_or_else(|| HttpsError::Url { url: url.into() })
    }

    /// Whether connections to the server are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.ca.is_some()
    }

    /// The server's URL, with its port.
    pub fn url(&self) -> String {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }

    /// Asks for a path with its query. The answer's body comes as the server sends it; dropping it
    /// ends the connection. A server that is gone without a word breaks it within a minute.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no answer, whatever its status is.
    pub async fn get(
        &self,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, HttpsError> {
        let silent = || HttpsError::Silent { server: self.url() };
        let asked = timeout(HEAD, self.ask(path, headers)).await;
        asked.map_err(|_| silent())?
    }

    async fn ask(
        &self,
        path: &str,
        mut headers: HeaderMap,
    ) -> Result<Response<Incoming>, HttpsError> {
        let connector = self.ca.as_deref().map(connector).transpose()?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(self.failed())?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE)
            .with_retries(PROBES);
        let kept = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        kept.map_err(self.failed())?;
        let host = HeaderValue::from_str(&self.authority()).map_err(self.failed())?;
        headers.insert(HOST, host);
        let request = Request::get(path).body(Empty::new());
        let mut request = request.map_err(self.failed())?;
        *request.headers_mut() = headers;
        let Some(connector) = connector else {
            return self.exchange(stream, request).await;
        };
        let name = ServerName::try_from(self.host.clone()).map_err(self.failed())?;
        let stream = connector.connect(name, stream).await;
        self.exchange(stream.map_err(self.failed())?, request).await
    }

    /// Sends the request on a connection, which ends with the answer.
    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, HttpsError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connected = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(self.failed())?;
        // What breaks the connection shows in the answer.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(self.failed())
    }

    /// What turns an error into one of the connection to this server.
    fn failed<E: std::error::Error>(&self) -> impl FnOnce(E) -> HttpsError {
        let server = self.url();
        move |error| HttpsError::Connection {
            server,
            reason: error_chain(&error),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// TLS that trusts the authorities in a file of PEM.
fn connector(path: &Path) -> Result<TlsConnector, TlsError> {
    let pem = regular_file::read(path, MAX_PEM).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
        // Those that this library does not understand sign nothing here.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(TlsError::Content {
            path: path.to_owned(),
            expected: "CERTIFICATE-----",
        });
    }
    let refused = |error: rustls::Error| TlsError::Refused {
        reason: error.to_string(),
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http_body_util::BodyExt;
    use hyper::header::AUTHORIZATION;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{ServerConfig, pki_types::PrivateKeyDer},
    };

    use super::*;

    /// The certificate of an authority, and a server with one that it has signed for 127.0.0.1.
    fn certificates() -> (String, TlsAcceptor) {
        let ca_key = KeyPair::generate().expect("a key");
        let mut ca = CertificateParams::new(Vec::new()).expect("no names");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = ca.self_signed(&ca_key).expect("signed").pem();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let signed = params.signed_by(&key, &issuer).expect("signed");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![signed.der().clone()], key);
        (pem, TlsAcceptor::from(Arc::new(config.expect("a pair"))))
    }

    #[tokio::test]
    async fn a_server_of_the_authority_is_asked_and_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let ca = directory.path().join("ca.crt");
        let (pem, acceptor) = certificates();
        fs::write(&ca, pem).expect("written");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            let mut stream = acceptor.accept(stream).await.expect("a handshake");
            let mut head = vec![0; 1024];
            let length = stream.read(&mut head).await.expect("a request");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                .await
                .expect("it reads");
            stream.flush().await.expect("it reads");
            let (stream, _) = listener.accept().await.expect("another client");
            let refused = acceptor.accept(stream).await.expect_err("it hangs up");
            (
                String::from_utf8_lossy(&head[..length]).into_owned(),
                refused,
            )
        });
        let client = HttpsClient::new(&format!("https://{address}"), &ca).expect("a URL");
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        let answer = client
            .get("/a?b=c", headers.clone())
            .await
            .expect("an answer");
        let body = answer.into_body().collect().await.expect("whole");
        assert_eq!(body.to_bytes(), "hi");
        // The authority was changed behind its back.
        fs::write(&ca, certificates().0).expect("written");
        let error = client
            .get("/", headers)
            .await
            .expect_err("another authority");
        let error = error.to_string();
        assert!(
            error.starts_with(&format!("https://{address}: ")) && error.contains("certificate"),
            "{error}"
        );
        let (head, _) = server.await.expect("no panic");
        assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nhost: {address}\r\n")), "{head}");
        assert!(
            head.contains("\r\nauthorization: Bearer secret\r\n"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn errors_say_what_and_where() {
        let ca = Path::new("/nowhere/ca.crt");
        for url in [
            "10.0.0.1:443",
            "http://10.0.0.1:80",
            "https://host/path",
            "ftp://host",
            "nonsense",
        ] {
            let error = HttpsClient::new(url, ca).expect_err(url).to_string();
            assert!(
                error.contains(url) && error.contains("https://HOST:PORT"),
                "{error}"
            );
        }
        let url = |text: &str| HttpsClient::new(text, ca).expect("a URL").url();
        assert_eq!(url("https://[fd00::1]:6443/"), "https://[fd00::1]:6443");
        assert_eq!(url("https://host"), "https://host:443");
        let ask = async |client: HttpsClient| {
            let answer = client.get("/", HeaderMap::new()).await;
            answer.expect_err("no answer").to_string()
        };
        let client = HttpsClient::new("https://127.0.0.1:1", ca).expect("a URL");
        assert!(
            ask(client)
                .await
                .starts_with("/nowhere/ca.crt: No such file")
        );
        let client = HttpsClient::new("http://127.0.0.1:1", ca).expect("a URL");
        let error = ask(client).await;
        assert!(
            error.starts_with("http://127.0.0.1:1: Connection refused"),
            "{error}"
        );
    }
}
