//! Reviews of Kubernetes: what their bodies ask an API server, and answers of the router's own.
//!
//! Objects of `authorization.k8s.io` and `authentication.k8s.io` are questions: the body asks, the same object with a status answers.
//! Here are what is read of a question and of an answer, and how the router says no, in JSON, YAML and protobuf. Which member
//! is asked is `plan::reviews`'.

#[cfg(test)]
mod tests;

use http::HeaderMap;
use http::header::HeaderValue;
use portolan_merge::wire;
use serde_json::{Value, json};

use super::check::Attributes;
use super::classify::{ResourceRequest, Verb};
use super::media::{self, Media, YAML};
use super::object::{Encoding, parse, protobuf};

/// Fields of a review: what is asked, and what is answered.
const SPEC: u64 = 2;
const STATUS: u64 = 3;
/// `SubjectAccessReviewSpec`, and `SelfSubjectAccessReviewSpec` as far as it goes.
const RESOURCE_ATTRIBUTES: u64 = 1;
const NON_RESOURCE_ATTRIBUTES: u64 = 2;
const SPEC_UID: u64 = 6;
/// The only string of `TokenReviewSpec` and of `SelfSubjectRulesReviewSpec` that counts here.
const SPEC_FIRST: u64 = 1;
/// `ResourceAttributes`.
const NAMESPACE: u64 = 1;
const VERB: u64 = 2;
const GROUP: u64 = 3;
const VERSION: u64 = 4;
const RESOURCE: u64 = 5;
const SUBRESOURCE: u64 = 6;
const NAME: u64 = 7;
/// `SubjectAccessReviewStatus`.
const ALLOWED: u64 = 1;
const REASON: u64 = 2;
const EVALUATION_ERROR: u64 = 3;
/// `SubjectRulesReviewStatus`.
const INCOMPLETE: u64 = 3;
const RULES_ERROR: u64 = 4;
/// `TokenReviewStatus`, and the UID of its user.
const AUTHENTICATED: u64 = 1;
const USER: u64 = 2;
const TOKEN_ERROR: u64 = 3;
const USER_UID: u64 = 2;

/// The kinds of which the body tells who is to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    SubjectAccess,
    LocalSubjectAccess,
    SelfSubjectAccess,
    SelfSubjectRules,
    Token,
}

/// What a review asks about. No `Debug`: it may hold a token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum About {
    /// May somebody do this?
    Resource(Attributes),
    /// May somebody ask for a path? With the UID of who it is, if the review says one.
    NonResource(String),
    /// What may the caller do in this namespace?
    Rules(String),
    /// Whose is this token?
    Token(String),
}

/// Why the router does not say yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum No {
    /// It knows that it is none.
    Because(String),
    /// It could not be found out.
    Unknown(String),
}

impl About {
    /// The namespace that it asks about.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let namespace = match self {
            Self::Resource(wanted) => &wanted.namespace,
            Self::Rules(namespace) => namespace,
            Self::NonResource(_) | Self::Token(_) => return None,
        };
        Some(namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }
}

impl Kind {
    /// `None` for what is no such review.
    pub(crate) fn of(verb: Verb, resource: &ResourceRequest) -> Option<Self> {
        if verb != Verb::Create || resource.subresource.is_some() {
            return None;
        }
        match (resource.group.as_str(), resource.resource.as_str()) {
            ("authorization.k8s.io", "subjectaccessreviews") => Some(Self::SubjectAccess),
            ("authorization.k8s.io", "localsubjectaccessreviews") => Some(Self::LocalSubjectAccess),
            ("authorization.k8s.io", "selfsubjectaccessreviews") => Some(Self::SelfSubjectAccess),
            ("authorization.k8s.io", "selfsubjectrulesreviews") => Some(Self::SelfSubjectRules),
            ("authentication.k8s.io", "tokenreviews") => Some(Self::Token),
            _ => None,
        }
    }

    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::SubjectAccess => ("authorization.k8s.io/v1", "SubjectAccessReview"),
            Self::LocalSubjectAccess => ("authorization.k8s.io/v1", "LocalSubjectAccessReview"),
            Self::SelfSubjectAccess => ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
            Self::SelfSubjectRules => ("authorization.k8s.io/v1", "SelfSubjectRulesReview"),
            Self::Token => ("authentication.k8s.io/v1", "TokenReview"),
        }
    }

    /// What the body asks; `None` if that cannot be read here, or nothing is asked: an API server says what is wrong with it.
    pub(crate) fn read(self, content_type: Option<&str>, body: &[u8]) -> Option<About> {
        match Encoding::of(content_type)? {
            Encoding::Protobuf => self.read_protobuf(protobuf::open(body)?.1),
            encoding => self.read_json(&parse(encoding, body).ok()?),
        }
    }

    fn read_json(self, object: &Value) -> Option<About> {
        let spec = object.get("spec")?;
        let text = |of: &Value, field: &str| of.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        match self {
            Self::Token => return Some(About::Token(text(spec, "token"))),
            Self::SelfSubjectRules => return Some(About::Rules(text(spec, "namespace"))),
            Self::SubjectAccess | Self::LocalSubjectAccess | Self::SelfSubjectAccess => {}
        }
        if let Some(wanted) = spec.get("resourceAttributes").filter(|wanted| !wanted.is_null()) {
            return Some(About::Resource(Attributes {
                verb: text(wanted, "verb"),
                group: text(wanted, "group"),
                version: text(wanted, "version"),
                resource: text(wanted, "resource"),
                subresource: text(wanted, "subresource"),
                namespace: text(wanted, "namespace"),
                name: text(wanted, "name"),
            }));
        }
        spec.get("nonResourceAttributes").filter(|path| !path.is_null())?;
        Some(About::NonResource(text(spec, "uid")))
    }

    fn read_protobuf(self, object: &[u8]) -> Option<About> {
        let spec = wire::last(object, SPEC)??;
        let text = |of: &[u8], field| wire::text(of, field).map(str::to_owned);
        match self {
            Self::Token => return Some(About::Token(text(spec, SPEC_FIRST)?)),
            Self::SelfSubjectRules => return Some(About::Rules(text(spec, SPEC_FIRST)?)),
            Self::SubjectAccess | Self::LocalSubjectAccess | Self::SelfSubjectAccess => {}
        }
        if let Some(wanted) = wire::last(spec, RESOURCE_ATTRIBUTES)? {
            return Some(About::Resource(Attributes {
                verb: text(wanted, VERB)?,
                group: text(wanted, GROUP)?,
                version: text(wanted, VERSION)?,
                resource: text(wanted, RESOURCE)?,
                subresource: text(wanted, SUBRESOURCE)?,
                namespace: text(wanted, NAMESPACE)?,
                name: text(wanted, NAME)?,
            }));
        }
        wire::last(spec, NON_RESOURCE_ATTRIBUTES)??;
        Some(About::NonResource(text(spec, SPEC_UID)?))
    }

    /// The router's own answer: the question with a status, in what the client takes, and its content type.
    pub(crate) fn answer(self, no: &No, head: &HeaderMap, body: &[u8]) -> (HeaderValue, Vec<u8>) {
        let asked = Encoding::of(media::content_type(head));
        let is_yaml = media::prefers_yaml(head);
        if Media::preferred(head) == Media::Protobuf {
            let object = match (asked, protobuf::open(body)) {
                (Some(Encoding::Protobuf), Some((_, object))) => object,
                _ => &[],
            };
            return (Media::Protobuf.content_type(), self.in_protobuf(no, object));
        }
        let asked = asked.filter(|asked| *asked != Encoding::Protobuf);
        let asked = asked.and_then(|encoding| parse(encoding, body).ok());
        let mut object = asked.filter(Value::is_object).unwrap_or_else(|| json!({}));
        let (version, kind) = self.name();
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        if object.get("metadata").is_none() {
            object["metadata"] = json!({});
        }
        object["status"] = self.status(no);
        let text = serde_yaml_ng::to_string(&object).ok().filter(|_| is_yaml);
        match text {
            Some(text) => (HeaderValue::from_static(YAML), text.into_bytes()),
            None => (Media::Json.content_type(), object.to_string().into_bytes()),
        }
    }

    fn status(self, no: &No) -> Value {
        match (self, no) {
            (Self::Token, No::Because(why) | No::Unknown(why)) => {
                json!({"authenticated": false, "user": {}, "error": why})
            }
            (Self::SelfSubjectRules, No::Because(why) | No::Unknown(why)) => {
                json!({"resourceRules": [], "nonResourceRules": [], "incomplete": true, "evaluationError": why})
            }
            (_, No::Because(why)) => json!({"allowed": false, "reason": why}),
            (_, No::Unknown(why)) => json!({"allowed": false, "evaluationError": why}),
        }
    }

    fn in_protobuf(self, no: &No, object: &[u8]) -> Vec<u8> {
        let (No::Because(why) | No::Unknown(why)) = no;
        let mut status = Vec::new();
        match (self, no) {
            (Self::Token, _) => {
                wire::put_varint(&mut status, AUTHENTICATED << 3);
                wire::put_varint(&mut status, 0);
                wire::put(&mut status, USER, &[]);
                wire::put(&mut status, TOKEN_ERROR, why.as_bytes());
            }
            (Self::SelfSubjectRules, _) => {
                wire::put_varint(&mut status, INCOMPLETE << 3);
                wire::put_varint(&mut status, 1);
                wire::put(&mut status, RULES_ERROR, why.as_bytes());
            }
            (_, No::Because(_)) => {
                wire::put_varint(&mut status, ALLOWED << 3);
                wire::put_varint(&mut status, 0);
                wire::put(&mut status, REASON, why.as_bytes());
            }
            (_, No::Unknown(_)) => {
                wire::put_varint(&mut status, ALLOWED << 3);
                wire::put_varint(&mut status, 0);
                wire::put(&mut status, EVALUATION_ERROR, why.as_bytes());
            }
        }
        let mut answered = Vec::new();
        for field in wire::fields(object).flatten().filter(|field| field.number != STATUS) {
            answered.extend_from_slice(field.raw);
        }
        wire::put(&mut answered, STATUS, &status);
        let (version, kind) = self.name();
        seal((version, kind), &answered)
    }
}

/// An object in its envelope.
fn seal((version, kind): (&str, &str), object: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    wire::put(&mut type_meta, wire::TYPE_META_VERSION, version.as_bytes());
    wire::put(&mut type_meta, wire::TYPE_META_KIND, kind.as_bytes());
    let mut sealed = wire::MAGIC.to_vec();
    wire::put(&mut sealed, wire::UNKNOWN_TYPE_META, &type_meta);
    wire::put(&mut sealed, wire::UNKNOWN_RAW, object);
    sealed
}

/// Whether a member's answer says yes; `None`: it says nothing that can be read here.
pub(crate) fn allowed(headers: &HeaderMap, body: &[u8]) -> Option<bool> {
    match Encoding::of(media::content_type(headers))? {
        Encoding::Protobuf => {
            let status = wire::last(protobuf::open(body)?.1, STATUS)?.unwrap_or_default();
            flag(status, ALLOWED)
        }
        encoding => {
            let answer = parse(encoding, body).ok()?;
            let allowed = answer.get("status")?.get("allowed");
            Some(allowed.and_then(Value::as_bool).unwrap_or_default())
        }
    }
}

/// The UID of whom a member knows by a token, by its answer.
pub(crate) fn authenticated(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let uid = match Encoding::of(media::content_type(headers))? {
        Encoding::Protobuf => {
            let status = wire::last(protobuf::open(body)?.1, STATUS)??;
            let user = wire::last(status, USER)??;
            let uid = wire::text(user, USER_UID)?.to_owned();
            flag(status, AUTHENTICATED)?.then_some(uid)
        }
        encoding => {
            let answer = parse(encoding, body).ok()?;
            let status = answer.get("status")?;
            let uid = status.get("user")?.get("uid")?.as_str()?.to_owned();
            status.get("authenticated")?.as_bool()?.then_some(uid)
        }
    };
    uid.filter(|uid| !uid.is_empty())
}

/// The last boolean of this number; false if there is none.
fn flag(message: &[u8], number: u64) -> Option<bool> {
    let mut found = false;
    for field in wire::fields(message) {
        let field = field?;
        if field.number == number && field.content.is_none() {
            let (_, value) = wire::varint(field.raw)?;
            found = wire::varint(value)?.0 != 0;
        }
    }
    Some(found)
}
