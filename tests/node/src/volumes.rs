//! The volumes of one Pod on disk: made before its first container, and kept as they should be while it runs. Files are
//! replaced all at once, by a link, as the kubelet does; tokens are renewed before they end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Container, Pod, ServiceAccount, VolumeMount};
use kube::Api;
use kube::api::PostParams;

use crate::expand::expand;
use crate::field::Place;
use crate::machine::Machine;
use crate::material::Material;
use crate::root::Mount;
use crate::volume::{self, Content, Files, Sources, TokenKey, Tokens};

/// The link that leads to the files of now.
const DATA: &str = "..data";

/// Writes the volumes of one Pod.
pub(crate) struct Writer {
    machine: Arc<Machine>,
    place: Place,
    folder: PathBuf,
    tokens: BTreeMap<TokenKey, Token>,
    /// What was written last, by volume.
    written: BTreeMap<String, Files>,
}

struct Token {
    text: String,
    /// To be replaced from then on.
    due: Timestamp,
}

impl Writer {
    pub(crate) fn new(machine: Arc<Machine>, pod: &Pod, place: Place) -> Self {
        let folder = machine.pod_folder(pod).join("volumes");
        Self {
            machine,
            place,
            folder,
            tokens: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Makes all volumes what they should be now; the error names what is missing.
    pub(crate) async fn refresh(&mut self, pod: &Pod) -> Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let references = volume::references(pod);
        let material = Material::fetch(&self.machine.client, namespace, references).await?;
        for key in volume::tokens(pod) {
            self.renew(pod, key).await?;
        }
        let tokens: Tokens = self
            .tokens
            .iter()
            .map(|(key, token)| (key.clone(), token.text.clone()))
            .collect();
        let sources = Sources {
            pod,
            place: &self.place,
            material: &material,
            tokens: &tokens,
        };
        for one in volume::volumes(pod) {
            let content = volume::content(one, &sources).map_err(anyhow::Error::msg)?;
            let folder = self.folder.join(&one.name);
            let wrong = || format!("writing volume {:?}", one.name);
            match content {
                Content::Host(_) => {}
                Content::Folder => fs::create_dir_all(&folder).with_context(wrong)?,
                Content::Files(files) if self.written.get(&one.name) == Some(&files) => {}
                Content::Files(files) => {
                    replace(&folder, &files).with_context(wrong)?;
                    self.written.insert(one.name.clone(), files);
                }
            }
        }
        Ok(())
    }

    /// Asks for a token, bound to the Pod, if there is none or it is old.
    async fn renew(&mut self, pod: &Pod, key: TokenKey) -> Result<()> {
        let now = Timestamp::now();
        if self.tokens.get(&key).is_some_and(|token| now < token.due) {
            return Ok(());
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let account = account.unwrap_or_else(|| "default".to_owned());
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let accounts = Api::<ServiceAccount>::namespaced(self.machine.client.clone(), namespace);
        let (params, request) = (PostParams::default(), request(pod, &key));
        let answer = accounts.create_token_request(&account, &params, &request).await?;
        let status = answer.status.unwrap_or_default();
        let (Some(text), Some(end)) = (status.token, status.expiration_timestamp) else {
            bail!("the answer has no token for ServiceAccount {account}");
        };
        let life = end.0.duration_since(now).unsigned_abs();
        let age = (life * 4 / 5).min(self.machine.pace.token_age);
        let token = Token { text, due: now + age };
        tracing::debug!(pod = pod.metadata.name, due = %token.due, "a token was issued");
        self.tokens.insert(key, token);
        Ok(())
    }
}

fn request(pod: &Pod, key: &TokenKey) -> TokenRequest {
    let audience = (!key.audience.is_empty()).then(|| key.audience.clone());
    TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audience.into_iter().collect()),
            expiration_seconds: Some(key.seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        ..TokenRequest::default()
    }
}

/// What a container has mounted of its Pod's volumes, which are written.
pub(crate) fn mounts(
    machine: &Machine,
    pod: &Pod,
    container: &Container,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<Mount>> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts.map(|wanted| mount(machine, pod, wanted, variables)).collect()
}

fn mount(machine: &Machine, pod: &Pod, wanted: &VolumeMount, variables: &BTreeMap<String, String>) -> Result<Mount> {
    let mut all = volume::volumes(pod).iter();
    let volume = all.find(|volume| volume.name == wanted.name);
    let volume = volume.with_context(|| format!("no volume is called {:?}", wanted.name))?;
    let base = match &volume.host_path {
        Some(host) => PathBuf::from(&host.path),
        None => machine.pod_folder(pod).join("volumes").join(&volume.name),
    };
    let part = match (&wanted.sub_path, &wanted.sub_path_expr) {
        (Some(part), _) => part.clone(),
        (None, Some(expression)) => expand(expression, variables),
        (None, None) => String::new(),
    };
    let source = within(&base, &part, volume.empty_dir.is_some())?;
    let is_kept = volume.empty_dir.is_none() && volume.host_path.is_none();
    Ok(Mount {
        source,
        target: wanted.mount_path.clone(),
        read_only: is_kept || wanted.read_only.unwrap_or_default(),
    })
}

/// A path in a volume, made as a folder if it is not there and may be.
fn within(base: &Path, part: &str, make: bool) -> Result<PathBuf> {
    if part.is_empty() {
        return Ok(base.to_owned());
    }
    if part.starts_with('/') || part.split('/').any(|part| part == "..") {
        bail!("subPath {part:?} leads out of its volume");
    }
    let path = base.join(part);
    if make && !path.exists() {
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    }
    // Links of the volume itself are followed here, as far as they stay in it.
    let real = path.canonicalize().with_context(|| format!("subPath {part:?}"))?;
    if real.starts_with(base.canonicalize()?) {
        Ok(real)
    } else {
        Err(anyhow!("subPath {part:?} leads out of its volume"))
    }
}

/// Replaces the files of a volume at once: readers see the old ones or the new ones.
fn replace(folder: &Path, files: &Files) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = format!("..{}", Timestamp::now().as_nanosecond());
    for (path, file) in files {
        let path = folder.join(&new).join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut open = fs::File::options();
        // Readable at most, until it is whole.
        let mut opened = open.write(true).create_new(true).mode(file.mode).open(&path)?;
        opened.write_all(&file.bytes)?;
        // What the process' mask took away.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(file.mode))?;
    }
    fs::create_dir_all(folder.join(&new))?;
    let (data, next) = (folder.join(DATA), folder.join("..data_next"));
    let old = fs::read_link(&data).ok();
    symlink(&new, &next)?;
    fs::rename(&next, &data)?;
    let names: BTreeSet<_> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &names {
        match symlink(Path::new(DATA).join(name), folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !names.contains(name.as_str()) {
            fs::remove_file(folder.join(name))?;
        }
    }
    old.map_or(Ok(()), |old| fs::remove_dir_all(folder.join(old)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::File;

    fn files(pairs: &[(&str, &str)]) -> Files {
        let file = |text: &str| File {
            bytes: text.as_bytes().to_vec(),
            mode: 0o640,
        };
        pairs
            .iter()
            .map(|(path, text)| ((*path).to_owned(), file(text)))
            .collect()
    }

    #[test]
    fn files_are_replaced_and_nothing_is_left_of_the_old() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let read = |path: &str| fs::read_to_string(folder.join(path)).ok();
        replace(folder, &files(&[("a", "1"), ("x/y", "2")])).unwrap();
        assert_eq!((read("a"), read("x/y")), (Some("1".to_owned()), Some("2".to_owned())));
        let mode = fs::metadata(folder.join("a")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o640);
        replace(folder, &files(&[("a", "3"), ("b", "4")])).unwrap();
        assert_eq!(
            (read("a"), read("b"), read("x/y")),
            (Some("3".to_owned()), Some("4".to_owned()), None)
        );
        // a, b, ..data and the folder that it leads to.
        assert_eq!(fs::read_dir(folder).unwrap().count(), 4);
        replace(folder, &Files::new()).unwrap();
        assert_eq!(read("a"), None);
    }

    #[test]
    fn parts_of_volumes_stay_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("v");
        replace(&volume, &files(&[("a", "1")])).unwrap();
        symlink("/etc", volume.join("out")).unwrap();
        assert_eq!(within(&volume, "", false).unwrap(), volume);
        assert!(within(&volume, "a", false).unwrap().is_file());
        for bad in ["../v", "/etc", "out", "missing"] {
            assert!(within(&volume, bad, false).is_err(), "{bad}");
        }
        assert!(within(&volume, "made/here", true).unwrap().is_dir());
    }
}
