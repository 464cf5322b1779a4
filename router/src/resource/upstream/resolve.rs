//! From a host's name to its addresses, by the system's resolver. Caller: `dialer`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

/// For an answer: what is known from before serves if there is none.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

type Lookup = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Asks for the addresses of a name. A function, so that tests can say what a name means.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Lookup>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// The operating system's, with its hosts file and search domains.
    pub(super) fn system() -> Self {
        let lookup = |host: String, port| {
            async move { tokio::net::lookup_host((host, port)).await.map(Iterator::collect) }.boxed()
        };
        Self(Arc::new(lookup))
    }

    #[cfg(test)]
    pub(super) fn scripted(answer: impl Fn(&str, u16) -> Vec<SocketAddr> + Send + Sync + 'static) -> Self {
        let lookup = move |host: String, port| std::future::ready(Ok(answer(&host, port))).boxed();
        Self(Arc::new(lookup))
    }

    /// Says nothing.
    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self(Arc::new(|_, _| std::future::pending().boxed()))
    }

    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = (self.0)(host.to_owned(), port);
        match tokio::time::timeout(LOOKUP_TIMEOUT, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(io::Error::other(format!(
                "the resolver did not answer for {host} within {LOOKUP_TIMEOUT:?}"
            ))),
        }
    }
}
