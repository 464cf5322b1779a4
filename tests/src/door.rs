//! A client that sends what it is told, byte for byte: for tests that look at status, headers and body as they are, at
//! hand-made tokens and headers, and at what no well-behaved client would send. Not for tests of what clients do.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where to knock, and as whom.
#[derive(Clone, Debug)]
pub struct Door {
    /// `host:port`.
    pub address: String,
    /// Before every path, `/clusters/east` for example; empty for none.
    pub prefix: String,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
    /// Where the token is renewed: read for each request.
    token_file: Option<PathBuf>,
    /// The name in the server's certificate, if it is not that of `address`.
    name: Option<String>,
    tls: Arc<ClientConfig>,
}

impl Door {
    /// What a kubeconfig says: server with its path and the name in its certificate, CA, client certificate or token.
    pub async fn of_kubeconfig(file: &Path, context: Option<&str>) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::read_from(file).with_context(|| format!("no kubeconfig {}", file.display()))?;
        let options = KubeConfigOptions {
            context: context.map(ToOwned::to_owned),
            ..KubeConfigOptions::default()
        };
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        let token = match &config.auth_info.token_file {
            Some(file) => Some(std::fs::read_to_string(file).with_context(|| format!("no token {file}"))?),
            None => None,
        };
        let authority = config.cluster_url.authority().context("a server without host")?;
        Ok(Self {
            address: authority.to_string(),
            prefix: config.cluster_url.path().trim_end_matches('/').to_owned(),
            token,
            token_file: config.auth_info.token_file.as_ref().map(PathBuf::from),
            name: config.tls_server_name.clone(),
            tls: Arc::new(config.rustls_client_config()?),
        })
    }

    /// The same server, as whoever has this token and no certificate.
    pub fn with_token(&self, ca_pem: &str, token: Option<&str>) -> anyhow::Result<Self> {
        let config = ClientConfig::builder().with_root_certificates(roots(ca_pem)?);
        Ok(Self {
            token: token.map(ToOwned::to_owned),
            token_file: None,
            tls: Arc::new(config.with_no_client_auth()),
            ..self.clone()
        })
    }

    /// The same server, with this client certificate and no token.
    pub fn with_certificate(&self, ca_pem: &str, cert_pem: &str, key_pem: &str) -> anyhow::Result<Self> {
        let chain = CertificateDer::pem_slice_iter(cert_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?;
        let config = ClientConfig::builder().with_root_certificates(roots(ca_pem)?);
        Ok(Self {
            token: None,
            token_file: None,
            tls: Arc::new(config.with_client_auth_cert(chain, key)?),
            ..self.clone()
        })
    }

    fn token(&self) -> anyhow::Result<Option<Cow<'_, str>>> {
        Ok(match &self.token_file {
            Some(file) => Some(Cow::Owned(std::fs::read_to_string(file)?)),
            None => self.token.as_deref().map(Cow::Borrowed),
        })
    }

    /// The same server and identity, with other paths.
    pub fn with_prefix(&self, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            ..self.clone()
        }
    }

    /// A TLS connection that speaks `alpn`.
    pub async fn connect(&self, alpn: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let stream = TcpStream::connect(&self.address).await.context("no connection")?;
        stream.set_nodelay(true)?;
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        let name = ServerName::try_from(self.name.as_deref().unwrap_or(host).to_owned())?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(alpn.as_bytes()) {
            bail!("the server does not speak {alpn}");
        }
        Ok(stream)
    }

    /// An HTTP/2 connection, ended when dropped.
    pub async fn open(&self) -> anyhow::Result<Line> {
        let stream = self.connect("h2").await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Ends with an error when the server goes; whoever waits for an answer sees that.
            let _ = connection.await;
        });
        Ok(Line {
            door: self.clone(),
            sender: Sender::Http2(sender),
            _driver: driver,
        })
    }

    /// An HTTP/1.1 connection, which has one request at a time: what Python's clients speak.
    pub async fn open_http1(&self) -> anyhow::Result<Line> {
        let stream = self.connect("http/1.1").await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // As above.
            let _ = connection.await;
        });
        Ok(Line {
            door: self.clone(),
            sender: Sender::Http1(Mutex::new(sender)),
            _driver: driver,
        })
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, request: Request<Vec<u8>>) -> anyhow::Result<Answer> {
        self.open().await?.ask(request).await
    }

    /// GET with headers.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
        self.ask(request(Method::GET, path, headers, &[])?).await
    }

    /// A request with headers and a body.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        self.ask(request(method, path, headers, body)?).await
    }

    /// POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.ask(json(Method::POST, path, body)?).await
    }
}

/// A connection to a [`Door`].
#[derive(Debug)]
pub struct Line {
    door: Door,
    sender: Sender,
    _driver: JoinSet<()>,
}

#[derive(Debug)]
enum Sender {
    Http2(http2::SendRequest<Full<Bytes>>),
    /// Locked until the head of an answer is there: the next request waits its turn.
    Http1(Mutex<http1::SendRequest<Full<Bytes>>>),
}

impl Line {
    /// Sends, and returns when the head of the answer is there.
    pub async fn send(&self, request: Request<Vec<u8>>) -> anyhow::Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let path = format!("{}{path}", self.door.prefix);
        if let Some(token) = self.door.token()? {
            head.headers
                .append("authorization", format!("Bearer {}", token.trim()).parse()?);
        }
        match &self.sender {
            Sender::Http2(sender) => {
                head.uri = format!("https://{}{path}", self.door.address).parse()?;
                let mut sender = sender.clone();
                sender.ready().await?;
                Ok(sender.send_request(Request::from_parts(head, Full::from(body))).await?)
            }
            Sender::Http1(sender) => {
                head.headers.insert("host", self.door.address.parse()?);
                head.uri = path.parse()?;
                let mut sender = sender.lock().await;
                sender.ready().await?;
                Ok(sender.send_request(Request::from_parts(head, Full::from(body))).await?)
            }
        }
    }

    /// Sends and reads the whole answer.
    pub async fn ask(&self, request: Request<Vec<u8>>) -> anyhow::Result<Answer> {
        Answer::read(self.send(request).await?).await
    }
}

/// A whole answer, nothing decoded.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// As they came.
    pub headers: HeaderMap,
    /// As it came.
    pub body: Bytes,
}

impl Answer {
    /// Reads the body to its end; a reset is an error.
    pub async fn read(response: Response<Incoming>) -> anyhow::Result<Self> {
        let (head, body) = response.into_parts();
        Ok(Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// `message` of a Status.
    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    /// A header as text; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// An error unless it is a Kubernetes `Status` with this code, whose message contains all of `words`.
    pub fn expect_status(&self, code: u16, words: &[&str]) -> anyhow::Result<()> {
        let body = self.json();
        let message = self.message();
        let whole = body["kind"] == "Status" && body["apiVersion"] == "v1" && body["code"] == code;
        if self.status != code || !whole || words.iter().any(|word| !message.contains(word)) {
            let body = String::from_utf8_lossy(&self.body);
            bail!(
                "wanted a Status {code} that says {words:?}, got {}: {body}",
                self.status
            );
        }
        Ok(())
    }
}

/// A request with headers and a body.
pub fn request(method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]) -> anyhow::Result<Request<Vec<u8>>> {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    Ok(builder.body(body.to_vec())?)
}

/// A request with a JSON body.
pub fn json(method: Method, path: &str, body: &Value) -> anyhow::Result<Request<Vec<u8>>> {
    request(
        method,
        path,
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
}

fn roots(ca_pem: &str) -> anyhow::Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(roots)
}
