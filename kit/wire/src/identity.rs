//! Who speaks on a stream: the subject of a client certificate, in the Kubernetes custom (CN is the user, O a group).
//!
//! Used by the hub when it signs and when it serves, by agents and routers to know their own name, and by the router to
//! tell a program's certificate from a person's.

use std::fmt;

const AGENT_GROUP: &str = "portolan:agents";
const ROUTER_GROUP: &str = "portolan:routers";
const AGENT_PREFIX: &str = "portolan:agent:";
const ROUTER_PREFIX: &str = "portolan:router:";

/// The owner of a certificate of the hub CA.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The agent of this member cluster.
    Agent(String),
    /// The router of this name.
    Router(String),
    /// A person, with groups; see `portolanctl kubeconfig`.
    Person {
        /// User name, the certificate's CN.
        user: String,
        /// Groups, the certificate's Os.
        groups: Vec<String>,
    },
}

impl Identity {
    /// Reads a subject. A program's name without its group, or its group without the name, is nobody: `None`.
    pub fn from_subject(common_name: &str, organizations: &[String]) -> Option<Self> {
        let in_group = |group: &str| organizations.iter().any(|o| o == group);
        let reserved = in_group(AGENT_GROUP)
            || in_group(ROUTER_GROUP)
            || common_name.starts_with("portolan:agent")
            || common_name.starts_with("portolan:router");
        if let Some(cluster) = common_name.strip_prefix(AGENT_PREFIX) {
            return (organizations == [AGENT_GROUP] && !cluster.is_empty()).then(|| Self::Agent(cluster.to_owned()));
        }
        if let Some(name) = common_name.strip_prefix(ROUTER_PREFIX) {
            return (organizations == [ROUTER_GROUP] && !name.is_empty()).then(|| Self::Router(name.to_owned()));
        }
        (!reserved && !common_name.is_empty()).then(|| Self::Person {
            user: common_name.to_owned(),
            groups: organizations.to_vec(),
        })
    }

    /// The certificate's CN.
    pub fn common_name(&self) -> String {
        match self {
            Self::Agent(cluster) => format!("{AGENT_PREFIX}{cluster}"),
            Self::Router(name) => format!("{ROUTER_PREFIX}{name}"),
            Self::Person { user, .. } => user.clone(),
        }
    }

    /// The certificate's Os.
    pub fn organizations(&self) -> Vec<String> {
        match self {
            Self::Agent(_) => vec![AGENT_GROUP.to_owned()],
            Self::Router(_) => vec![ROUTER_GROUP.to_owned()],
            Self::Person { groups, .. } => groups.clone(),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.common_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_round_trip() {
        for identity in [
            Identity::Agent("east".into()),
            Identity::Router("gateway".into()),
            Identity::Person {
                user: "ada".into(),
                groups: vec!["sre".into()],
            },
        ] {
            let read = Identity::from_subject(&identity.common_name(), &identity.organizations());
            assert_eq!(read, Some(identity));
        }
    }

    #[test]
    fn half_a_program_is_nobody() {
        for (name, groups) in [
            ("portolan:agent:east", vec![]),
            ("portolan:agent:east", vec!["portolan:routers".to_owned()]),
            ("ada", vec!["portolan:agents".to_owned()]),
            ("portolan:agent:", vec!["portolan:agents".to_owned()]),
            ("portolan:agents", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(Identity::from_subject(name, &groups), None, "{name} {groups:?}");
        }
    }
}
