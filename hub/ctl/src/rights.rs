//! Which rights register, unregister and check need and whoever runs them does not have, asked of the clusters before anything is written.

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{Api, DynamicObject, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::{CONFIG_MAP_CA, GROUP, LEASE_HUB, SERVICE_HUB, SYSTEM_NAMESPACE, WEBHOOK_AUTHORS};
use portolan_crds::policy;

use crate::apply::{self, MANAGER};
use crate::grant::Grants;

/// What an apply needs.
const APPLIES: [&str; 2] = ["create", "patch"];
/// What policies are written by.
const WRITES: [&str; 3] = ["get", "create", "update"];
const POLICIES: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];
const RBAC: &str = "rbac.authorization.k8s.io";

/// A kind that something is to be done with.
struct Right<'a> {
    verbs: &'a [&'a str],
    group: &'a str,
    resource: &'a str,
    namespace: Option<&'a str>,
    /// Of the one object; `None`: of each.
    name: Option<&'a str>,
}

/// What is missing on the hub, as lines.
pub(crate) async fn missing_in_hub(hub: &Client) -> anyhow::Result<Vec<String>> {
    let system = Some(SYSTEM_NAMESPACE);
    let rights = [
        right(
            &["get", "list", "create", "patch", "delete"],
            GROUP,
            "memberclusters",
            None,
        ),
        right(&["list"], GROUP, "shardingconfigs", None),
        right(&["create"], "", "secrets", system),
        right(&["get", "list"], "", "configmaps", system),
    ];
    missing("the hub cluster", hub, &rights).await
}

/// What is missing on the hub to take it out, as lines.
pub(crate) async fn missing_to_uninstall(hub: &Client, deletes_shards: bool) -> anyhow::Result<Vec<String>> {
    let system = Some(SYSTEM_NAMESPACE);
    let shards: &[&str] = if deletes_shards {
        &["list", "patch", "delete"]
    } else {
        &["list", "patch"]
    };
    let rights = [
        named(&["patch"], "apps", "deployments", system, SERVICE_HUB),
        named(&["get"], "coordination.k8s.io", "leases", system, LEASE_HUB),
        right(&["list"], "", "pods", system),
        right(shards, GROUP, "shardingconfigs", None),
        right(&["list"], GROUP, "memberclusters", None),
    ];
    missing("the hub cluster", hub, &rights).await
}

/// What is missing on the hub to look at all that a check looks at, as lines.
pub(crate) async fn missing_to_check(hub: &Client) -> anyhow::Result<Vec<String>> {
    let (system, kind) = (Some(SYSTEM_NAMESPACE), format!("memberclusters.{GROUP}"));
    let rights = [
        named(&["get"], "coordination.k8s.io", "leases", system, LEASE_HUB),
        named(&["get"], "apps", "deployments", system, SERVICE_HUB),
        named(&["get"], "", "configmaps", system, CONFIG_MAP_CA),
        named(
            &["get"],
            policy::GROUP,
            "validatingwebhookconfigurations",
            None,
            WEBHOOK_AUTHORS,
        ),
        right(&["list"], GROUP, "memberclusters", None),
        right(&["list"], GROUP, "routers", system),
        right(&["create"], "authorization.k8s.io", "subjectaccessreviews", None),
        // One of those that are looked at: rights are given by name.
        named(
            &["get"],
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            None,
            &kind,
        ),
    ];
    missing("the hub cluster", hub, &rights).await
}

/// What is missing in the member for these objects, the policies, the callers and, if Pods are to be told of one, a gateway, as lines.
pub(crate) async fn missing_in_member(
    name: &str,
    member: &Client,
    objects: &[DynamicObject],
    grants: &Grants,
    has_gateway: bool,
) -> anyhow::Result<Vec<String>> {
    let what = format!("member cluster {name}");
    let served = objects.iter().map(|object| async move {
        let (resource, _) = apply::resource_of(member, object).await?;
        Ok::<_, anyhow::Error>((resource, object.namespace()))
    });
    let mut served = try_join_all(served).await?;
    served.sort_by(|one, other| (&one.0.plural, &one.1).cmp(&(&other.0.plural, &other.1)));
    served.dedup_by(|one, other| (&one.0.plural, &one.1) == (&other.0.plural, &other.1));
    let applied = served
        .iter()
        .map(|(resource, namespace)| right(&APPLIES, &resource.group, &resource.plural, namespace.as_deref()));
    let policies = POLICIES
        .iter()
        .map(|resource| right(&WRITES, policy::GROUP, resource, None));
    let system = Some(SYSTEM_NAMESPACE);
    let invitation = [
        right(&["get", "create", "patch"], "", "secrets", system),
        right(&["create", "patch"], "", "configmaps", system),
    ];
    let callers = grants.namespaces().flat_map(|namespace| {
        ["roles", "rolebindings"].map(|resource| right(&WRITES, RBAC, resource, Some(namespace)))
    });
    let pods = [right(&["list", "patch"], "", "pods", None)];
    let pods = pods.into_iter().filter(|_| has_gateway);
    let all = applied.chain(policies).chain(invitation).chain(callers).chain(pods);
    let mut lines = missing(&what, member, &all.collect::<Vec<_>>()).await?;
    if lines.is_empty() {
        lines = unheld(&what, member, objects).await?;
    }
    Ok(lines)
}

/// What is missing in the member to take these objects out again, as lines; `made` are those that are made for that.
pub(crate) async fn missing_to_take_out(
    name: &str,
    member: &Client,
    made: &[DynamicObject],
) -> anyhow::Result<Vec<String>> {
    let what = format!("member cluster {name}");
    let system = Some(SYSTEM_NAMESPACE);
    let deletes = [
        ("", "namespaces"),
        (RBAC, "clusterroles"),
        (RBAC, "clusterrolebindings"),
        (RBAC, "roles"),
        (RBAC, "rolebindings"),
    ];
    let deletes = deletes.map(|(group, resource)| right(&["create", "patch", "list", "delete"], group, resource, None));
    let policies = POLICIES.map(|resource| right(&["delete"], policy::GROUP, resource, None));
    let agent = [
        right(&["get", "patch", "delete"], "apps", "deployments", system),
        right(&["get", "create", "delete"], "batch", "jobs", system),
        right(&["list"], "", "pods", None),
        right(&["delete"], "", "secrets", system),
        right(&["delete"], "", "configmaps", system),
    ];
    let all = deletes.into_iter().chain(policies).chain(agent);
    let mut lines = missing(&what, member, &all.collect::<Vec<_>>()).await?;
    if lines.is_empty() {
        lines = unheld(&what, member, made).await?;
    }
    Ok(lines)
}

fn right<'a>(verbs: &'a [&'a str], group: &'a str, resource: &'a str, namespace: Option<&'a str>) -> Right<'a> {
    Right {
        verbs,
        group,
        resource,
        namespace,
        name: None,
    }
}

fn named<'a>(
    verbs: &'a [&'a str],
    group: &'a str,
    resource: &'a str,
    namespace: Option<&'a str>,
    name: &'a str,
) -> Right<'a> {
    Right {
        name: Some(name),
        ..right(verbs, group, resource, namespace)
    }
}

/// Roles that give more than whoever runs this has: the API server refuses them, which a dry run tells.
async fn unheld(what: &str, member: &Client, objects: &[DynamicObject]) -> anyhow::Result<Vec<String>> {
    let roles = objects
        .iter()
        .filter(|object| object.types.as_ref().is_some_and(|types| types.kind == "ClusterRole"));
    let mut lines = Vec::new();
    for role in roles {
        let tried = apply::apply_as(member, role, &PatchParams::apply(MANAGER).force().dry_run()).await;
        if let Err(error) = tried {
            lines.push(format!("{what}: {}", crate::sentence::of(&error)));
        }
    }
    Ok(lines)
}

async fn missing(what: &str, client: &Client, rights: &[Right<'_>]) -> anyhow::Result<Vec<String>> {
    let each = rights
        .iter()
        .flat_map(|right| right.verbs.iter().map(move |verb| (right, *verb)));
    let asked = each.map(|(right, verb)| async move {
        let allowed = is_allowed(client, right, verb).await;
        let allowed = allowed.with_context(|| format!("{what} does not say what whoever runs this may do"))?;
        let place = right
            .namespace
            .map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        let group = if right.group.is_empty() {
            String::new()
        } else {
            format!(".{}", right.group)
        };
        Ok::<_, anyhow::Error>((!allowed).then(|| format!("{what}: {verb} {}{group}{place}", right.resource)))
    });
    Ok(try_join_all(asked).await?.into_iter().flatten().collect())
}

async fn is_allowed(client: &Client, right: &Right<'_>, verb: &str) -> Result<bool, kube::Error> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(right.group.to_owned()),
                resource: Some(right.resource.to_owned()),
                namespace: right.namespace.map(ToOwned::to_owned),
                name: right.name.map(ToOwned::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
