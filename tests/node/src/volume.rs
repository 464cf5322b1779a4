//! What the volumes of a Pod hold, of what the Pod says and what it refers to. Pure; `volumes` writes it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use crate::field::{Place, field};
use crate::material::{Data, Material, Reference};

/// Mode of files where the Pod says nothing.
const DEFAULT_MODE: i32 = 0o644;
/// Seconds that a token lives where the Pod says nothing.
const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

/// The files of a volume by their paths in it.
pub(crate) type Files = BTreeMap<String, File>;

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// These files, which the node keeps as they should be.
    Files(Files),
    /// A folder of the Pod's own.
    Folder,
    /// A file or a folder of this machine.
    Host(String),
}

/// A token that a volume holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenKey {
    /// Empty: that of the API server itself.
    pub(crate) audience: String,
    pub(crate) seconds: i64,
}

/// Tokens by what was asked for.
pub(crate) type Tokens = BTreeMap<TokenKey, String>;

/// What volumes are made of.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) place: &'a Place,
    pub(crate) material: &'a Material,
    pub(crate) tokens: &'a Tokens,
}

/// The volumes of a Pod.
pub(crate) fn volumes(pod: &Pod) -> &[Volume] {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    volumes.unwrap_or_default()
}

/// What the volumes of a Pod refer to.
pub(crate) fn references(pod: &Pod) -> Vec<Reference> {
    let own = volumes(pod).iter().flat_map(|volume| {
        let map = volume
            .config_map
            .as_ref()
            .map(|map| Reference::ConfigMap(map.name.clone()));
        let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.clone());
        [map, secret.map(Reference::Secret)]
    });
    let projected = volumes(pod).iter().flat_map(projections).flat_map(|source| {
        let map = source
            .config_map
            .as_ref()
            .map(|map| Reference::ConfigMap(map.name.clone()));
        let secret = source
            .secret
            .as_ref()
            .map(|secret| Reference::Secret(secret.name.clone()));
        [map, secret]
    });
    own.chain(projected).flatten().collect()
}

/// The tokens that the volumes of a Pod hold.
pub(crate) fn tokens(pod: &Pod) -> Vec<TokenKey> {
    let sources = volumes(pod).iter().flat_map(projections);
    sources
        .filter_map(|source| source.service_account_token.as_ref())
        .map(token_key)
        .collect()
}

/// What a volume is; the error says what is missing.
pub(crate) fn content(volume: &Volume, sources: &Sources<'_>) -> Result<Content, String> {
    if let Some(host) = &volume.host_path {
        return Ok(Content::Host(host.path.clone()));
    }
    if volume.empty_dir.is_some() {
        return Ok(Content::Folder);
    }
    let mut files = Files::new();
    if let Some(map) = &volume.config_map {
        let reference = Reference::ConfigMap(map.name.clone());
        let data = sources.material.all(&reference, map.optional.unwrap_or_default())?;
        let picked = Picked::new(map.items.as_deref(), map.default_mode, map.optional);
        picked.add(&mut files, &reference, data)?;
    } else if let Some(secret) = &volume.secret {
        let reference = Reference::Secret(secret.secret_name.clone().unwrap_or_default());
        let data = sources.material.all(&reference, secret.optional.unwrap_or_default())?;
        let picked = Picked::new(secret.items.as_deref(), secret.default_mode, secret.optional);
        picked.add(&mut files, &reference, data)?;
    } else if let Some(downward) = &volume.downward_api {
        add_fields(&mut files, downward.items.as_deref(), downward.default_mode, sources)?;
    } else if let Some(projected) = &volume.projected {
        for source in projected.sources.iter().flatten() {
            add_projection(&mut files, source, projected.default_mode, sources)?;
        }
    } else {
        return Err(format!(
            "volume {:?}: this node has no volumes of its kind",
            volume.name
        ));
    }
    match files.keys().find(|path| !is_inside(path)) {
        Some(path) => Err(format!("volume {:?}: {path:?} leads out of it", volume.name)),
        None => Ok(Content::Files(files)),
    }
}

fn projections(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    let projected = volume.projected.as_ref();
    projected
        .into_iter()
        .flat_map(|projected| projected.sources.iter().flatten())
}

fn token_key(token: &ServiceAccountTokenProjection) -> TokenKey {
    TokenKey {
        audience: token.audience.clone().unwrap_or_default(),
        seconds: token.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS),
    }
}

fn add_projection(
    files: &mut Files,
    source: &VolumeProjection,
    default_mode: Option<i32>,
    sources: &Sources<'_>,
) -> Result<(), String> {
    if let Some(map) = &source.config_map {
        let reference = Reference::ConfigMap(map.name.clone());
        let data = sources.material.all(&reference, map.optional.unwrap_or_default())?;
        Picked::new(map.items.as_deref(), default_mode, map.optional).add(files, &reference, data)
    } else if let Some(secret) = &source.secret {
        let reference = Reference::Secret(secret.name.clone());
        let data = sources.material.all(&reference, secret.optional.unwrap_or_default())?;
        Picked::new(secret.items.as_deref(), default_mode, secret.optional).add(files, &reference, data)
    } else if let Some(downward) = &source.downward_api {
        add_fields(files, downward.items.as_deref(), default_mode, sources)
    } else if let Some(token) = &source.service_account_token {
        let key = token_key(token);
        let bytes = sources
            .tokens
            .get(&key)
            .ok_or("there is no token yet")?
            .clone()
            .into_bytes();
        let mode = mode(None, default_mode);
        files.insert(token.path.clone(), File { bytes, mode });
        Ok(())
    } else {
        Err("this node has no projections of a kind that the Pod asks for".to_owned())
    }
}

/// Which keys of an object become which files.
struct Picked<'a> {
    items: Option<&'a [KeyToPath]>,
    default_mode: Option<i32>,
    optional: bool,
}

impl<'a> Picked<'a> {
    fn new(items: Option<&'a [KeyToPath]>, default_mode: Option<i32>, optional: Option<bool>) -> Self {
        Self {
            items,
            default_mode,
            optional: optional.unwrap_or_default(),
        }
    }

    fn add(&self, files: &mut Files, reference: &Reference, data: Option<&Data>) -> Result<(), String> {
        let Some(data) = data else { return Ok(()) };
        let Some(items) = self.items else {
            let mode = mode(None, self.default_mode);
            files.extend(data.iter().map(|(key, bytes)| {
                (
                    key.clone(),
                    File {
                        bytes: bytes.clone(),
                        mode,
                    },
                )
            }));
            return Ok(());
        };
        for item in items {
            let mode = mode(item.mode, self.default_mode);
            match data.get(&item.key) {
                Some(bytes) => drop(files.insert(
                    item.path.clone(),
                    File {
                        bytes: bytes.clone(),
                        mode,
                    },
                )),
                None if self.optional => {}
                None => return Err(format!("couldn't find key {} in {reference}", item.key)),
            }
        }
        Ok(())
    }
}

fn add_fields(
    files: &mut Files,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    sources: &Sources<'_>,
) -> Result<(), String> {
    for item in items.unwrap_or_default() {
        let Some(of) = &item.field_ref else {
            return Err(format!("{}: this node knows nothing of resources", item.path));
        };
        let bytes = field(&of.field_path, sources.pod, sources.place)?.into_bytes();
        let mode = mode(item.mode, default_mode);
        files.insert(item.path.clone(), File { bytes, mode });
    }
    Ok(())
}

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).unwrap_or(DEFAULT_MODE).cast_unsigned() & 0o777
}

fn is_inside(path: &str) -> bool {
    !path.is_empty() && !path.starts_with(['/', '.']) && path.split('/').all(|part| !part.is_empty() && part != "..")
}

#[cfg(test)]
mod tests;
