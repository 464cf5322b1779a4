//! `/clusters/<name>/…`: exactly that member, nothing filtered, and therefore only with a grant.

use super::{Forward, Need, Refusal, Rewrite, Route, Rule};
use crate::value::check::Check;
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::{Binding, Caller, CallerView};

pub(super) fn plan(route: &Route<'_>, cluster: &str) -> Result<(Rule, Forward), Refusal> {
    if !route.snapshot.targets.contains_key(cluster) {
        let message = format!("member cluster {cluster:?} does not exist, or is not served by this router");
        return Err(Refusal {
            rule: Rule::UnknownCluster,
            fault: Fault::NotFound(message),
        });
    }
    if let Caller::Pod(view) = route.caller {
        granted(view, cluster, route.request)?;
    }
    let mut forward = route.to(cluster, Rewrite::default())?;
    if let Caller::Person { user, groups } = route.caller {
        let check = Check::HubProxy {
            user: user.clone(),
            groups: groups.clone(),
            cluster: cluster.to_owned(),
        };
        forward.needs.insert(0, Need::Access(check));
    }
    Ok((Rule::ExplicitView, forward))
}

fn granted(view: &CallerView, cluster: &str, request: &ApiRequest) -> Result<(), Refusal> {
    let shard = match &view.binding {
        Binding::One(shard) => shard,
        Binding::None | Binding::Unknown { .. } | Binding::Several(_) => {
            return Err(super::merged::unbound(view, request));
        }
    };
    let refuse = |message| Err(Refusal::forbidden(Rule::NoExplicitView, message));
    let config = &shard.config;
    if !shard.explicit_view {
        return refuse(format!(
            "shard {config} does not grant its callers the explicit view: set spec.explicitView to Allow"
        ));
    }
    if shard.member(cluster).is_none() {
        return refuse(format!(
            "member cluster {cluster} is not among the clusters of shard {config}"
        ));
    }
    Ok(())
}
