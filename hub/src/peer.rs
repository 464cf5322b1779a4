//! Who is on the other end of a connection, as its client certificate says. Callers: the services.

use std::net::SocketAddr;

use portolan_runtime::pki::{Subject, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::subscription::Subscription;
use rustls_pki_types::CertificateDer;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Request, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bootstrap::key_hash;

/// Who is on the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    /// What the client certificate says, which chains to the hub's CA.
    pub(crate) subject: Option<Subject>,
    /// The client certificate itself, and those that it was shown with.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

impl Peer {
    /// The peer of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let remote = connection.and_then(|connection| connection.get_ref().remote_addr());
        let chain = connection.and_then(TlsConnectInfo::peer_certs);
        let chain = chain.map(|chain| chain.to_vec()).unwrap_or_default();
        Ok(Self {
            remote: remote.ok_or_else(|| Status::internal("connection without a peer"))?,
            // The handshake verified it; an unreadable one is nobody.
            subject: chain.first().and_then(|der| subject_of(der).ok()),
            chain,
        })
    }

    /// Hash of the client certificate's key, as pins and bootstrap tokens know it.
    pub(crate) fn key_hash(&self) -> Result<String, Status> {
        let certificate = self.chain.first();
        let certificate = certificate.and_then(|der| X509Certificate::from_der(der).ok());
        let (_, certificate) =
            certificate.ok_or_else(|| Status::unauthenticated("a client certificate of the hub CA is needed"))?;
        Ok(key_hash(certificate.public_key().raw))
    }

    /// What the client certificate lets a router be told.
    pub(crate) fn subscription(&self) -> Result<Subscription, Status> {
        let uris = self.subject.as_ref().map(|subject| subject.uris.as_slice());
        Subscription::from_uris(uris.unwrap_or_default()).map_err(|error| {
            Status::permission_denied(format!(
                "the certificate's subscription: {error}; enrol the router anew with a token from portolanctl router-token"
            ))
        })
    }

    /// Whom the client certificate names.
    pub(crate) fn identity(&self) -> Result<Identity, Status> {
        let Some(subject) = &self.subject else {
            return Err(Status::unauthenticated(
                "a client certificate of the hub CA is needed: enrol first",
            ));
        };
        let identity = Identity::of_certificate(&subject.issuer, &subject.common_name, &subject.organizations);
        identity.ok_or_else(|| {
            let (name, issuer) = (&subject.common_name, &subject.issuer);
            Status::permission_denied(format!(
                "certificate subject {name:?}, issued by {issuer:?}, is no identity"
            ))
        })
    }
}
