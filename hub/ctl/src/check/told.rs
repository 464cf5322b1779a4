//! What the hub says of members and routers, by conditions of their objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_crds::{ConditionReason, MemberCluster, Router};

use super::hub::Seen;
use super::report::{Area, Report};
use super::skew;

/// What a member that serves has.
const OF_MEMBERS: [&str; 6] = [
    "Accepted",
    "Joined",
    "Available",
    "CredentialsReady",
    "LabelsSynced",
    "NothingLeftOut",
];
const VERSIONS_BY: &str =
    "image of Deployment portolan-hub, status.agentVersion of MemberClusters, status.version of Routers";

/// Members and routers, and which versions run. Returns the members.
pub(super) async fn look(report: &mut Report, client: &Client, seen: &Seen) -> Vec<MemberCluster> {
    let listed = Api::<MemberCluster>::all(client.clone())
        .list(&ListParams::default())
        .await;
    let members = report.read(Area::Members, "members serve", listed);
    let listed = Api::<Router>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .list(&ListParams::default())
        .await;
    let routers = report.read(Area::Routers, "routers are connected", listed);
    for member in members.iter().flatten() {
        let object = Object {
            area: Area::Members,
            kind: "MemberCluster",
            name: &member.name_any(),
            conditions: member.status.as_ref().map_or(&[][..], |status| &status.conditions),
            generation: member.metadata.generation,
        };
        object.look(report, &OF_MEMBERS, seen.leads);
    }
    for router in routers.iter().flatten() {
        let object = Object {
            area: Area::Routers,
            kind: "Router",
            name: &router.name_any(),
            conditions: router.status.as_ref().map_or(&[][..], |status| &status.conditions),
            generation: None,
        };
        object.look(report, &["Connected"], seen.leads);
    }
    nobody(
        report,
        members.as_ref().map(|all| all.items.len()),
        routers.as_ref().map(|all| all.items.len()),
    );
    let mut programs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut run = |version: Option<String>, who: String| {
        programs.entry(version.unwrap_or_default()).or_default().push(who);
    };
    run(seen.version.clone(), "the hub".to_owned());
    let now = |version: Option<String>| version.filter(|_| seen.leads);
    for member in members.iter().flatten() {
        let version = member.status.as_ref().and_then(|status| status.agent_version.clone());
        run(now(version), format!("agent of {}", member.name_any()));
    }
    for router in routers.iter().flatten() {
        let version = router.status.as_ref().and_then(|status| status.version.clone());
        run(now(version), format!("router {}", router.name_any()));
    }
    skew::tell(report, env!("CARGO_PKG_VERSION"), &programs, VERSIONS_BY);
    members.map(|members| members.items).unwrap_or_default()
}

/// Says so where there is nothing to say a word about.
fn nobody(report: &mut Report, members: Option<usize>, routers: Option<usize>) {
    if members == Some(0) {
        report.unknown(
            Area::Members,
            "members serve",
            "there is no MemberCluster: portolanctl register",
        );
    }
    if routers == Some(0) {
        report.unknown(Area::Routers, "routers are connected", "no router has enrolled");
    }
}

/// Whether the hub does not hear the agent, and so knows nothing of the member. Its other conditions are unknown then.
fn is_lost(type_: &str, reason: &str) -> bool {
    type_ == "Available" && reason == ConditionReason::HeartbeatLost.to_string()
}

/// An object that the hub says by conditions how it is.
struct Object<'a> {
    area: Area,
    kind: &'a str,
    name: &'a str,
    conditions: &'a [Condition],
    /// That conditions must be of; `None`: they are of no generation.
    generation: Option<i64>,
}

impl Object<'_> {
    /// What holds in one line, what does not in a line each.
    fn look(&self, report: &mut Report, wanted: &[&str], hub_leads: bool) {
        let object = format!("{} {}", self.kind, self.name);
        if !hub_leads {
            let why = "no hub leads that would say so; its conditions are of before";
            report.unknown(self.area, format!("{object} is {}", wanted.join(", ")), why);
            return;
        }
        let mut hold = Vec::new();
        for &type_ in wanted {
            let what = format!("{object} is {type_}");
            let Some(condition) = self.conditions.iter().find(|condition| condition.type_ == type_) else {
                report.unknown(self.area, what, format!("{object} has no such condition yet"));
                continue;
            };
            let Condition {
                status,
                reason,
                message,
                ..
            } = condition;
            let witness = format!("condition {type_}={status} {reason}: {message}");
            // All that can be had of a member whose API server labels nothing at admission.
            let holds = status == "True" || *reason == ConditionReason::NotAtAdmission.to_string();
            let is_of_before = self.generation.is_some() && condition.observed_generation < self.generation;
            if is_of_before {
                report.unknown(self.area, what, format!("condition {type_} is of an earlier spec"));
            } else if holds {
                hold.push(type_);
            } else if status == "False" || is_lost(type_, reason) {
                report.wrong(self.area, what, witness, self.fix(type_, reason));
            } else {
                report.unknown(self.area, what, witness);
            }
        }
        if !hold.is_empty() {
            let witness = format!("{object}, status.conditions");
            report.well(self.area, format!("{object} is {}", hold.join(", ")), witness);
        }
    }

    /// What is to be done, as a command if it is one.
    fn fix(&self, type_: &str, reason: &str) -> String {
        let name = self.name;
        let is = |one: ConditionReason| reason == one.to_string();
        if self.kind == "Router" {
            return format!("start it again, or, if it is gone for good: portolanctl router forget {name}");
        }
        if is(ConditionReason::NotAccepted) {
            return format!("kubectl patch membercluster {name} --type=merge -p '{{\"spec\":{{\"accept\":true}}}}'");
        }
        if is(ConditionReason::HeartbeatLost) || is(ConditionReason::WaitingForAgent) {
            return format!(
                "in {name}: kubectl -n {SYSTEM_NAMESPACE} logs deployment/portolan-agent; without one: portolanctl register {name} \
                 --kubeconfig FILE"
            );
        }
        if is(ConditionReason::ApiServerNotReady) {
            return format!("in {name}: kubectl get --raw '/readyz?verbose'");
        }
        if is(ConditionReason::Unreachable) {
            return format!("portolanctl register {name} --kubeconfig FILE --endpoint URL, as routers reach it");
        }
        match type_ {
            "CredentialsReady" => format!(
                "portolanctl allow --member-kubeconfig FILE NAMESPACE/SERVICEACCOUNT, or see {SYSTEM_NAMESPACE} of {name}"
            ),
            _ => format!("kubectl describe membercluster {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    fn condition(type_: &str, status: &str, reason: &str, generation: i64) -> Condition {
        serde_json::from_value(serde_json::json!({
            "type": type_, "status": status, "reason": reason, "message": "as it is",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    fn look(conditions: &[Condition], hub_leads: bool) -> Vec<(Verdict, String)> {
        let object = Object {
            area: Area::Members,
            kind: "MemberCluster",
            name: "east",
            conditions,
            generation: Some(2),
        };
        let mut report = Report::default();
        object.look(&mut report, &["Joined", "Available"], hub_leads);
        let findings = report.findings.into_iter();
        findings.map(|finding| (finding.verdict, finding.what)).collect()
    }

    #[test]
    fn only_what_the_hub_says_now_is_well() {
        let well = [
            condition("Joined", "True", "Ok", 2),
            condition("Available", "True", "Ok", 2),
        ];
        let all = "MemberCluster east is Joined, Available".to_owned();
        assert_eq!(look(&well, true), [(Verdict::Well, all.clone())]);
        assert_eq!(look(&well, false), [(Verdict::Unknown, all)]);
        let of_before = [
            condition("Joined", "True", "Ok", 1),
            condition("Available", "False", "Unreachable", 2),
        ];
        let joined = (Verdict::Unknown, "MemberCluster east is Joined".to_owned());
        let available = (Verdict::Wrong, "MemberCluster east is Available".to_owned());
        assert_eq!(look(&of_before, true), [joined, available]);
        let lost = look(
            &[
                condition("Joined", "True", "Ok", 2),
                condition("Available", "Unknown", "HeartbeatLost", 2),
            ],
            true,
        );
        assert_eq!(lost[0], (Verdict::Wrong, "MemberCluster east is Available".to_owned()));
        let unsaid = look(&[condition("Available", "Unknown", "WaitingForRouter", 2)], true);
        assert!(
            unsaid.iter().all(|(verdict, _)| *verdict == Verdict::Unknown),
            "{unsaid:?}"
        );
    }
}
