//! What libraries say of a member's connection, in words for the people who read an answer: what is wrong there, and what mends it.
//! Pure. Callers: whoever makes an error of it, which names the member.

use std::fmt::Display;

/// What a library's text has in it, and what is said instead.
const SAID: [(&str, &str); 6] = [
    (
        "without sending TLS close_notify",
        "the other end closed the connection without notice",
    ),
    (
        "UnknownIssuer",
        "its certificate is of no CA in the member's CA bundle (spec.caBundle of the MemberCluster)",
    ),
    ("certificate expired", "its certificate has expired"),
    ("Expired", "its certificate has expired"),
    (
        "not valid yet",
        "its certificate is not valid yet, by this router's clock",
    ),
    (
        "NotValidYet",
        "its certificate is not valid yet, by this router's clock",
    ),
];
/// Libraries send people to their manuals.
const LINKS: [&str; 2] = ["https://", "http://"];

/// The error, in plain words where there are any.
pub(super) fn plainly(error: &impl Display) -> String {
    let text = error.to_string();
    let known = SAID.iter().find(|(part, _)| text.contains(part));
    if let Some((_, said)) = known {
        return (*said).to_owned();
    }
    match LINKS.iter().find_map(|link| text.find(link)) {
        Some(at) => text[..at].trim_end_matches([' ', ':', '(', ',']).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error};

    use super::*;

    #[test]
    fn errors_are_sentences_without_a_library_in_them() {
        let bad = |why: CertificateError| plainly(&Error::InvalidCertificate(why));
        assert!(bad(CertificateError::UnknownIssuer).contains("spec.caBundle"));
        assert_eq!(bad(CertificateError::Expired), "its certificate has expired");
        assert!(bad(CertificateError::NotValidYet).contains("not valid yet, by this router's clock"));
        let eof = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
        assert_eq!(plainly(&eof), SAID[0].1);
        assert_eq!(plainly(&"it broke: https://docs.example/x"), "it broke");
        assert_eq!(plainly(&"connection refused"), "connection refused");
    }
}
