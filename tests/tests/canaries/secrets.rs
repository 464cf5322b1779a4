//! Every secret of a fleet, as what to look for: parts that are long enough to be nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};

use crate::Ground;

/// Name for people → what must not be found.
pub(crate) type Secrets = BTreeMap<String, String>;

/// Shortest part that is looked for.
const LENGTH: usize = 24;
/// How each key of curve P-256 begins in PKCS #8.
const PKCS8_OF_P256: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg";

/// What files of the fleet and Secrets of the clusters hold now.
pub(crate) async fn kept(ground: &Ground) -> Secrets {
    let mut secrets = Secrets::new();
    let dir = ground.world.fleet.dir();
    for folder in [dir.to_path_buf(), dir.join("router-state")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && path.extension().is_none_or(|end| end != "log") {
                of_file(&mut secrets, &path);
            }
        }
    }
    for cluster in ["hub", "east", "west"] {
        let client = ground.world.cluster(cluster).client().await.unwrap();
        let of_system = Api::<Secret>::namespaced(client, "portolan-system");
        for secret in of_system.list(&ListParams::default()).await.unwrap() {
            let name = secret.metadata.name.unwrap();
            for (key, value) in secret.data.unwrap_or_default() {
                let text = String::from_utf8(value.0).unwrap();
                of_text(&mut secrets, &format!("{cluster}/{name}/{key}"), &text);
            }
        }
    }
    secrets
}

fn of_file(secrets: &mut Secrets, path: &Path) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    of_text(secrets, &name, &text);
    // Keys in kubeconfigs are base64 of PEM.
    for line in text.lines() {
        if let Some(data) = line.trim().strip_prefix("client-key-data: ") {
            secrets.insert(format!("{name}: client-key-data"), middle(data));
            of_text(
                secrets,
                &name,
                &String::from_utf8(STANDARD.decode(data).unwrap()).unwrap(),
            );
        }
    }
}

/// JSON Web Tokens, bootstrap tokens and private keys in a text.
pub(crate) fn of_text(secrets: &mut Secrets, name: &str, text: &str) {
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c))) {
        let parts: Vec<&str> = word.split('.').collect();
        if let [head, claims, signature] = parts[..]
            && head.starts_with("eyJ")
            && claims.len() > LENGTH
        {
            secrets.insert(format!("{name}: claims of a token {}", &signature[..6]), middle(claims));
            secrets.insert(
                format!("{name}: signature of a token {}", &signature[..6]),
                middle(signature),
            );
        }
        if let [id, half] = parts[..]
            && id.len() == 6
            && half.len() == 32
        {
            secrets.insert(format!("{name}: bootstrap token {id}"), half.to_owned());
        }
    }
    let mut within = None;
    for line in text.lines() {
        if line.contains("PRIVATE KEY-----") {
            within = line.starts_with("-----BEGIN").then(Vec::new);
            continue;
        }
        let Some(key) = within.as_mut().filter(|_| line.len() > LENGTH) else {
            continue;
        };
        key.push(line);
        if let Some(part) = secret_of(key) {
            secrets.insert(format!("{name}: private key, {}…", &line[..4]), part);
        }
    }
}

/// What the last line of a private key adds that is no public key: certificates hold that.
fn secret_of(lines: &[&str]) -> Option<String> {
    let of_p256 = lines[0].starts_with(PKCS8_OF_P256);
    match lines {
        // The end of the secret number, of 32 bytes from the 37th on.
        [_, second] if of_p256 => Some(second[..LENGTH].to_owned()),
        _ if of_p256 => None,
        [.., last] => Some(middle(last)),
        [] => None,
    }
}

/// What is planted by the tests themselves.
pub(crate) fn planted(secrets: &mut Secrets, name: &str) -> String {
    let canary = format!("canary{:032x}", rand::random::<u128>());
    secrets.insert(format!("planted: {name}"), canary.clone());
    canary
}

fn middle(text: &str) -> String {
    let spare = text.len().saturating_sub(LENGTH) / 2;
    text[spare..text.len() - spare].to_owned()
}
