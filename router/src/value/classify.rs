//! Method, path, query and headers → what is asked of which API server: [`ApiRequest`]. Pure.
//!
//! The reading is the API server's own (its RequestInfo), oddities included: a router that read a request otherwise than
//! the member behind it would check one thing and let another happen. Nothing is decided here, see `plan`. Called by
//! `edge` for every request, and by `/explain`.

pub(crate) mod field;
pub(crate) mod impersonate;
mod object_path;
mod path;
pub(crate) mod query;
#[cfg(test)]
mod tests;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, Method, Uri, Version};

pub(crate) use self::impersonate::{Impersonation, write_owner};
pub(crate) use self::object_path::path_in;
pub(crate) use self::query::Query;
use crate::value::fault::{AboutObject, Fault};
use crate::value::media::elements;

/// One request, read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiRequest {
    /// Which of the two views it is for.
    pub(crate) view: View,
    /// The path for the member: without the view's prefix, bytes as they came.
    pub(crate) path: String,
    /// The query, pair by pair, bytes as they came.
    pub(crate) query: Query,
    /// The HTTP method.
    pub(crate) method: Method,
    /// What it does, in the API server's words.
    pub(crate) verb: Verb,
    /// What it is about; `None` for discovery, health and everything else that is no resource.
    pub(crate) resource: Option<ResourceRequest>,
    /// The protocol it wants to switch to.
    pub(crate) upgrade: Option<Upgrade>,
    /// The user it wants to act as.
    pub(crate) impersonate: Option<Impersonation>,
}

/// Which of the router's two views a request asks: `docs/semantics.md#the-two-views`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum View {
    /// `/…`: the caller's shard as if it were one cluster.
    Merged,
    /// `/clusters/<name>/…`, or host `<name>.<suffix>`: exactly that member.
    Explicit(String),
}

/// The API server's verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// One object, or any GET or HEAD of a path that is no resource.
    Get,
    /// A collection.
    List,
    /// A collection, or one object, as it changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// The legacy `/proxy/` path prefix.
    Proxy,
    /// A method that has no verb, such as OPTIONS.
    Other,
}

impl Verb {
    /// As the API server spells it; also the span attribute and metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Other => "other",
        }
    }

    /// Whether it only reads, as far as the verb can tell: `exec` by GET is a write all the same, see
    /// [`ApiRequest::is_read`].
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The resource part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ResourceRequest {
    /// API group; empty is the core group.
    pub(crate) group: String,
    /// API version.
    pub(crate) version: String,
    /// Plural name.
    pub(crate) resource: String,
    /// First path segment after the name.
    pub(crate) subresource: Option<String>,
    /// Namespace in the path. For `namespaces/<name>` the namespace itself, as in RequestInfo.
    pub(crate) namespace: Option<String>,
    /// Name in the path, or, for list and watch, the one that `fieldSelector=metadata.name=…` demands.
    pub(crate) name: Option<String>,
    /// Whether `name` stood in the path.
    pub(crate) named_by_path: bool,
}

impl ResourceRequest {
    /// Whether it is `resource` of `group`.
    pub(crate) fn is(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }

    /// Whether its group is one of API servers themselves: those have no dot, or are of Kubernetes.
    pub(crate) fn is_built_in(&self) -> bool {
        !self.group.contains('.') || self.group.ends_with(".k8s.io")
    }

    /// Whether it is about CustomResourceDefinitions.
    pub(crate) fn is_definition(&self) -> bool {
        self.is("apiextensions.k8s.io", "customresourcedefinitions")
    }

    /// Whether it is about Leases.
    pub(crate) fn is_leases(&self) -> bool {
        self.is("coordination.k8s.io", "leases")
    }

    /// Whether it is about one object that may carry a leader lock in place of a Lease.
    pub(crate) fn may_be_lock(&self) -> bool {
        self.named_by_path && ["configmaps", "endpoints"].iter().any(|kind| self.is("", kind))
    }

    /// As the details of a Status name it.
    fn about(&self) -> AboutObject {
        AboutObject {
            group: self.group.clone(),
            resource: self.resource.clone(),
            name: self.name.clone(),
        }
    }

    /// `pods` or `deployments.apps`, for messages.
    pub(crate) fn kind(&self) -> String {
        if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// The `Upgrade` header of a request that asks to switch protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Upgrade {
    /// As sent: `websocket`, `SPDY/3.1`.
    pub(crate) protocol: String,
}

impl ApiRequest {
    /// What it is about, as the details of a Status name it.
    pub(crate) fn about(&self) -> Option<AboutObject> {
        self.resource.as_ref().map(ResourceRequest::about)
    }

    /// Whether it cannot change anything in the member. Connecting into a Pod counts as a change, whatever the method.
    pub(crate) fn is_read(&self) -> bool {
        let connects = self.resource.as_ref().is_some_and(|resource| {
            matches!(
                resource.subresource.as_deref(),
                Some("exec" | "attach" | "portforward" | "proxy")
            )
        });
        // The legacy watch prefix makes a watch of any method.
        self.verb.is_read() && matches!(self.method, Method::GET | Method::HEAD) && !connects
    }

    /// What its `fieldSelector` demands of a field, if it can be a name.
    pub(crate) fn demanded(&self, name: &str) -> Option<String> {
        field::exact(&self.query.first("fieldSelector")?, name)
    }

    /// The name that its `fieldSelector` demands, whatever its verb.
    pub(crate) fn demanded_name(&self) -> Option<String> {
        self.demanded("metadata.name")
    }

    /// Whether it is about one Lease and ends by itself, as all requests of a leader election. No path that only has the
    /// words in it: what is behind `proxy`, a collection, a watch.
    pub(crate) fn is_lease(&self) -> bool {
        let one = |resource: &ResourceRequest| {
            resource.is_leases()
                && resource.subresource.is_none()
                && (resource.named_by_path || self.verb == Verb::Create)
        };
        let ends = !matches!(self.verb, Verb::Watch | Verb::Proxy) && self.upgrade.is_none();
        ends && self.resource.as_ref().is_some_and(one)
    }
}

/// Parameters of a query, each word of a command that is to be run among them. Go reads none at all of a query with more than
/// ten thousand, also not the selector that is put among them, and a few are put among them.
const MAX_PARAMETERS: usize = 9_900;

/// Reads a request. Errors are 400: path tricks, malformed impersonation.
pub(crate) fn classify(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<ApiRequest, Fault> {
    read(path::split(uri.path())?, (method, uri, headers))
}

/// [`classify`] where the explicit view has host names, too: `<member>.<suffix>`, whose paths are all the member's.
pub(crate) fn classify_by_host(
    suffix: &str,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<ApiRequest, Fault> {
    match member_of_host(suffix, uri, headers) {
        Some(member) => read(path::of(View::Explicit(member), uri.path())?, (method, uri, headers)),
        None => classify(method, uri, headers),
    }
}

/// Member names are DNS labels, so `<member>.<suffix>` is read in one way only.
fn member_of_host(suffix: &str, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let named = || headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = uri.authority().cloned().or_else(named)?;
    let host = authority.host().to_ascii_lowercase();
    let member = host.strip_suffix(suffix)?.strip_suffix('.')?;
    Some(member.to_owned())
}

fn read(path: path::Path<'_>, (method, uri, headers): (&Method, &Uri, &HeaderMap)) -> Result<ApiRequest, Fault> {
    let query = Query::new(uri.query());
    if query.length() > MAX_PARAMETERS {
        return Err(Fault::BadRequest(format!(
            "the query has more than {MAX_PARAMETERS} parameters"
        )));
    }
    let (mut verb, mut resource) = path::resource(method, &path.segments)?;
    if let Some(resource) = resource.as_mut().filter(|resource| resource.name.is_none()) {
        match verb {
            Verb::Get => {
                verb = if query.flag("watch") { Verb::Watch } else { Verb::List };
                let fields = query.first("fieldSelector");
                resource.name = fields.and_then(|fields| field::exact(&fields, "metadata.name"));
            }
            Verb::Delete => verb = Verb::DeleteCollection,
            _ => {}
        }
    }
    let subresource = resource.as_ref().and_then(|resource| resource.subresource.as_deref());
    let proxies = verb == Verb::Proxy || subresource == Some("proxy");
    // No other write switches protocols anywhere: it stays one that is bounded, judged by its body and taken back.
    let reads = method == Method::GET && verb != Verb::List;
    let switches = proxies || reads || matches!(subresource, Some("attach" | "exec" | "portforward"));
    let upgrade = upgrade(headers, proxies).filter(|_| switches);
    Ok(ApiRequest {
        view: path.view,
        path: path.member.to_owned(),
        query,
        method: method.clone(),
        verb,
        resource,
        upgrade,
        impersonate: Impersonation::from_headers(headers)?,
    })
}

/// Protocols that API servers switch to.
const UPGRADES: [&str; 2] = ["websocket", "spdy"];

/// A server may ignore the wish to upgrade, and `h2c` must be ignored: whatever in front of a member switched to it
/// would take requests through the tunnel that nobody planned. What is behind a `proxy` may speak anything.
fn upgrade(headers: &HeaderMap, proxies: bool) -> Option<Upgrade> {
    let asks = elements(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(UPGRADE)?.to_str().ok()?;
    let known = |token: &str| {
        let name = token.trim().split('/').next().unwrap_or_default();
        UPGRADES.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let served = proxies || protocol.split(',').all(known);
    (asks && served).then(|| Upgrade {
        protocol: protocol.to_owned(),
    })
}

/// Refuses what has no clear addressee: no Host or several, a Host that contradicts `:authority`, CONNECT, `*`, and
/// absolute-form in HTTP/1, which only a forward proxy is asked by.
pub(crate) fn check_authority(method: &Method, uri: &Uri, headers: &HeaderMap, version: Version) -> Result<(), Fault> {
    let refuse = |why: &str| Err(Fault::BadRequest(why.into()));
    if method == Method::CONNECT {
        return refuse("CONNECT is not served here");
    }
    // HTTP/1.0 knows none, and so do health checks of load balancers.
    let hostless = version < Version::HTTP_11;
    if uri.path() == "*" {
        return refuse("the asterisk-form of the request target is not served here");
    }
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return refuse("more than one Host header");
    }
    let host = match host.map(|host| host.to_str().ok().filter(|host| is_authority(host))) {
        Some(None) => return refuse("the Host header is not a host and port"),
        Some(host) => host,
        None => None,
    };
    // Parsed already.
    let authority = uri.authority().map(Authority::as_str);
    if authority.is_some_and(|authority| authority.is_empty() || authority.contains('@')) {
        return refuse("the authority is not a host and port");
    }
    match (authority, host) {
        (None, None) if !hostless => refuse("no Host header"),
        (Some(_), _) if version < Version::HTTP_2 => {
            refuse("the absolute-form of the request target is not served here: send the path alone")
        }
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            refuse("the Host header contradicts :authority")
        }
        _ => Ok(()),
    }
}

fn is_authority(text: &str) -> bool {
    !text.is_empty() && !text.contains('@') && text.parse::<Authority>().is_ok()
}
