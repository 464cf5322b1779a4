//! Who speaks on a stream: the subject of a client certificate, in the Kubernetes custom (CN is the user, O a group).
//!
//! Used by the hub when it signs and when it serves, by agents and routers to know their own name, and by the router to
//! tell a program's certificate from a person's.

use std::fmt;

const AGENT_GROUP: &str = "portolan:agents";
const ROUTER_GROUP: &str = "portolan:routers";
const AGENT_PREFIX: &str = "portolan:agent:";
const ROUTER_PREFIX: &str = "portolan:router:";

/// Common names of the CAs below the hub's own, each for one kind of identity.
const AGENT_ISSUER: &str = "portolan agents";
const ROUTER_ISSUER: &str = "portolan routers";
const PERSON_ISSUER: &str = "portolan people";

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
    /// Common names of the CAs that issue one kind of identity each: for agents, routers and people.
    pub const ISSUERS: [&str; 3] = [AGENT_ISSUER, ROUTER_ISSUER, PERSON_ISSUER];

    /// Common name of the CA that issues for this kind of identity, and for no other.
    pub fn issuer(&self) -> &'static str {
        match self {
            Self::Agent(_) => AGENT_ISSUER,
            Self::Router(_) => ROUTER_ISSUER,
            Self::Person { .. } => PERSON_ISSUER,
        }
    }

    /// Reads a verified certificate: its issuer's common name, and its subject. What a CA for people calls an agent is
    /// nobody. The hub's own CA may name everybody: an old one has none below it.
    pub fn of_certificate(issuer: &str, common_name: &str, organizations: &[String]) -> Option<Self> {
        let identity = Self::from_subject(common_name, organizations)?;
        let of_another_kind = Self::ISSUERS.contains(&issuer) && issuer != identity.issuer();
        (!of_another_kind).then_some(identity)
    }

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
    fn a_ca_of_one_kind_names_no_other() {
        let group = |identity: &Identity| identity.organizations();
        let all = [
            Identity::Agent("east".into()),
            Identity::Router("gateway".into()),
            Identity::Person {
                user: "ada".into(),
                groups: Vec::new(),
            },
        ];
        for identity in &all {
            for issuer in Identity::ISSUERS.into_iter().chain(["portolan hub CA"]) {
                let read = Identity::of_certificate(issuer, &identity.common_name(), &group(identity));
                let may = issuer == identity.issuer() || issuer == "portolan hub CA";
                assert_eq!(read.as_ref(), may.then_some(identity), "{issuer}: {identity}");
            }
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
