//! `/clusters/<name>/…`: exactly that member, nothing filtered, and therefore only with a grant.

use super::{Forward, Need, Refusal, Rewrite, Route, Rule};
use crate::value::check::Check;
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::{Binding, Caller, CallerView};

pub(super) fn plan(route: &Route<'_>, cluster: &str) -> Result<(Rule, Forward), Refusal> {
    // Before anything is said of the member: whoever may not use it is not told whether it is there, either.
    if let Caller::Pod(view) = route.caller {
        granted(view, cluster, route.request)?;
    }
    if !route.snapshot.targets.contains_key(cluster) {
        let message = format!("member cluster {cluster:?} does not exist, or is not served by this router");
        return Err(Refusal {
            rule: Rule::UnknownCluster,
            fault: Fault::NotFound(message),
        });
    }
    let mut forward = route.to(cluster, Rewrite::default())?;
    if let Some(check) = of_hub(route.caller, cluster) {
        forward.needs.insert(0, Need::Access(check));
    }
    Ok((Rule::ExplicitView, forward))
}

/// Whether a person may use the member, or be told that there is none of that name.
pub(crate) fn of_hub(caller: &Caller, cluster: &str) -> Option<Check> {
    match caller {
        Caller::Pod(_) => None,
        Caller::Person { user, groups } => Some(Check::HubProxy {
            user: user.clone(),
            groups: groups.clone(),
            cluster: cluster.to_owned(),
        }),
    }
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
