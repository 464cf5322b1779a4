//! Whoever asks for a certificate of a name that is not its own.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portolan_runtime::pki;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::programs::argument;
use portolan_tests::world::{HUB, World};
use serde_json::{Value, json};

use crate::authors::{HUB_RUNS, world};

/// What somebody who may ask for certificates, and for nothing else, reaches the hub by.
async fn as_user(world: &World, user: &str) -> PathBuf {
    let admin = std::fs::read_to_string(world.cluster(HUB).direct_kubeconfig_path()).unwrap();
    let mut kubeconfig: Value = serde_yaml_ng::from_str(&admin).unwrap();
    kubeconfig["users"][0]["user"]["as"] = json!(user);
    let file = world.fleet.dir().join(format!("as-{user}.kubeconfig"));
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let role = ["create", "clusterrole", &format!("asks-{user}"), "--verb=create,get"].map(ToOwned::to_owned);
    let role: Vec<_> = role
        .iter()
        .map(String::as_str)
        .chain(["--resource=certificatesigningrequests.certificates.k8s.io"])
        .collect();
    let hub = world.direct(HUB);
    hub.ok(&role).await.unwrap();
    let (name, role, subject) = (
        format!("asks-{user}"),
        format!("--clusterrole=asks-{user}"),
        format!("--user={user}"),
    );
    hub.ok(&["create", "clusterrolebinding", &name, &role, &subject])
        .await
        .unwrap();
    file
}

/// The command for a certificate of `name`.
fn ask<'a>(hub: &'a str, router: &'a str, name: &'a str, output: &'a str) -> Vec<&'a str> {
    vec![
        "kubeconfig",
        name,
        "--hub-kubeconfig",
        hub,
        "--router",
        router,
        "--cluster",
        "east",
        "--output",
        output,
    ]
}

#[tokio::test]
async fn ones_own_name_is_signed_and_anothers_is_approved_first() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let (hub, router) = (
        argument(&as_user(world, "bob").await),
        world.fleet.router_url().unwrap(),
    );
    let secrets = ["get", "secrets", "-n", "portolan-system", "--as=bob"];
    assert!(
        world.direct(HUB).refused(&secrets).await.unwrap().contains("forbidden"),
        "nothing of the CA is his"
    );
    let own = argument(&world.fleet.dir().join("bob.kubeconfig"));
    ctl::ok(&ask(&hub, &router, "bob", &own)).await.unwrap();
    let written: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(&own).unwrap()).unwrap();
    let certificate = written["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
    let certificate = STANDARD.decode(certificate).unwrap();
    assert!(certificate.starts_with(b"-----BEGIN CERTIFICATE-----"));

    let other = argument(&world.fleet.dir().join("carol.kubeconfig"));
    let asking = ask(&hub, &router, "carol", &other);
    let asking = ctl::portolanctl(&asking);
    let admin = world.direct(HUB);
    let approving = async {
        let pending = "-o=jsonpath={range .items[?(@.spec.username==\"bob\")]}{.metadata.name} {.status}{\"\\n\"}{end}";
        let waiting = eventually("what asks for another's name waits", || async {
            let all = admin.ok(&["get", "certificatesigningrequests", pending]).await.ok()?;
            let waiting = all.lines().find(|line| !line.contains("Approved"))?;
            waiting.split(' ').next().map(ToOwned::to_owned)
        })
        .await;
        admin.ok(&["certificate", "approve", &waiting]).await.unwrap();
    };
    let (asked, ()) = tokio::join!(asking, approving);
    let asked = asked.unwrap();
    assert!(
        asked.ok && asked.stderr.contains("kubectl certificate approve portolan-person-"),
        "{}",
        asked.stderr
    );
}

#[tokio::test]
async fn no_person_is_called_as_a_program_is() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let admin = world.direct(HUB);
    for (index, (name, group)) in [
        ("portolan:agent:east", Some("portolan:agents")),
        ("portolan:router:gateway", Some("portolan:routers")),
        ("mallory", Some("system:masters")),
        ("system:serviceaccount:portolan-system:portolan-hub", None),
    ]
    .into_iter()
    .enumerate()
    {
        let csr = pki::named_request(&pki::new_private_key().unwrap(), name, group).unwrap();
        let object = format!("program-{index}");
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": object},
            "spec": {"request": STANDARD.encode(csr), "signerName": "ctrlmesh.kusionstack.io/person", "usages": ["client auth"]},
        });
        admin
            .ok_with(&["create", "-f", "-"], &request.to_string())
            .await
            .unwrap();
        // Whoever approves.
        let _ = admin.run(&["certificate", "approve", &object], "").await.unwrap();
        let look = [
            "get",
            "certificatesigningrequest",
            &object,
            "-o",
            "jsonpath={.status.conditions[*].type} {.status.certificate}",
        ];
        eventually("it fails", || async {
            admin.ok(&look).await.is_ok_and(|said| said.contains("Failed"))
        })
        .await;
        assert!(
            !admin.ok(&look).await.unwrap().contains("LS0t"),
            "no certificate for {name}"
        );
    }
}
