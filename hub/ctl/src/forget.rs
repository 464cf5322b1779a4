//! `portolanctl router forget`: who may not route any more.
//!
//! The hub makes a Router object for each router that enrols, and serves none without it: to forget a router is to delete its
//! object.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_crds::{Router, RouterPod};

use crate::cli::ForgetArgs;
use crate::hub;

pub(crate) async fn run(args: &ForgetArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    for name in &args.names {
        println!("{}", forget_one(&hub, name).await?);
    }
    Ok(())
}

/// Returns what to tell.
async fn forget_one(hub: &Client, name: &str) -> anyhow::Result<String> {
    let routers: Api<Router> = Api::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let cannot = || format!("cannot forget router {name}");
    let Some(router) = routers.get_opt(name).await.with_context(cannot)? else {
        bail!("there is no router {name}: see portolanctl get routers");
    };
    routers
        .delete(name, &DeleteParams::default())
        .await
        .with_context(cannot)?;
    Ok(words(&router))
}

fn words(router: &Router) -> String {
    let name = router.name_any();
    let mut words = format!(
        "router {name} is forgotten: the hub refuses it from now on, and members refuse its tokens within 15 seconds; what it \
         has open there (watches, execs) lasts until it ends"
    );
    if let Some(RouterPod {
        cluster: Some(cluster),
        name: pod,
        ..
    }) = &router.spec.pod
    {
        let _ = write!(
            words,
            "\nit enrolled as Pod {pod} of member {cluster}, and can again while that Pod is there: delete the Pod first if it \
             is not to be trusted, and forget it then"
        );
    }
    words
}

#[cfg(test)]
mod tests {
    use portolan_crds::RouterSpec;

    use super::*;

    fn router(pod: Option<RouterPod>) -> Router {
        let spec = RouterSpec {
            pod,
            ..RouterSpec::default()
        };
        Router::new("gateway", spec)
    }

    #[test]
    fn who_forgets_a_router_in_a_member_is_told_of_its_pod() {
        let of_member = RouterPod {
            cluster: Some("east".to_owned()),
            name: "router-0".to_owned(),
            uid: "uid".to_owned(),
        };
        assert!(words(&router(Some(of_member.clone()))).contains("Pod router-0 of member east"));
        let of_hub = RouterPod {
            cluster: None,
            ..of_member
        };
        assert!(!words(&router(Some(of_hub))).contains("router-0"));
        assert!(words(&router(None)).contains("within 15 seconds"));
    }
}
