//! The way to the hub: TLS with the pinned hub CA, our client certificate once there is one. Callers: `enroll` (with and
//! without certificate) and `subscribe`.

use std::sync::Arc;

use portolan_runtime::grpc::{self, AddressError};
use portolan_runtime::tls::{self, ALPN_GRPC, IdentityStore, TlsError, TrustStore};
use rustls::ClientConfig;
use tonic::transport::Channel;

/// A CallerView with ten thousand namespaces is under one megabyte.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Where the hub is and who we are to it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HubLink {
    address: Arc<str>,
    tls: Arc<ClientConfig>,
    identity: Arc<IdentityStore>,
}

impl HubLink {
    /// `address` is `host:port`; `ca` the only one trusted for it.
    pub(crate) fn new(address: &str, ca: Arc<TrustStore>, identity: Arc<IdentityStore>) -> Result<Self, TlsError> {
        let tls = tls::client_config(ca, Some(identity.clone()), ALPN_GRPC)?;
        Ok(Self {
            address: address.into(),
            tls,
            identity,
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn identity(&self) -> &Arc<IdentityStore> {
        &self.identity
    }

    /// A connection of its own, made at its first use with the identity of that moment.
    pub(crate) fn channel(&self) -> Result<Channel, AddressError> {
        grpc::channel(&self.address, None, self.tls.clone())
    }
}
