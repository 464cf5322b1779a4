//! What ServiceAccounts of Portolan may do, asked of the API server for each rule of the manifests that give it to them.

use std::collections::BTreeSet;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::names::{service_account_of, service_account_user};

use super::report::{Area, Report};

/// Questions that are under way at a time.
const ASKED_AT_ONCE: usize = 16;
/// Missing rights that are named.
const NAMED: usize = 6;

/// Tells whether these accounts (namespace, name) may do what the manifests let them. `fix`: what gives it back to them.
pub(super) async fn look(
    report: &mut Report,
    (whose, client): (&str, &Client),
    accounts: &[(&str, &str)],
    manifests: &[DynamicObject],
    fix: &str,
) {
    for (namespace, name) in accounts {
        let what = format!("{whose}: ServiceAccount {namespace}/{name} may do what it has to");
        let looked = missing(client, (namespace, name), manifests).await;
        let Some((asked, missing)) = report.read(Area::Rights, &what, looked) else {
            continue;
        };
        if missing.is_empty() {
            let witness = format!("SubjectAccessReview, status.allowed of {asked}");
            report.well(Area::Rights, what, witness);
        } else {
            let more = missing.len().saturating_sub(NAMED);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let named: Vec<_> = missing.into_iter().take(NAMED).collect();
            let witness = format!(
                "SubjectAccessReview, status.allowed is false for {}{more}",
                named.join(", ")
            );
            report.wrong(Area::Rights, what, witness, fix);
        }
    }
}

/// How many questions were asked, and what is not allowed.
async fn missing(
    client: &Client,
    (namespace, name): (&str, &str),
    manifests: &[DynamicObject],
) -> anyhow::Result<(usize, Vec<String>)> {
    let asked = questions((namespace, name), manifests)?;
    let user = service_account_user(namespace, name);
    let reviews = stream::iter(asked.iter().cloned()).map(|question| {
        let user = user.clone();
        async move {
            let allowed = is_allowed(client, &user, &question).await;
            allowed.map(|allowed| (!allowed).then(|| question.to_string()))
        }
    });
    let missing: Vec<_> = reviews.buffered(ASKED_AT_ONCE).try_collect().await?;
    Ok((asked.len(), missing.into_iter().flatten().collect()))
}

/// One thing that may be done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Resource {
        verb: String,
        group: String,
        resource: String,
        name: Option<String>,
        namespace: Option<String>,
    },
    Url {
        verb: String,
        path: String,
    },
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url { verb, path } => write!(f, "{verb} {path}"),
            Self::Resource {
                verb,
                group,
                resource,
                name,
                namespace,
            } => {
                write!(f, "{verb} {resource}")?;
                if !group.is_empty() {
                    write!(f, ".{group}")?;
                }
                if let Some(name) = name {
                    write!(f, " {name}")?;
                }
                match namespace {
                    Some(namespace) => write!(f, " in namespace {namespace}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// What the manifests let the account do.
fn questions((namespace, name): (&str, &str), manifests: &[DynamicObject]) -> anyhow::Result<BTreeSet<Question>> {
    let mut found = BTreeSet::new();
    for binding in manifests.iter().filter(|object| kind(object).ends_with("RoleBinding")) {
        let subjects: Vec<Subject> = part(binding, "subjects")?;
        let is_its = |subject: &Subject| {
            subject.kind == "ServiceAccount" && subject.name == name && subject.namespace.as_deref() == Some(namespace)
        };
        if !subjects.iter().any(is_its) {
            continue;
        }
        let of: RoleRef = part(binding, "roleRef")?;
        let is_named = |object: &&DynamicObject| {
            let is_there = of.kind == "ClusterRole" || object.namespace() == binding.namespace();
            kind(object) == of.kind && object.name_any() == of.name && is_there
        };
        let role = manifests.iter().find(is_named);
        let role = role.with_context(|| format!("the manifests have no {} {}", of.kind, of.name))?;
        for rule in part::<Vec<PolicyRule>>(role, "rules")? {
            ask(&mut found, &rule, binding.namespace().as_deref());
        }
    }
    Ok(found)
}

fn ask(found: &mut BTreeSet<Question>, rule: &PolicyRule, namespace: Option<&str>) {
    for verb in &rule.verbs {
        for path in rule.non_resource_urls.iter().flatten() {
            found.insert(Question::Url {
                verb: verb.clone(),
                path: path.clone(),
            });
        }
        let names = rule.resource_names.clone().unwrap_or_default();
        let names: Vec<_> = if names.is_empty() {
            vec![None]
        } else {
            names.into_iter().map(Some).collect()
        };
        for (group, resource) in pairs(rule) {
            found.extend(names.iter().map(|name| Question::Resource {
                verb: verb.clone(),
                group: group.clone(),
                resource: resource.clone(),
                name: name.clone(),
                namespace: namespace.map(ToOwned::to_owned),
            }));
        }
    }
}

fn pairs(rule: &PolicyRule) -> impl Iterator<Item = (&String, &String)> {
    let groups = rule.api_groups.iter().flatten();
    groups.flat_map(|group| rule.resources.iter().flatten().map(move |resource| (group, resource)))
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

fn part<T: serde::de::DeserializeOwned>(object: &DynamicObject, name: &str) -> anyhow::Result<T> {
    serde_json::from_value(object.data[name].clone()).with_context(|| format!("{name} of {}", object.name_any()))
}

/// Groups that the API server gives a ServiceAccount that it has recognized.
fn groups(user: &str) -> Vec<String> {
    let namespace = service_account_of(user).map(|(namespace, _)| format!("system:serviceaccounts:{namespace}"));
    let all = ["system:serviceaccounts", "system:authenticated"].map(ToOwned::to_owned);
    all.into_iter().chain(namespace).collect()
}

async fn is_allowed(client: &Client, user: &str, question: &Question) -> Result<bool, kube::Error> {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        groups: Some(groups(user)),
        ..SubjectAccessReviewSpec::default()
    };
    match question.clone() {
        Question::Url { verb, path } => {
            spec.non_resource_attributes = Some(NonResourceAttributes {
                verb: Some(verb),
                path: Some(path),
            });
        }
        Question::Resource {
            verb,
            group,
            resource,
            name,
            namespace,
        } => {
            let (resource, subresource) = match resource.split_once('/') {
                Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
                None => (resource, None),
            };
            spec.resource_attributes = Some(ResourceAttributes {
                verb: Some(verb),
                group: Some(group),
                resource: Some(resource),
                subresource,
                name,
                namespace,
                ..ResourceAttributes::default()
            });
        }
    }
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_manifests_let_an_account_do_is_asked() {
        let member = crate::join::member_rbac().unwrap();
        let told = |account| -> Vec<String> {
            let found = questions(account, &member).unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        let agent = told(("portolan-system", "portolan-agent"));
        for line in [
            "patch deployments.apps",
            "get namespaces kube-system",
            "create serviceaccounts/token portolan-proof in namespace portolan-system",
            "list leases.coordination.k8s.io in namespace kube-system",
            "get /version",
        ] {
            assert!(agent.iter().any(|one| one == line), "{line}: {agent:?}");
        }
        assert!(!agent.iter().any(|line| line.contains("subjectaccessreviews")));
        let router = told(("portolan-routers", "portolan-router"));
        assert!(
            router
                .iter()
                .any(|line| line == "create subjectaccessreviews.authorization.k8s.io")
        );
        assert!(told(("portolan-system", "nobody")).is_empty());
    }
}
