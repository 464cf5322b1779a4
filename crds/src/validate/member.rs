//! The rules of a MemberCluster.

use std::time::Duration as StdDuration;

use rustls_pki_types::pem::{PemObject, SectionKind};

use super::thresholds::{Thresholds, check_time};
use super::{Problem, Problems, Reason};
use crate::cluster::{Access, Breaker, HandState, HeldBreaker, IdentityMode, LONGEST_BY_HAND, MemberClusterSpec};
use crate::names::{is_dns_label, is_dns_subdomain};

/// Everything wrong with the MemberCluster `name`; empty if it can be served.
pub fn validate_member(name: &str, spec: &MemberClusterSpec) -> Vec<Problem> {
    let mut problems = Problems::default();
    if !is_dns_label(name) {
        let message = "must be a DNS label of at most 63 characters, because it is a segment of /clusters/<name>";
        problems.invalid(
            "metadata.name",
            format!("{name:?} {message}: register the cluster under another name"),
        );
    }
    check_endpoints(&mut problems, spec);
    match &spec.ca_bundle {
        Some(bundle) => check_bundle(&mut problems, &bundle.0),
        None => problems.not_implemented(
            "spec.caBundle",
            "the agent does not report its API server's CA yet: give its certificates, as portolanctl join does",
        ),
    }
    if let Some(breaker) = &spec.breaker {
        check_breaker(&mut problems, breaker);
    }
    for (index, namespace) in spec.allowed_namespaces.iter().enumerate() {
        if !is_dns_label(namespace) {
            let message = format!("{namespace:?} is no name of a namespace");
            problems.invalid(format!("spec.allowedNamespaces[{index}]"), message);
        }
    }
    if spec.access == Access::Tunnel {
        problems.not_implemented("spec.access", "Tunnel is not served yet: use Direct");
    }
    if spec.identity.mode == IdentityMode::ServiceAccount {
        problems.not_implemented(
            "spec.identity.mode",
            "ServiceAccount is not served yet: use Impersonate",
        );
    }
    problems.0
}

fn check_endpoints(problems: &mut Problems, spec: &MemberClusterSpec) {
    if spec.endpoints.is_empty() {
        problems.not_implemented(
            "spec.endpoints",
            "the agent does not report the address of its API server yet: give at least one, as portolanctl join does",
        );
    }
    let urls: Vec<String> = spec.endpoints.iter().map(|endpoint| endpoint.url.clone()).collect();
    for (index, endpoint) in spec.endpoints.iter().enumerate() {
        let field = format!("spec.endpoints[{index}]");
        if let Err(error) = endpoint.address() {
            problems.invalid(format!("{field}.url"), error);
        }
        if urls[..index].contains(&endpoint.url) {
            let message = format!("{:?} is there already: remove one", endpoint.url);
            problems.add(format!("{field}.url"), Reason::Duplicate, message);
        }
        if let Some(name) = endpoint.tls_server_name.as_ref().filter(|name| !is_dns_subdomain(name)) {
            let message = format!("{name:?} must be a DNS name that the server's certificate carries");
            problems.invalid(format!("{field}.tlsServerName"), message);
        }
    }
}

/// A bundle holds certificates and nothing else: a key in it would be readable by everyone who reads MemberClusters.
fn check_bundle(problems: &mut Problems, bundle: &[u8]) {
    const FIELD: &str = "spec.caBundle";
    let mut certificates = 0;
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bundle) {
        match section {
            Ok((SectionKind::Certificate, der)) if is_der_sequence(&der) => certificates += 1,
            Ok((SectionKind::Certificate, _)) => {
                problems.invalid(
                    FIELD,
                    format!("certificate {} is not DER in PEM: paste it again", certificates + 1),
                );
                return;
            }
            Ok(_) => {
                problems.invalid(
                    FIELD,
                    "contains something other than certificates: leave keys and requests out of it",
                );
                return;
            }
            Err(error) => {
                problems.invalid(
                    FIELD,
                    format!("is not PEM ({error:?}): give base64 of PEM certificates"),
                );
                return;
            }
        }
    }
    if certificates == 0 {
        problems.invalid(
            FIELD,
            "contains no certificate: give base64 of PEM certificates, as in a kubeconfig",
        );
    }
}

/// Whether `der` is one whole ASN.1 SEQUENCE: a cut or pasted-over certificate is not. X.509 itself is TLS's to judge.
fn is_der_sequence(der: &[u8]) -> bool {
    let [0x30, length, rest @ ..] = der else { return false };
    let octets = usize::from(length & 0x7f);
    match length {
        0..=0x7f => rest.len() == octets,
        _ if octets > size_of::<usize>() || rest.len() < octets => false,
        _ => {
            let (head, body) = rest.split_at(octets);
            head.iter().fold(0, |length, octet| length << 8 | usize::from(*octet)) == body.len()
        }
    }
}

fn check_breaker(problems: &mut Problems, breaker: &Breaker) {
    let thresholds = Thresholds {
        consecutive_failures: breaker.consecutive_failures.map(i64::from),
        failure_ratio: breaker.failure_ratio,
        min_requests: breaker.min_requests.map(i64::from),
        window: breaker.window.as_ref(),
        open_for: breaker.open_for.as_ref(),
        max_open_for: breaker.max_open_for.as_ref(),
    };
    thresholds.check(problems, "spec.breaker");
    check_time(problems, "spec.breaker.slowUnary", breaker.slow_unary.as_ref());
    check_time(problems, "spec.breaker.slowList", breaker.slow_list.as_ref());
    for (index, held) in breaker.by_hand.iter().enumerate() {
        let field = format!("spec.breaker.byHand[{index}]");
        let before = breaker.by_hand[..index].iter();
        if before.clone().any(|other| other.traffic_class == held.traffic_class) {
            let message = "is the second of its trafficClass: remove one";
            problems.add(format!("{field}.trafficClass"), Reason::Duplicate, message);
        }
        if let Some((end, message)) = wrong_time(held) {
            problems.invalid(format!("{field}.{end}"), message);
        }
    }
}

/// The field that is wrong, and why.
fn wrong_time(held: &HeldBreaker) -> Option<(&'static str, &'static str)> {
    let Some(since) = &held.since else {
        let message =
            "must say when it was said: what is held ends at most 720h later, and routers carry out a reset once";
        return Some(("since", message));
    };
    let Some(until) = &held.until else {
        let message = "must say when it ends: what is held by hand ends by itself";
        return (held.state != HandState::Reset).then_some(("until", message));
    };
    let lasts = StdDuration::try_from(until.0.duration_since(since.0)).unwrap_or_default();
    (lasts.is_zero() || lasts > LONGEST_BY_HAND).then_some((
        "until",
        "must be later than since, by 720h at most: what is held by hand is no setting",
    ))
}
