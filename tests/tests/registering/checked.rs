//! `portolanctl check`: nothing wrong is found in what is well, and each thing that is broken is found by the object that says so.

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicyBinding, ValidatingWebhookConfiguration};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use nix::sys::signal::Signal;

use super::*;

#[tokio::test]
async fn a_check_finds_what_is_broken_by_who_says_so() {
    let ground = Ground::start(&["east"]).await;
    let endpoint = url(ground.cluster("east"));
    let flags = ["--endpoint", &endpoint, "--gateway", "localhost"];
    let (registered, mut agent) = tokio::join!(ground.run("register", "east", &flags), ground.agent("east"));
    says(&registered, true, &["member cluster east serves"]);

    let well = Check::run(&ground, &[]).await;
    assert!(well.ok && well.wrong().is_empty(), "{:#}", well.told);
    for what in [
        "kind ShardingConfig is served as this version has it",
        "a replica of the hub leads",
        "hub: ServiceAccount portolan-system/portolan-hub may do what it has to",
        "the hub's CA is good for longer than 30 days",
        "the API server verifies the hub's webhooks by its CA",
        "MemberCluster east is Accepted, Joined, Available, CredentialsReady, LabelsSynced, NothingLeftOut",
        "Router gateway is Connected",
        "member east: ServiceAccount portolan-system/portolan-agent may do what it has to",
        "member east: ServiceAccount portolan-routers/portolan-router may do what it has to",
        "member east: the admission policies are there",
        "member east: Pods that ask for a gateway know it by the hub's CA",
    ] {
        assert_eq!(well.verdict(what), "well", "{what}");
    }
    // Nobody says of a process which version it is of.
    assert_eq!(well.verdict("all replicas of the hub are ready"), "unknown");
    assert_eq!(well.verdict("the version of the hub"), "unknown");
    assert!(
        !Check::run(&ground, &["--strict"]).await.ok,
        "what is unknown fails if it is to"
    );

    the_hub_stands_still(&ground).await;
    rights_and_policies_are_gone(&ground).await;
    agent.kill().await.unwrap();
    eventually("the member's absence is found", || async {
        let check = Check::run(&ground, &[]).await;
        let witness = check.witness_of_wrong("MemberCluster east is Available")?;
        if witness.contains("Available=Unknown HeartbeatLost") && !check.ok {
            Ok(())
        } else {
            Err(witness)
        }
    })
    .await;
}

/// What it mends by itself it does not mend meanwhile, and what it said of members is of before.
async fn the_hub_stands_still(ground: &Ground) {
    let hub = ground.cluster("hub").client().await.unwrap();
    ground.hub.signal(Signal::SIGSTOP).unwrap();
    let bundle = json!({"webhooks": [{"name": "authors.ctrlmesh.kusionstack.io", "clientConfig": {"caBundle": null}}]});
    Api::<ValidatingWebhookConfiguration>::all(hub.clone())
        .patch("portolan-authors", &PatchParams::default(), &Patch::Strategic(bundle))
        .await
        .unwrap();
    let kinds = Api::<CustomResourceDefinition>::all(hub.clone());
    let before = json!([{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/cordoned"}]);
    let before: Patch<()> = Patch::Json(serde_json::from_value(before).unwrap());
    let name = "memberclusters.ctrlmesh.kusionstack.io";
    kinds.patch(name, &PatchParams::default(), &before).await.unwrap();
    Api::<CustomResourceDefinition>::all(hub)
        .delete("routers.ctrlmesh.kusionstack.io", &DeleteParams::default())
        .await
        .unwrap();
    let check = Check::run(ground, &[]).await;
    assert!(!check.ok);
    let wrong = [
        ("a replica of the hub leads", "was not renewed"),
        ("kind MemberCluster is served as this version has it", "spec.versions"),
        ("kind Router is served as this version has it", "is not there"),
        (
            "the API server verifies the hub's webhooks by its CA",
            "caBundle of authors.ctrlmesh.kusionstack.io is another",
        ),
    ];
    for (what, witness) in wrong {
        let found = check.witness_of_wrong(what).unwrap();
        assert!(found.contains(witness), "{what}: {found}");
    }
    assert_eq!(check.wrong().len(), wrong.len(), "{:#}", check.told);
    let members = "MemberCluster east is Accepted, Joined, Available, CredentialsReady, LabelsSynced, NothingLeftOut";
    assert_eq!(check.verdict(members), "unknown");
    assert_eq!(check.verdict("routers are connected"), "unknown");

    ground.hub.signal(Signal::SIGCONT).unwrap();
    let kubeconfig = argument(ground.cluster("hub").kubeconfig_path());
    let webhook = ground.hub.webhook_url();
    let install = ["install", "--hub-kubeconfig", &kubeconfig, "--webhook-url", &webhook];
    ctl::ok(&install).await.unwrap();
    eventually("the hub leads again", || async {
        let check = Check::run(ground, &[]).await;
        check
            .verdict_of("a replica of the hub leads")
            .filter(|verdict| verdict == "well")
            .ok_or(check.told)
    })
    .await;
}

async fn rights_and_policies_are_gone(ground: &Ground) {
    let [hub, east] = ["hub", "east"].map(|name| ground.cluster(name));
    let (hub, east) = (hub.client().await.unwrap(), east.client().await.unwrap());
    for (client, name) in [(&hub, "portolan-hub"), (&east, "portolan-router")] {
        let bindings = Api::<ClusterRoleBinding>::all(client.clone());
        bindings.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let bindings = Api::<MutatingAdmissionPolicyBinding>::all(east);
    bindings
        .delete("portolan-inject", &DeleteParams::default())
        .await
        .unwrap();
    let check = Check::run(ground, &[]).await;
    let wrong = [
        (
            "hub: ServiceAccount portolan-system/portolan-hub may do what it has to",
            "shardingconfigs",
        ),
        (
            "member east: ServiceAccount portolan-routers/portolan-router may do what it has to",
            "create subjectaccessreviews",
        ),
        (
            "member east: the admission policies are there",
            "MutatingAdmissionPolicyBinding portolan-inject",
        ),
    ];
    for (what, witness) in wrong {
        let found = check.witness_of_wrong(what).unwrap();
        assert!(found.contains(witness), "{what}: {found}");
    }
    let kubeconfig = argument(ground.cluster("hub").kubeconfig_path());
    let webhook = ground.hub.webhook_url();
    let install = ["install", "--hub-kubeconfig", &kubeconfig, "--webhook-url", &webhook];
    ctl::ok(&install).await.unwrap();
}

/// What a check found.
struct Check {
    ok: bool,
    told: Value,
}

impl Check {
    async fn run(ground: &Ground, more: &[&str]) -> Self {
        let [hub, east] = ["hub", "east"].map(|name| argument(ground.cluster(name).kubeconfig_path()));
        let clusters = [
            "check",
            "--hub-kubeconfig",
            &hub,
            "--member-kubeconfig",
            &east,
            "-o",
            "json",
        ];
        let ended = ctl::portolanctl(&[&clusters[..], more].concat()).await.unwrap();
        let told = serde_json::from_str(&ended.stdout);
        Self {
            ok: ended.ok,
            told: told.unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr)),
        }
    }

    fn findings(&self) -> &[Value] {
        self.told["findings"].as_array().unwrap()
    }

    fn wrong(&self) -> Vec<&Value> {
        self.findings().iter().filter(|one| one["verdict"] == "wrong").collect()
    }

    fn verdict_of(&self, what: &str) -> Option<String> {
        let found = self.findings().iter().find(|one| one["what"] == what)?;
        found["verdict"].as_str().map(ToOwned::to_owned)
    }

    fn verdict(&self, what: &str) -> String {
        self.verdict_of(what)
            .unwrap_or_else(|| panic!("{what}: {:#}", self.told))
    }

    /// An error if it is not wrong; each wrong one says what to do.
    fn witness_of_wrong(&self, what: &str) -> Result<String, String> {
        let found = self.wrong().into_iter().find(|one| one["what"] == what);
        let found = found.filter(|one| one["fix"].as_str().is_some_and(|fix| !fix.is_empty()));
        let witness = found.and_then(|one| one["witness"].as_str());
        witness
            .map(ToOwned::to_owned)
            .ok_or_else(|| format!("{what}: {:#}", self.told))
    }
}
