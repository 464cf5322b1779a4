//! The path of an object or a collection, built of its parts. The one place that builds paths for what the router itself asks.
//!
//! Each part is encoded, so that none of them reads as two, as a query or as another view; what is in no path of an API
//! server ([`ResourceRequest::unfit_part`]) is to be refused before. Callers: `plan`, `preflight`.

use portolan_crds::names::{is_dns_label, is_dns_subdomain};

use super::ResourceRequest;
use super::path::is_segment_name;

/// What a path segment must not contain as it is.
const SEGMENT: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?');

impl ResourceRequest {
    /// Its own path in any member, without subresource: of an object, or of a collection where it has no name.
    pub(crate) fn object_path(&self) -> String {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, SEGMENT).to_string();
        let mut path = if self.group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", encode(&self.group))
        };
        let mut push = |segment: &str| {
            path.push('/');
            path.push_str(&encode(segment));
        };
        push(&self.version);
        if let Some(namespace) = self.namespace.as_ref().filter(|_| !self.is("", "namespaces")) {
            push("namespaces");
            push(namespace);
        }
        push(&self.resource);
        self.name.iter().for_each(|name| push(name));
        path
    }

    /// The first of its parts that is in no path of an API server, in words; for parts that came in a body or from a member.
    pub(crate) fn unfit_part(&self) -> Option<&'static str> {
        let name = self.name.as_deref();
        if !(self.group.is_empty() || is_dns_subdomain(&self.group)) {
            return Some("API group");
        }
        if !is_dns_label(&self.version) {
            return Some("API version");
        }
        if !is_dns_label(&self.resource) {
            return Some("resource");
        }
        if self
            .namespace
            .as_deref()
            .is_some_and(|namespace| !is_dns_label(namespace))
        {
            return Some("namespace");
        }
        name.is_some_and(|name| !is_segment_name(name)).then_some("name")
    }
}

/// The path of one object of a collection, whose name is not of the request's path; `None` if there can be none of that name.
pub(crate) fn path_in(collection: &str, name: &str) -> Option<String> {
    is_dns_subdomain(name).then(|| format!("{collection}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(group: &str, version: &str, name: &str) -> ResourceRequest {
        ResourceRequest {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: "ports".to_owned(),
            name: Some(name.to_owned()),
            ..ResourceRequest::default()
        }
    }

    #[test]
    fn a_path_has_as_many_segments_as_parts() {
        assert_eq!(object("x.io", "v1", "p").object_path(), "/apis/x.io/v1/ports/p");
        assert_eq!(object("", "v1", "system:p").object_path(), "/api/v1/ports/system:p");
        let namespaced = ResourceRequest {
            namespace: Some("ns".to_owned()),
            ..object("", "v1", "p")
        };
        assert_eq!(namespaced.object_path(), "/api/v1/namespaces/ns/ports/p");
        for name in ["a/secrets/s", "a?watch=true", "a#b", "a%2fb", "a b"] {
            let path = object("", "v1", name).object_path();
            assert_eq!(path.split('/').count(), 5, "{path}");
            assert!(!path.contains(['?', '#', ' ']), "{path}");
        }
    }

    #[test]
    fn what_is_in_no_path_is_told() {
        assert_eq!(object("x.io", "v1", "system:p").unfit_part(), None);
        assert_eq!(object("", "v1beta1", "P_1").unfit_part(), None);
        for (group, version, name, unfit) in [
            ("x.io/v1/namespaces", "v1", "p", "API group"),
            ("", "v1/namespaces/victim/secrets", "p", "API version"),
            ("", "v1?", "p", "API version"),
            ("", "", "p", "API version"),
            ("", "v1", "victim/secrets/s1", "name"),
            ("", "v1", "a%2fb", "name"),
            ("", "v1", "..", "name"),
            ("", "v1", "", "name"),
        ] {
            assert_eq!(
                object(group, version, name).unfit_part(),
                Some(unfit),
                "{group} {version} {name}"
            );
        }
    }
}
