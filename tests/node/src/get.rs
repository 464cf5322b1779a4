//! A GET as the kubelet sends it to containers: whatever certificate they show, and any answer below 400 is good.

use std::sync::Arc;

use http::Request;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use portolan_runtime::tls::install_crypto_provider;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What containers see of who asks.
const AGENT: &str = "kube-probe/1.36";

/// Where and what to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Get {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// Asks; the error says what was answered instead of a success.
pub(crate) async fn get(get: &Get) -> Result<(), String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}:{}{}: {error}", get.host, get.port, get.path);
    let stream = TcpStream::connect((get.host.as_str(), get.port)).await;
    let stream = stream.map_err(|error| wrong(&error))?;
    let status = if get.tls {
        let name = ServerName::try_from(get.host.clone()).map_err(|error| wrong(&error))?;
        let stream = TlsConnector::from(Arc::new(trusting())).connect(name, stream).await;
        ask(get, stream.map_err(|error| wrong(&error))?).await
    } else {
        ask(get, stream).await
    };
    match status.map_err(|error| wrong(&error))? {
        200..400 => Ok(()),
        bad => Err(wrong(&format!("status code {bad}"))),
    }
}

async fn ask(get: &Get, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<u16, String> {
    let path = if get.path.starts_with('/') {
        get.path.clone()
    } else {
        format!("/{}", get.path)
    };
    let mut request = Request::get(path)
        .header("User-Agent", AGENT)
        .header("Connection", "close");
    // A header of this name replaces ours.
    let is_host = |name: &str| name.eq_ignore_ascii_case("host");
    if !get.headers.iter().any(|(name, _)| is_host(name)) {
        request = request.header("Host", format!("{}:{}", get.host, get.port));
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let (mut sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let mut sending = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = &mut sending => answer,
        // Its end may be seen before the answer that it brought.
        _ = connection => sending.await,
    };
    let answer = answer.map_err(|error| error.to_string())?;
    Ok(answer.status().as_u16())
}

fn trusting() -> ClientConfig {
    install_crypto_provider();
    let provider = CryptoProvider::get_default()
        .expect("a provider was just installed")
        .clone();
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth()
}

/// Takes any certificate: what is probed is the address, as the kubelet does.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use portolan_runtime::pki::CertificateAuthority;
    use portolan_runtime::tls::{ALPN_HTTP1, ClientAuth, Identity, IdentityStore, server_config};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Answers one request with a status code; what it was asked.
    async fn answered(tls: bool, code: u16, headers: &[(&str, &str)]) -> (Result<(), String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let get = Get {
            tls,
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
            path: "healthz?a=b".to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        };
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            if tls {
                answer(acceptor().accept(stream).await.unwrap(), code).await
            } else {
                answer(stream, code).await
            }
        };
        tokio::join!(super::get(&get), serve)
    }

    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, code: u16) -> String {
        let mut head = vec![0; 1024];
        let length = stream.read(&mut head).await.unwrap();
        let text = format!("HTTP/1.1 {code} -\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    }

    fn acceptor() -> TlsAcceptor {
        let ca = CertificateAuthority::generate("nobody knows it").unwrap();
        let issued = ca
            .issue_server("x", &["elsewhere.example.com"], std::time::Duration::from_mins(1))
            .unwrap();
        let identity = Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap();
        server_config(IdentityStore::new(identity), ClientAuth::None, ALPN_HTTP1)
            .unwrap()
            .into()
    }

    #[tokio::test]
    async fn answers_below_400_are_good() {
        let (outcome, head) = answered(false, 204, &[("X-Mine", "1"), ("Host", "web")]).await;
        assert_eq!(outcome, Ok(()));
        let head = head.to_ascii_lowercase();
        assert!(
            head.starts_with("get /healthz?a=b http/1.1") && head.contains("x-mine: 1"),
            "{head}"
        );
        assert!(head.contains("host: web\r\n") && !head.contains("host: 127"), "{head}");
        assert_eq!(answered(false, 302, &[]).await.0, Ok(()));
        assert!(answered(false, 503, &[]).await.0.unwrap_err().contains("503"));
    }

    #[tokio::test]
    async fn any_certificate_will_do() {
        assert_eq!(answered(true, 200, &[]).await.0, Ok(()));
    }
}
