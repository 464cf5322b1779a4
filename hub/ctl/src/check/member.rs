//! A member, by its own kubeconfig: accounts, admission policies, the agent's Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt as _};
use portolan_crds::MemberCluster;
use portolan_crds::labels::{ROUTERS_NAMESPACE, SERVICE_ACCOUNT_AGENT, SERVICE_ACCOUNT_ROUTER, SYSTEM_NAMESPACE};
use portolan_crds::policy::INJECTION_VERSIONS;

use super::report::{Area, Report};
use super::{accounts, hub};
use crate::connect::Cluster;
use crate::join::member_rbac;
use crate::{admission, apply, injection};

const ACCOUNTS: [(&str, &str); 2] = [
    (SYSTEM_NAMESPACE, SERVICE_ACCOUNT_AGENT),
    (ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER),
];
/// Deployments of a member's cluster, as charts name them, and whether each member has one.
const DEPLOYMENTS: [(&str, &str, bool); 2] = [
    (SYSTEM_NAMESPACE, SERVICE_ACCOUNT_AGENT, true),
    (ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER, false),
];

/// By which name the hub knows the cluster of a kubeconfig, for people.
pub(super) async fn named(report: &mut Report, what: &str, member: &Cluster, members: &[MemberCluster]) -> String {
    let is_member = format!("{what} is a member");
    let Some(uid) = report.read(Area::Members, &is_member, member.uid().await) else {
        return what.to_owned();
    };
    let is_its =
        |known: &&MemberCluster| known.status.as_ref().and_then(|status| status.cluster_uid.as_ref()) == Some(&uid);
    if let Some(known) = members.iter().find(is_its) {
        let name = known.name_any();
        report.well(
            Area::Members,
            is_member,
            format!("MemberCluster {name}, status.clusterUID"),
        );
        return name;
    }
    let fix = "portolanctl register NAME --kubeconfig FILE";
    report.wrong(
        Area::Members,
        is_member,
        format!("no MemberCluster has status.clusterUID {uid}"),
        fix,
    );
    what.to_owned()
}

/// `name`: of the member, for people. `ca`: the hub's, PEM, if it is known.
pub(super) async fn look(report: &mut Report, name: &str, client: &Client, ca: Option<&str>) {
    let whose = format!("member {name}");
    let fix = format!("portolanctl register {name} --kubeconfig FILE, or helm upgrade portolan-agent …");
    if let Some(manifests) = report.read(Area::Rights, format!("{whose}: rights"), member_rbac()) {
        accounts::look(report, (&whose, client), &ACCOUNTS, &manifests, &fix).await;
    }
    policies(report, &whose, client, &fix).await;
    gateway(report, &whose, client, ca, &fix).await;
    for (namespace, program, is_of_all) in DEPLOYMENTS {
        let what = format!("{whose}: all replicas of {program} are ready");
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let object = format!("Deployment {namespace}/{program}");
        match report.read(Area::Programs, &what, deployments.get_opt(program).await) {
            Some(Some(found)) => _ = hub::replicas(report, &what, &object, &found),
            Some(None) if is_of_all => {
                report.unknown(
                    Area::Programs,
                    what,
                    format!("{object} is not there: the program runs elsewhere"),
                );
            }
            _ => {}
        }
    }
}

/// Whether the policies are there. That they are as they shall be, the agent says by condition LabelsSynced of its MemberCluster.
async fn policies(report: &mut Report, whose: &str, client: &Client, fix: &str) {
    let what = format!("{whose}: the admission policies are there");
    let Some(wanted) = report.read(Area::Policies, &what, wanted()) else {
        return;
    };
    let (mut there, mut missing, mut unserved) = (0, Vec::new(), Vec::new());
    for (policy, versions) in &wanted {
        let found = async {
            let Some(served) = admission::as_served(client, versions, policy).await? else {
                return Ok(None);
            };
            anyhow::Ok(Some(apply::exists(client, &served).await?))
        };
        let name = apply::describe(policy);
        match report.read(Area::Policies, format!("{whose}: {name} is there"), found.await) {
            Some(Some(true)) => there += 1,
            Some(Some(false)) => missing.push(name),
            Some(None) => unserved.push(name),
            None => {}
        }
    }
    if !missing.is_empty() {
        report.wrong(Area::Policies, what, format!("not there: {}", missing.join(", ")), fix);
    } else if there > 0 {
        report.well(
            Area::Policies,
            what,
            format!("{there} objects of admissionregistration.k8s.io"),
        );
    }
    if !unserved.is_empty() {
        let why = format!(
            "its API server does not serve {}, as Kubernetes 1.36 does",
            unserved.join(", ")
        );
        report.unknown(
            Area::Policies,
            format!("{whose}: labels and gateways are set at admission"),
            why,
        );
    }
}

fn wanted() -> anyhow::Result<Vec<(DynamicObject, Vec<&'static str>)>> {
    let mut wanted = Vec::new();
    for (policy, versions) in admission::named()? {
        wanted.push((policy, versions.to_vec()));
    }
    for policy in injection::policies()? {
        wanted.push((policy, INJECTION_VERSIONS.to_vec()));
    }
    Ok(wanted)
}

/// Whether Pods that ask for a gateway are told by which CA it is known.
async fn gateway(report: &mut Report, whose: &str, client: &Client, ca: Option<&str>, fix: &str) {
    let what = format!("{whose}: Pods that ask for a gateway know it by the hub's CA");
    let object = injection::name();
    let Some(found) = report.read(Area::Policies, &what, injection::gateway_opt(client).await) else {
        return;
    };
    let (Some(found), Some(ca)) = (&found, ca) else {
        let why = match found {
            None => format!("{object} is not there: no gateway is named (portolanctl register --gateway HOST)"),
            Some(_) => "the hub's CA is not known".to_owned(),
        };
        report.unknown(Area::Policies, what, why);
        return;
    };
    match report.read(Area::Policies, &what, hub::trusts(ca, &found.ca)) {
        Some(true) => report.well(Area::Policies, what, format!("{object}, data[ca.crt]")),
        Some(false) => report.wrong(Area::Policies, what, format!("{object}, data[ca.crt] is another"), fix),
        None => {}
    }
}
