//! What the hub asks of this agent: `AgentConfig` of the wire, checked once, whole.
//!
//! A config with one bad entry is refused as a whole and the last good one stays in force. Caller: `stream`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::GroupResource;
use portolan_crds::labels::{LabelKeys, PrefixError};
use portolan_crds::names::{is_dns_label, is_dns_subdomain};
use portolan_crds::policy::OPEN_EPOCHS_MAX;
use portolan_crds::selector::{Selector, SelectorError};
use portolan_crds::shard::{BucketAlgorithm, Bucketing, BucketingError};
use portolan_wire::protocol::MAX_FENCES;
use portolan_wire::v1 as wire;
use thiserror::Error;

use crate::fence::Orders;
use crate::label::Labelling;

/// The checked configuration. `Default` labels nothing and reports no callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) labelling: Labelling,
    /// Kinds to label besides namespaces; `*` stands for all.
    pub(crate) kinds: BTreeSet<GroupResource>,
    pub(crate) callers: BTreeSet<CallerSelector>,
}

/// Pods whose facts the hub wants: one watch each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallerSelector {
    pub(crate) namespace: String,
    /// Canonical text, as the API server reads it.
    pub(crate) selector: String,
    /// By which the hub knows it, made once: texts may be long.
    pub(crate) digest: String,
}

/// A router that gets a token of this member: one that enrolled anew under an old name has another uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouterId {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Most routers of one hub; each costs a Secret and a token.
const MAX_ROUTERS: usize = 1_000;

/// Why a configuration is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum SettingsError {
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error(transparent)]
    Bucketing(#[from] BucketingError),
    #[error("{0} is no number of buckets")]
    Buckets(u32),
    #[error("unknown bucket algorithm {0}: this agent is older than its hub, update it")]
    Algorithm(i32),
    #[error("labelled kind {0} has no resource")]
    Kind(usize),
    #[error("caller selector names {0:?}, which is no namespace")]
    Namespace(String),
    #[error("{0} routers, and {MAX_ROUTERS} at most get a token")]
    Routers(usize),
    #[error("{0} namespaces to fence, and {MAX_FENCES} at most are ordered at once")]
    Fences(usize),
    #[error("namespace {0:?} to fence is none, or named twice")]
    Fence(String),
    #[error("router {name:?} with uid {uid:?}: those are not what an API server gives out")]
    Router { name: String, uid: String },
    #[error("caller selector of namespace {namespace}: {source}")]
    Selector {
        namespace: String,
        #[source]
        source: SelectorError,
    },
}

impl TryFrom<&wire::AgentConfig> for Settings {
    type Error = SettingsError;

    fn try_from(config: &wire::AgentConfig) -> Result<Self, SettingsError> {
        let unnamed = config.labelled_kinds.iter().position(|kind| kind.resource.is_empty());
        if let Some(index) = unnamed {
            return Err(SettingsError::Kind(index));
        }
        Ok(Self {
            labelling: Labelling {
                keys: LabelKeys::new(&config.label_prefix)?,
                bucketing: bucketing(config.bucketing.unwrap_or_default())?,
            },
            kinds: config.labelled_kinds.iter().cloned().map(GroupResource::from).collect(),
            callers: config
                .caller_selectors
                .iter()
                .map(CallerSelector::try_from)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<&wire::CallerSelector> for CallerSelector {
    type Error = SettingsError;

    fn try_from(wire: &wire::CallerSelector) -> Result<Self, SettingsError> {
        if !is_dns_label(&wire.namespace) {
            return Err(SettingsError::Namespace(wire.namespace.clone()));
        }
        let selector = Selector::parse(&wire.selector).map_err(|source| SettingsError::Selector {
            namespace: wire.namespace.clone(),
            source,
        })?;
        Ok(Self {
            namespace: wire.namespace.clone(),
            digest: selector.digest(),
            selector: selector.to_string(),
        })
    }
}

/// The routers that get a token; `None` if the hub does not tell.
pub(crate) fn routers(config: &wire::AgentConfig) -> Result<Option<BTreeSet<RouterId>>, SettingsError> {
    let Some(told) = &config.routers else { return Ok(None) };
    if told.routers.len() > MAX_ROUTERS {
        return Err(SettingsError::Routers(told.routers.len()));
    }
    let routers = told.routers.iter().map(|router| {
        let (name, uid) = (router.name.clone(), router.uid.clone());
        // The uid becomes part of a Secret's name, and a label.
        if is_dns_subdomain(&name) && is_dns_label(&uid) {
            Ok(RouterId { name, uid })
        } else {
            Err(SettingsError::Router { name, uid })
        }
    });
    routers.collect::<Result<_, _>>().map(Some)
}

/// Which namespaces are to be closed against writes of earlier epochs.
pub(crate) fn fences(config: &wire::AgentConfig) -> Result<Orders, SettingsError> {
    if config.fences.len() > MAX_FENCES {
        return Err(SettingsError::Fences(config.fences.len()));
    }
    let mut orders = BTreeMap::new();
    for order in &config.fences {
        let open = if order.open.is_empty() {
            vec![order.epoch]
        } else {
            order.open.clone()
        };
        let is_good = open.is_sorted() && open.last() == Some(&order.epoch) && open.len() <= OPEN_EPOCHS_MAX;
        // It becomes part of a path.
        let is_good = is_good && is_dns_label(&order.namespace);
        if !is_good || orders.insert(order.namespace.clone(), open).is_some() {
            return Err(SettingsError::Fence(order.namespace.clone()));
        }
    }
    Ok(Arc::new(orders))
}

fn bucketing(wire: wire::Bucketing) -> Result<Bucketing, SettingsError> {
    let algorithm = match wire.algorithm() {
        wire::BucketAlgorithm::Xxh3 => BucketAlgorithm::Xxh3,
        wire::BucketAlgorithm::Legacy => BucketAlgorithm::Legacy,
        wire::BucketAlgorithm::Unspecified => return Err(SettingsError::Algorithm(wire.algorithm)),
    };
    let buckets = u16::try_from(wire.buckets).map_err(|_| SettingsError::Buckets(wire.buckets))?;
    Ok(Bucketing::new(algorithm, buckets)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(algorithm: i32, buckets: u32) -> wire::Bucketing {
        wire::Bucketing { algorithm, buckets }
    }

    fn good() -> wire::AgentConfig {
        wire::AgentConfig {
            label_prefix: "ctrlmesh.kusionstack.io/".into(),
            bucketing: Some(buckets(wire::BucketAlgorithm::Xxh3 as i32, 32)),
            labelled_kinds: vec![wire::KindRef {
                group: "*".into(),
                resource: "pods".into(),
            }],
            caller_selectors: vec![wire::CallerSelector {
                namespace: "ops".into(),
                selector: "b=2,a in (1)".into(),
            }],
            ..wire::AgentConfig::default()
        }
    }

    #[test]
    fn a_good_config_is_taken_whole() {
        let settings = Settings::try_from(&good()).unwrap();
        assert_eq!(settings.labelling, Labelling::default());
        assert!(settings.kinds.contains(&GroupResource::new("*", "pods")));
        assert_eq!(settings.callers.first().unwrap().selector, "a=1,b=2");
    }

    #[test]
    fn routers_that_are_not_told_are_not_none() {
        let routers_of = |config: &wire::AgentConfig| routers(config).map(|told| told.map(|told| told.len()));
        let told = |all: &[(&str, &str)]| {
            let routers = all.iter().map(|(name, uid)| wire::RouterRef {
                name: (*name).to_owned(),
                uid: (*uid).to_owned(),
            });
            let routers = routers.collect();
            let config = wire::AgentConfig {
                routers: Some(wire::Routers { routers }),
                ..good()
            };
            routers_of(&config)
        };
        assert_eq!(routers_of(&good()), Ok(None));
        assert_eq!(told(&[]), Ok(Some(0)));
        assert_eq!(told(&[("east.router-0", "0a-1b"), ("gateway", "2c")]), Ok(Some(2)));
        assert!(told(&[("gateway", "../x")]).is_err());
        assert!(told(&[("No Name", "2c")]).is_err());
        assert!(told(&vec![("gateway", "2c"); MAX_ROUTERS + 1]).is_err());
    }

    #[test]
    fn fences_are_of_namespaces_and_bounded() {
        let told = |all: &[(&str, u64)]| {
            let orders = all.iter().map(|(namespace, epoch)| wire::FenceOrder {
                namespace: (*namespace).to_owned(),
                epoch: *epoch,
                open: Vec::new(),
            });
            let config = wire::AgentConfig {
                fences: orders.collect(),
                ..good()
            };
            fences(&config).map(|orders| orders.len())
        };
        assert_eq!(told(&[]), Ok(0));
        assert_eq!(told(&[("a", 1), ("b", 2)]), Ok(2));
        assert!(told(&[("a", 1), ("a", 2)]).is_err());
        assert!(told(&[("../a", 1)]).is_err());
        assert!(told(&vec![("a", 1); MAX_FENCES + 1]).is_err());
    }

    #[test]
    fn one_bad_entry_refuses_all_and_is_named() {
        type Spoil = fn(&mut wire::AgentConfig);
        let cases: [(Spoil, &str); 8] = [
            (|c| c.label_prefix = "no-slash".into(), "no-slash"),
            (|c| c.bucketing = None, "algorithm 0"),
            (|c| c.bucketing = Some(buckets(1, 0)), "0 buckets"),
            (|c| c.bucketing = Some(buckets(1, 70_000)), "70000"),
            (|c| c.bucketing = Some(buckets(9, 32)), "algorithm 9"),
            (|c| c.labelled_kinds[0].resource.clear(), "kind 0"),
            (|c| c.caller_selectors[0].namespace = "A".into(), "\"A\""),
            (|c| c.caller_selectors[0].selector = "a in".into(), "ops"),
        ];
        for (spoil, named) in cases {
            let mut config = good();
            spoil(&mut config);
            let error = Settings::try_from(&config).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
