//! The address of one API server.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names::is_dns_subdomain;
#[cfg(feature = "schema")]
use crate::schema::{DNS_SUBDOMAIN, rules};

/// Port of an `https` URL that names none.
const HTTPS_PORT: u16 = 443;

/// One API server of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// https://host or https://host:port, without a path.
    #[cfg_attr(feature = "schema", schemars(length(min = 9, max = 512), extend("x-kubernetes-validations" = rules([
        ("isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != ''", "url must be https://host or https://host:port"),
        ("isURL(self) && url(self).getEscapedPath() in ['', '/'] && url(self).getQuery().size() == 0 && !self.contains('#') && !self.contains('?') && !self.contains('@')",
         "url must have no path, query, fragment or user: requests bring their own path"),
    ]))))]
    pub url: String,
    /// Name that the server's certificate must carry, where that is not the url's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    pub tls_server_name: Option<String>,
}

/// Where an [`Endpoint`] is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// DNS name or IP address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Why a url is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// Another scheme, or none. Members are spoken to over TLS only.
    #[error("{0:?} must begin with https://")]
    Scheme(String),
    /// User, path, query or fragment.
    #[error(
        "{0:?} must be https://host or https://host:port with nothing after it and no user: requests bring their own path"
    )]
    Extra(String),
    /// No host, or none that could be resolved.
    #[error("{0:?} must name a host: a DNS name in lower case, an IPv4 address or an IPv6 address in brackets")]
    Host(String),
    /// Not a TCP port.
    #[error("{0:?} must have a port from 1 to 65535, or none for 443")]
    Port(String),
}

impl Endpoint {
    /// Host and port of the url.
    pub fn address(&self) -> Result<Address, EndpointError> {
        let url = || self.url.clone();
        let rest = self
            .url
            .strip_prefix("https://")
            .ok_or_else(|| EndpointError::Scheme(url()))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@', '\\']) {
            return Err(EndpointError::Extra(url()));
        }
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => (host, port),
            Some(_) => return Err(EndpointError::Host(url())),
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        if !host.contains(':') && !is_dns_subdomain(host) {
            return Err(EndpointError::Host(url()));
        }
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().unwrap_or(0),
            None if port.is_empty() => HTTPS_PORT,
            _ => 0,
        };
        if port == 0 {
            Err(EndpointError::Port(url()))
        } else {
            Ok(Address {
                host: host.to_owned(),
                port,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<(String, u16), EndpointError> {
        let endpoint = Endpoint {
            url: url.to_owned(),
            tls_server_name: None,
        };
        endpoint.address().map(|Address { host, port }| (host, port))
    }

    #[test]
    fn reads_hosts_and_ports() {
        let cases = [
            ("https://east.example", ("east.example", 443)),
            ("https://10.0.0.1:6443/", ("10.0.0.1", 6443)),
            ("https://[fd00::1]:6443", ("fd00::1", 6443)),
            ("https://[::1]", ("::1", 443)),
        ];
        for (url, (host, port)) in cases {
            assert_eq!(address(url), Ok((host.to_owned(), port)), "{url}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        use EndpointError::{Extra, Host, Port, Scheme};
        type Kind = fn(String) -> EndpointError;
        let cases: [(&str, Kind); 17] = [
            ("", Scheme),
            ("http://a", Scheme),
            ("HTTPS://a", Scheme),
            ("https://a/b", Extra),
            ("https://a//", Extra),
            ("https://a?b", Extra),
            ("https://a#b", Extra),
            ("https://user@a", Extra),
            ("https://", Host),
            ("https://:443", Host),
            ("https://a b", Host),
            ("https://[a]", Host),
            ("https://fd00::1", Port),
            ("https://a:", Port),
            ("https://a:0", Port),
            ("https://a:+1", Port),
            ("https://a:65536", Port),
        ];
        for (url, kind) in cases {
            assert_eq!(address(url), Err(kind(url.to_owned())), "{url}");
        }
    }
}
