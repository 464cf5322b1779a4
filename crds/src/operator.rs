//! Operators: whose shards contend for namespaces. Programs that are no copies of each other may both own one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::names::{NameError, ShardName, check_dns_label};
use crate::sharding::ShardingConfigSpec;

/// Operators of one namespace of the hub at most, that without a name among them.
pub const OPERATORS_MAX: usize = 32;

/// One program of one namespace of the hub cluster: (cluster, namespace) pairs are shared out among its shards, whoever else's
/// own them too. Written `namespace/operator`; `namespace/` is what the namespace's ShardingConfigs without `spec.operator`
/// are of, and the empty text, in a ledger whose pairs have one owner each, is everybody.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperatorName(Arc<str>);

/// Who contends for a pair with whom, in a whole ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contention {
    /// All shards: a pair has one owner. So it is in ledgers of earlier releases.
    #[default]
    Fleet,
    /// Shards of one operator: a pair has one owner of each.
    Operator,
}

impl Contention {
    /// Whether ledgers of before have it, which say nothing of it.
    pub fn is_fleet(&self) -> bool {
        *self == Self::Fleet
    }

    /// With whose shards `shard` contends under `spec`.
    pub fn of(self, shard: &ShardName, spec: &ShardingConfigSpec) -> OperatorName {
        match self {
            Self::Fleet => OperatorName::default(),
            Self::Operator => OperatorName::of(shard.namespace(), spec.operator.as_deref()),
        }
    }
}

impl OperatorName {
    fn of(namespace: &str, name: Option<&str>) -> Self {
        Self(format!("{namespace}/{}", name.unwrap_or_default()).into())
    }

    /// Namespace of its ShardingConfigs; empty: it is everybody.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Their `spec.operator`; `None`: they have none, or it is everybody.
    pub fn name(&self) -> Option<&str> {
        let (_, name) = self.0.split_once('/')?;
        (!name.is_empty()).then_some(name)
    }

    /// Whether it is everybody.
    pub fn is_everybody(&self) -> bool {
        self.0.is_empty()
    }
}

/// Everybody.
impl Default for OperatorName {
    fn default() -> Self {
        Self("".into())
    }
}

impl FromStr for OperatorName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| NameError::Operator(text.to_owned()))?;
        check_dns_label(namespace)?;
        if !name.is_empty() {
            check_dns_label(name)?;
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for OperatorName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<OperatorName> for String {
    fn from(operator: OperatorName) -> Self {
        operator.0.as_ref().to_owned()
    }
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_shards_contend_follows_from_the_namespace_and_the_name() {
        let shard = |namespace: &str| ShardName::new(namespace, "blue").unwrap();
        let spec = |name: Option<&str>| ShardingConfigSpec {
            operator: name.map(str::to_owned),
            ..ShardingConfigSpec::default()
        };
        let of = |namespace, name| Contention::Operator.of(&shard(namespace), &spec(name));
        assert_eq!(of("ops", None), of("ops", None));
        assert_ne!(of("ops", None), of("ops", Some("rollouts")));
        assert_ne!(
            of("ops", Some("rollouts")),
            of("shop", Some("rollouts")),
            "nobody joins another namespace's"
        );
        assert_eq!(
            Contention::Fleet.of(&shard("ops"), &spec(Some("rollouts"))),
            Contention::Fleet.of(&shard("shop"), &spec(None))
        );
        let one = of("ops", Some("rollouts"));
        assert_eq!((one.namespace(), one.name()), ("ops", Some("rollouts")));
        for operator in [one, of("ops", None), OperatorName::default()] {
            assert_eq!(operator.to_string().parse(), Ok(operator));
        }
        for text in ["ops", "ops/A", "OPS/a", "ops/a/b", "/a"] {
            assert!(text.parse::<OperatorName>().is_err(), "{text}");
        }
    }
}
