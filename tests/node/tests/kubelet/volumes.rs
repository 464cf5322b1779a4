//! What Pods read: volumes of every kind, variables, tokens.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use portolan_testbed::eventually;
use serde_json::{Value, json};

use crate::world::{PROGRAM, Room, SH, World, ask, in_networks, ip};

const ACCOUNT: &str = "/read/var/run/secrets/kubernetes.io/serviceaccount";

async fn create_material(room: &Room) {
    let map = json!({"metadata": {"name": "settings"}, "data": {"colour": "red", "size": "9"}});
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    let maps = Api::<ConfigMap>::namespaced(room.client.clone(), &room.namespace);
    maps.create(&PostParams::default(), &map).await.unwrap();
    let secret = json!({"metadata": {"name": "keys"}, "stringData": {"KEY": "s3cret"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets = Api::<Secret>::namespaced(room.client.clone(), &room.namespace);
    secrets.create(&PostParams::default(), &secret).await.unwrap();
}

fn reader() -> Value {
    let projected = json!({"sources": [
        {"serviceAccountToken": {"path": "token", "audience": "portolan", "expirationSeconds": 600}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"configMap": {"name": "settings", "items": [{"key": "size", "path": "deep/size"}]}},
    ]});
    let env = json!([
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "BOTH", "value": "$(IP) $(COLOUR)"},
    ]);
    let mounts = json!([
        {"name": "settings", "mountPath": "/etc/settings"},
        {"name": "settings", "mountPath": "/etc/one-colour", "subPath": "colour"},
        {"name": "keys", "mountPath": "/keys", "readOnly": true},
        {"name": "all", "mountPath": "/all"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]);
    let writer = json!({
        "name": "writer", "image": SH, "args": ["-c", "echo written > /scratch/file"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    });
    let main = json!({
        "name": "main", "image": PROGRAM, "args": ["80"], "env": env, "volumeMounts": mounts,
        "envFrom": [{"secretRef": {"name": "keys"}}],
    });
    json!({
        "terminationGracePeriodSeconds": 0, "initContainers": [writer], "containers": [main],
        "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}}, {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "all", "projected": projected}, {"name": "scratch", "emptyDir": {}},
        ],
    })
}

#[test]
fn volumes_and_variables_hold_what_they_should_and_follow() {
    in_networks(async {
        let room = World::shared().await.room("volumes").await;
        room.create("reader", reader()).await;
        // Nothing starts before what it refers to is there; the reason is told.
        let waits = room
            .until("reader", "it says what is missing", |pod| {
                format!("{:?}", pod.status).contains("not found")
            })
            .await;
        assert!(format!("{:?}", waits.status).contains("settings"));
        create_material(&room).await;
        let ip = ip(&room.until_ready("reader").await);
        let read = |path: &'static str| async move { ask((ip, 80), path).await };
        for (path, text) in [
            ("/read/etc/settings/colour", "red"),
            ("/read/etc/one-colour", "red"),
            ("/read/keys/KEY", "s3cret"),
            ("/read/all/deep/size", "9"),
            ("/read/all/labels", "app=\"reader\""),
            ("/read/scratch/file", "written\n"),
            ("/env/KEY", "s3cret"),
            ("/env/BOTH", &format!("{ip} red")),
        ] {
            assert_eq!(read(path).await.as_deref(), Ok(text), "{path}");
        }
        assert!(
            ask((ip, 80), "/write/keys/new")
                .await
                .unwrap_err()
                .contains("Read-only")
        );
        assert!(ask((ip, 80), "/write/usr/new").await.unwrap_err().contains("Read-only"));
        assert_eq!(ask((ip, 80), "/write/etc/new").await.as_deref(), Ok(""));
        assert!(!std::path::Path::new("/etc/new").exists());

        let maps = Api::<ConfigMap>::namespaced(room.client.clone(), &room.namespace);
        let patch = json!({"data": {"colour": "blue"}});
        maps.patch("settings", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        eventually("the volume follows", || async {
            read("/read/etc/settings/colour").await.as_deref() == Ok("blue")
        })
        .await;
        let patch = json!({"metadata": {"labels": {"more": "x"}}});
        room.pods
            .patch("reader", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        eventually("labels follow", || async {
            read("/read/all/labels").await.unwrap().contains("more=\"x\"")
        })
        .await;
    });
}

async fn review(room: &Room, token: &str, audience: Option<&str>) -> TokenReview {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            audiences: audience.map(|audience| vec![audience.to_owned()]),
        },
        ..TokenReview::default()
    };
    Api::all(room.client.clone())
        .create(&PostParams::default(), &review)
        .await
        .unwrap()
}

#[test]
fn tokens_are_bound_to_the_pod_and_renewed() {
    in_networks(async {
        let room = World::shared().await.room("tokens").await;
        create_material(&room).await;
        let pod = room.create("reader", reader()).await;
        let ip = ip(&room.until_ready("reader").await);
        let token = ask((ip, 80), &format!("{ACCOUNT}/token")).await.unwrap();
        let reviewed = review(&room, &token, None).await.status.unwrap();
        let user = reviewed.user.unwrap();
        assert_eq!(
            user.username.as_deref(),
            Some("system:serviceaccount:tokens:default"),
            "{:?}",
            reviewed.error
        );
        let extra = user.extra.unwrap();
        assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["reader"]);
        assert_eq!(
            extra["authentication.kubernetes.io/pod-uid"],
            [pod.metadata.uid.unwrap()]
        );
        let ca = ask((ip, 80), &format!("{ACCOUNT}/ca.crt")).await.unwrap();
        assert!(ca.contains("BEGIN CERTIFICATE"), "{ca}");
        assert_eq!(
            ask((ip, 80), &format!("{ACCOUNT}/namespace")).await.as_deref(),
            Ok("tokens")
        );

        let other = ask((ip, 80), "/read/all/token").await.unwrap();
        assert_ne!(
            review(&room, &other, None).await.status.unwrap().authenticated,
            Some(true)
        );
        assert_eq!(
            review(&room, &other, Some("portolan"))
                .await
                .status
                .unwrap()
                .authenticated,
            Some(true)
        );
        eventually("the token is renewed", || async {
            ask((ip, 80), "/read/all/token").await.unwrap() != other
        })
        .await;
        room.delete("reader").await;
        // The API server remembers a token for ten seconds.
        eventually("the token ends with the Pod", || async {
            review(&room, &token, None).await.status.unwrap().authenticated != Some(true)
        })
        .await;
    });
}
