//! Leases of the callers' namespace: the primary's (west), unless one is alive at the caller's home (east).

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";
const ALIVE: (u16, &str) = (
    200,
    r#"{"spec":{"holderIdentity":"a","leaseDurationSeconds":15,"renewTime":"2999-01-01T00:00:00.000000Z"}}"#,
);
const EXPIRED: (u16, &str) = (
    200,
    r#"{"spec":{"holderIdentity":"a","leaseDurationSeconds":15,"renewTime":"2001-01-01T00:00:00.000000Z"}}"#,
);
const RELEASED: (u16, &str) = (
    200,
    r#"{"spec":{"holderIdentity":"","leaseDurationSeconds":1,"renewTime":"2999-01-01T00:00:00.000000Z"}}"#,
);
const ABSENT: (u16, &str) = (404, "{}");
const BROKEN: (u16, &str) = (500, "{}");

async fn goes_to(home: (u16, &'static str), primary: (u16, &'static str), request: &str, body: &str) -> Option<String> {
    let world = World::of("west", home, primary).await;
    match world.planned(request, body).await {
        Ok(forward) => Some(forward.target.cluster.to_string()),
        Err(Fault::Unavailable { .. }) => None,
        Err(other) => panic!("{request}: {other:?}"),
    }
}

#[tokio::test]
async fn a_lease_of_another_name_stays_at_home_until_it_expires() {
    for (home, primary, cluster) in [
        (ALIVE, ABSENT, Some("east")),
        (ALIVE, ALIVE, Some("east")),
        (EXPIRED, ABSENT, Some("west")),
        (RELEASED, ABSENT, Some("west")),
        (ABSENT, ABSENT, Some("west")),
        ((403, "{}"), ABSENT, Some("west")),
        (BROKEN, ALIVE, Some("west")),
        (BROKEN, EXPIRED, None),
        (BROKEN, BROKEN, None),
    ] {
        for (request, body) in [
            (format!("GET {LEASES}/other"), ""),
            (format!("PUT {LEASES}/other"), "{}"),
            (format!("POST {LEASES}"), r#"{"metadata":{"name":"other"}}"#),
        ] {
            let found = goes_to(home, primary, &request, body).await;
            assert_eq!(found.as_deref(), cluster, "{request}: {home:?}, {primary:?}");
        }
    }
}

#[tokio::test]
async fn the_elections_own_lease_is_the_primarys_whatever_is_at_home() {
    for home in [ALIVE, BROKEN] {
        let body = r#"{"metadata":{"name":"op"}}"#;
        let found = goes_to(home, ABSENT, &format!("POST {LEASES}"), body).await;
        assert_eq!(found.as_deref(), Some("west"));
    }
}

#[tokio::test]
async fn who_renews_a_lease_of_another_name_is_warned() {
    let world = World::of("west", ALIVE, ABSENT).await;
    for (verb, warned) in [("GET", false), ("PUT", true), ("PATCH", true), ("DELETE", false)] {
        let forward = world.planned(&format!("{verb} {LEASES}/other"), "{}").await.unwrap();
        let warning = forward.warning.clone().unwrap_or_default();
        assert_eq!(
            warning.contains("spec.controller.leaderElectionName"),
            warned,
            "{verb}: {warning}"
        );
    }
}
