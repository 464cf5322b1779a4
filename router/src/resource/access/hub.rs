//! The question that the hub answers for people: who may use the explicit view of a member.

use crate::resource::question::{self, Questions};
use crate::value::check::Check;

/// Who wants to use which member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProxyQuestion {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
    pub(crate) cluster: String,
}

impl ProxyQuestion {
    /// What a check asks the hub; `None` for what it does not ask the hub.
    pub(crate) fn of(check: &Check) -> Option<Self> {
        let Check::HubProxy { user, groups, cluster } = check else {
            return None;
        };
        Some(Self {
            user: user.clone(),
            groups: groups.clone(),
            cluster: cluster.clone(),
        })
    }
}

/// The hub's word, or a member's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// The way to the hub for these questions.
pub(crate) type HubReviews = Questions<ProxyQuestion, Decision>;
/// One of them on its way.
pub(crate) type Asked = question::Asked<ProxyQuestion, Decision>;
/// Held by the stream that carries them.
pub(crate) type Carrier = question::Carrier<ProxyQuestion, Decision>;
