//! `Impersonate-*` headers: whom a request wants to act as, and what the member must be asked before it may.
//!
//! Read as the API server's impersonation filter reads them, but for what it would ignore or read by chance (several
//! users, unknown `Impersonate-*` headers): that is refused, because dropping any of it would run the request as somebody
//! the caller did not name. Called by `classify`; `access` asks for the attributes, `rewrite` writes the headers.

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};

use crate::value::fault::Fault;
use portolan_crds::names::service_account_of;

/// What every header of impersonation begins with.
pub(crate) const PREFIX: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// [`FENCE_SHARD`] and [`FENCE_EPOCH`] as headers.
const OWNER_SHARD: HeaderName = HeaderName::from_static("impersonate-extra-ctrlmesh.kusionstack.io%2fshard");
const OWNER_EPOCH: HeaderName = HeaderName::from_static("impersonate-extra-ctrlmesh.kusionstack.io%2fepoch");
const EXTRA_PREFIX: &str = "impersonate-extra-";
/// Groups and values of extras in one request: a member is asked about each.
const MAX_RIGHTS: usize = 32;
const AUTHENTICATION: &str = "authentication.k8s.io";
/// What an extra's key may not have in a header name as it is. Header names have no case, so an API server reads `A` as
/// `a`, and only `%41` as `A`.
const EXTRA_KEY: &AsciiSet = &{
    let mut set = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let mut letter = b'A';
    while letter <= b'Z' {
        set = set.add(letter);
        letter += 1;
    }
    set
};

/// The user a request is to run as.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Impersonation {
    /// User name; never empty.
    pub(crate) user: String,
    /// Groups, in order.
    pub(crate) groups: Vec<String>,
    /// Uid.
    pub(crate) uid: Option<String>,
    /// Extras, in order of first appearance; keys decoded. Upper case is what was percent-encoded.
    pub(crate) extras: Vec<(String, Vec<String>)>,
}

/// One right to ask for: verb `impersonate` on this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImpersonationAttribute {
    /// API group of `resource`.
    pub(crate) group: &'static str,
    /// `users`, `serviceaccounts`, `groups`, `uids` or `userextras`.
    pub(crate) resource: &'static str,
    /// The extra's key.
    pub(crate) subresource: Option<String>,
    /// Of a ServiceAccount.
    pub(crate) namespace: Option<String>,
    /// The user, ServiceAccount, group, uid or extra's value.
    pub(crate) name: String,
}

impl Impersonation {
    /// A user without groups: the member's API server adds those it knows.
    pub(crate) fn user(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            ..Self::default()
        }
    }

    /// Reads the headers; `None` if there are none. Malformed ones are 400.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, Fault> {
        let mut found = Self::default();
        let mut any = false;
        for name in headers.keys().filter(|name| name.as_str().starts_with(PREFIX)) {
            any = true;
            let values = headers
                .get_all(name)
                .iter()
                .map(|value| text(name, value))
                .collect::<Result<Vec<_>, _>>()?;
            found.take(name, values)?;
        }
        let extras = found.extras.iter().map(|(_, values)| values.len());
        if found.groups.len() + extras.sum::<usize>() > MAX_RIGHTS {
            return Err(Fault::BadRequest(format!(
                "more than {MAX_RIGHTS} groups and extras to impersonate"
            )));
        }
        if any && found.user.is_empty() {
            return Err(Fault::BadRequest(
                "groups, uid or extras to impersonate, but no Impersonate-User".into(),
            ));
        }
        Ok(any.then_some(found))
    }

    fn take(&mut self, name: &HeaderName, mut values: Vec<String>) -> Result<(), Fault> {
        if name == USER || name == UID {
            if values.len() > 1 {
                return Err(Fault::BadRequest(format!(
                    "header {name} is given {} times",
                    values.len()
                )));
            }
            let value = values.pop().unwrap_or_default();
            if name == USER {
                self.user = value;
            } else {
                self.uid = Some(value);
            }
        } else if name == GROUP {
            self.groups = values;
        } else {
            let refuse = || Fault::BadRequest(format!("header {name} is no header of impersonation"));
            let key = name
                .as_str()
                .strip_prefix(EXTRA_PREFIX)
                .filter(|key| !key.is_empty())
                .ok_or_else(refuse)?;
            let key = percent_decode_str(key)
                .decode_utf8()
                .map_err(|_| refuse())?
                .into_owned();
            if [FENCE_SHARD, FENCE_EPOCH]
                .iter()
                .any(|ours| key.eq_ignore_ascii_case(ours))
            {
                return Err(Fault::BadRequest(format!("header {name}: only routers say {key}")));
            }
            match self.extras.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => known.extend(values),
                None => self.extras.push((key, values)),
            }
        }
        Ok(())
    }

    /// Everything the caller must be allowed, as the API server's impersonation filter asks it.
    pub(crate) fn attributes(&self) -> Vec<ImpersonationAttribute> {
        let plain = |group, resource, name: &String| ImpersonationAttribute {
            group,
            resource,
            subresource: None,
            namespace: None,
            name: name.clone(),
        };
        let mut attributes = vec![match self.service_account() {
            Some((namespace, name)) => ImpersonationAttribute {
                namespace: Some(namespace.to_owned()),
                ..plain("", "serviceaccounts", &name.to_owned())
            },
            None => plain("", "users", &self.user),
        }];
        attributes.extend(self.groups.iter().map(|group| plain("", "groups", group)));
        attributes.extend(self.uid.iter().map(|uid| plain(AUTHENTICATION, "uids", uid)));
        for (key, values) in &self.extras {
            attributes.extend(values.iter().map(|value| ImpersonationAttribute {
                subresource: Some(key.clone()),
                ..plain(AUTHENTICATION, "userextras", value)
            }));
        }
        attributes
    }

    /// Namespace and name, if the user is a ServiceAccount.
    pub(crate) fn service_account(&self) -> Option<(&str, &str)> {
        service_account_of(&self.user)
    }

    /// Writes the headers. Fails on text that cannot stand in a header.
    pub(crate) fn write(&self, headers: &mut HeaderMap) -> Result<(), header::InvalidHeaderValue> {
        headers.insert(
            USER,
            HeaderValue::from_str(&self.user).or_else(|_| HeaderValue::from_bytes(self.user.as_bytes()))?,
        );
        for group in &self.groups {
            headers.append(GROUP, HeaderValue::from_bytes(group.as_bytes())?);
        }
        if let Some(uid) = &self.uid {
            headers.insert(UID, HeaderValue::from_bytes(uid.as_bytes())?);
        }
        for (key, values) in &self.extras {
            let name = format!("{EXTRA_PREFIX}{}", utf8_percent_encode(key, EXTRA_KEY)).to_ascii_lowercase();
            let Ok(name) = HeaderName::try_from(name) else { continue };
            for value in values {
                headers.append(name.clone(), HeaderValue::from_bytes(value.as_bytes())?);
            }
        }
        Ok(())
    }
}

/// Says for which owner of its namespace a write is: the member compares the epoch with the namespace's annotation.
pub(crate) fn write_owner(headers: &mut HeaderMap, shard: &str, epoch: u64) -> Result<(), header::InvalidHeaderValue> {
    headers.insert(OWNER_SHARD, HeaderValue::from_str(shard)?);
    headers.insert(OWNER_EPOCH, HeaderValue::from(epoch));
    Ok(())
}

/// A value as text; an empty one names nobody.
fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, Fault> {
    let text = std::str::from_utf8(value.as_bytes())
        .ok()
        .filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| Fault::BadRequest(format!("header {name} is empty or not UTF-8")))
}
