//! Kubeconfig files: one server, one user, everything embedded, readable by the owner only.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
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

/// Writes a file that holds a secret: mode 0600 from its first byte.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let _ = fs::remove_file(path);
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())
    };
    write().with_context(|| format!("writing {}", path.display()))
}
