//! A certificate signing request: its key, the names it asks for, and nothing else of it.

use portolan_runtime::pki::{MAX_CSR_BYTES, host_of};
use rcgen::CertificateSigningRequestParams;
use rustls_pki_types::CertificateSigningRequestDer;
use tonic::Status;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use crate::bootstrap::key_hash;

/// A request whose signature proved possession of the key.
#[derive(Debug)]
pub(super) struct Csr {
    pub(super) der: Vec<u8>,
    /// What a bootstrap token is spent on.
    pub(super) key_hash: String,
    hosts: Vec<String>,
}

impl Csr {
    /// Reads PKCS#10 DER.
    pub(super) fn read(der: &[u8]) -> Result<Self, Status> {
        if der.is_empty() || der.len() > MAX_CSR_BYTES {
            let message = format!(
                "csr: has {} bytes, expected a PKCS#10 request in DER of at most {MAX_CSR_BYTES}",
                der.len()
            );
            return Err(Status::invalid_argument(message));
        }
        let unreadable = |why: &str| Status::invalid_argument(format!("csr: {why}: send PKCS#10 in DER"));
        let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| unreadable("cannot be read"))?;
        if !rest.is_empty() {
            return Err(unreadable("has bytes after its end"));
        }
        // Verifies the signature over itself: whoever sent it has the private key.
        CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der))
            .map_err(|_| unreadable("is not signed by the key it is for"))?;
        Ok(Self {
            der: der.to_vec(),
            key_hash: key_hash(request.certification_request_info.subject_pki.raw),
            hosts: hosts_of(&request),
        })
    }

    /// The names asked for, as far as they are allowed; all allowed ones if none are asked for.
    pub(super) fn hosts_within(&self, allowed: &[String]) -> Vec<String> {
        if self.hosts.is_empty() {
            return allowed.to_vec();
        }
        allowed
            .iter()
            .filter(|name| self.hosts.contains(name))
            .cloned()
            .collect()
    }
}

fn hosts_of(request: &X509CertificationRequest<'_>) -> Vec<String> {
    let extensions = request.requested_extensions().into_iter().flatten();
    let names = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.flatten().filter_map(host_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_good_requests_only() {
        let (_, good) = crate::testing::key_and_csr();
        let csr = Csr::read(&good).unwrap();
        assert_eq!(csr.key_hash.len(), 64);
        assert_eq!(csr.hosts_within(&["a".to_owned()]), ["a"]);
        let mut forged = good.clone();
        *forged.last_mut().unwrap() ^= 1;
        let mut longer = good.clone();
        longer.push(0);
        for bad in [Vec::new(), vec![0x30], forged, longer, vec![0; MAX_CSR_BYTES + 1]] {
            let status = Csr::read(&bad).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(status.message().starts_with("csr: "), "{}", status.message());
        }
    }

    #[test]
    fn names_are_granted_within_what_is_allowed() {
        let csr = Csr {
            der: Vec::new(),
            key_hash: String::new(),
            hosts: vec!["a".into(), "evil".into()],
        };
        assert_eq!(csr.hosts_within(&["a".to_owned(), "b".to_owned()]), ["a"]);
    }
}
