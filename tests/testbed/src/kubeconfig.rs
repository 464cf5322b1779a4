//! Kubeconfig files: one server, one user, everything embedded.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Identity;

/// A kubeconfig of `identity` for the server at `url`, as YAML.
pub(crate) fn render(cluster: &str, url: &str, ca_pem: &str, identity: &Identity) -> String {
    let [ca, cert, key] = [ca_pem, &identity.cert_pem, &identity.key_pem].map(|pem| STANDARD.encode(pem));
    let mut yaml = String::from("apiVersion: v1\nkind: Config\n");
    let _ = writeln!(yaml, "current-context: {cluster}");
    let _ = writeln!(
        yaml,
        "contexts:\n- name: {cluster}\n  context: {{cluster: {cluster}, user: {cluster}-admin}}"
    );
    let _ = writeln!(yaml, "clusters:\n- name: {cluster}\n  cluster:\n    server: {url}");
    let _ = writeln!(yaml, "    certificate-authority-data: {ca}");
    let _ = writeln!(
        yaml,
        "users:\n- name: {cluster}-admin\n  user:\n    client-certificate-data: {cert}"
    );
    let _ = writeln!(yaml, "    client-key-data: {key}");
    yaml
}
