//! The environment of a container, its command and its arguments, of what the Pod says and what it refers to. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use crate::expand::expand;
use crate::field::{Place, field};
use crate::image::Image;
use crate::material::{Data, Material, Reference};
use crate::root;

/// What a container's variables are made of.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) place: &'a Place,
    pub(crate) material: &'a Material,
    /// Host and port of the API server, as Pods reach it.
    pub(crate) api_server: (&'a str, u16),
}

/// What the variables of a container refer to.
pub(crate) fn references(container: &Container) -> Vec<Reference> {
    let from = container.env_from.iter().flatten().flat_map(|from| {
        let map = from
            .config_map_ref
            .as_ref()
            .map(|one| Reference::ConfigMap(one.name.clone()));
        let secret = from.secret_ref.as_ref().map(|one| Reference::Secret(one.name.clone()));
        [map, secret]
    });
    let single = container.env.iter().flatten().flat_map(|variable| {
        let from = variable.value_from.as_ref();
        let map = from.and_then(|from| from.config_map_key_ref.as_ref());
        let secret = from.and_then(|from| from.secret_key_ref.as_ref());
        [
            map.map(|key| Reference::ConfigMap(key.name.clone())),
            secret.map(|key| Reference::Secret(key.name.clone())),
        ]
    });
    from.chain(single).flatten().collect()
}

/// All variables of a container. The error says which one cannot be had.
pub(crate) fn environment(container: &Container, sources: &Sources<'_>) -> Result<BTreeMap<String, String>, String> {
    let (host, port) = sources.api_server;
    let mut variables = BTreeMap::from(
        [
            ("PATH", root::PATH.to_owned()),
            ("HOME", "/root".to_owned()),
            ("HOSTNAME", root::host_name(sources.pod)),
            ("KUBERNETES_SERVICE_HOST", host.to_owned()),
            ("KUBERNETES_SERVICE_PORT", port.to_string()),
            ("KUBERNETES_SERVICE_PORT_HTTPS", port.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let map = from.config_map_ref.as_ref();
        let map = map.map(|one| (Reference::ConfigMap(one.name.clone()), one.optional));
        let secret = from.secret_ref.as_ref();
        let secret = secret.map(|one| (Reference::Secret(one.name.clone()), one.optional));
        for (reference, optional) in [map, secret].into_iter().flatten() {
            let data = sources.material.all(&reference, optional.unwrap_or_default())?;
            add_all(&mut variables, prefix, data);
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(variable, sources, &variables)? {
            variables.insert(variable.name.clone(), value);
        }
    }
    match variables.keys().find(|name| !is_name(name)) {
        Some(name) => Err(format!(
            "variable {name:?}: this node takes letters, digits and underscores only"
        )),
        None => Ok(variables),
    }
}

/// What a container runs: its own `command` and `args`, or the image's, each of which replaces the image's as Kubernetes has it.
pub(crate) fn command(
    container: &Container,
    image: &Image,
    program: &str,
    variables: &BTreeMap<String, String>,
) -> Vec<String> {
    let own = |list: &Option<Vec<String>>| -> Vec<String> {
        let texts = list.iter().flatten();
        texts.map(|text| expand(text, variables)).collect()
    };
    let (command, args) = (own(&container.command), own(&container.args));
    match (command.is_empty(), args.is_empty()) {
        (false, _) => [command, args].concat(),
        (true, false) => [vec![program.to_owned()], args].concat(),
        (true, true) => [vec![program.to_owned()], image.args.clone()].concat(),
    }
}

fn add_all(variables: &mut BTreeMap<String, String>, prefix: &str, data: Option<&Data>) {
    for (key, value) in data.into_iter().flatten() {
        variables.insert(format!("{prefix}{key}"), text(value));
    }
}

fn value(
    variable: &EnvVar,
    sources: &Sources<'_>,
    before: &BTreeMap<String, String>,
) -> Result<Option<String>, String> {
    let Some(from) = &variable.value_from else {
        let value = variable.value.as_deref().unwrap_or_default();
        return Ok(Some(expand(value, before)));
    };
    if let Some(key) = &from.config_map_key_ref {
        let reference = Reference::ConfigMap(key.name.clone());
        let found = sources
            .material
            .key(&reference, &key.key, key.optional.unwrap_or_default())?;
        return Ok(found.map(|value| text(value)));
    }
    if let Some(key) = &from.secret_key_ref {
        let reference = Reference::Secret(key.name.clone());
        let found = sources
            .material
            .key(&reference, &key.key, key.optional.unwrap_or_default())?;
        return Ok(found.map(|value| text(value)));
    }
    if let Some(of) = &from.field_ref {
        return field(&of.field_path, sources.pod, sources.place).map(Some);
    }
    Err(format!(
        "variable {:?}: this node knows nothing of what it is taken from",
        variable.name
    ))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What every shell passes on; the node's own stands between it and the program.
fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_word) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

#[cfg(test)]
mod tests;
