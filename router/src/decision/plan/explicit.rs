//! `/clusters/<name>/…`: exactly that member, nothing filtered, and therefore only with a grant.

use super::{Forward, Refusal, Rewrite, Route, Rule};
use crate::value::check::Check;
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
    let mut checks = Vec::new();
    match route.caller {
        Caller::Pod(view) => granted(view, cluster)?,
        Caller::Person { user, groups } => {
            checks.push(Check::HubProxy {
                user: user.clone(),
                groups: groups.clone(),
                cluster: cluster.to_owned(),
            });
        }
    }
    let mut forward = route.to(cluster, Rewrite::default())?;
    checks.append(&mut forward.checks);
    forward.checks = checks;
    Ok((Rule::ExplicitView, forward))
}

fn granted(view: &CallerView, cluster: &str) -> Result<(), Refusal> {
    let shard = match &view.binding {
        Binding::One(shard) => shard,
        Binding::None | Binding::Several(_) => return Err(super::merged::unbound(view)),
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
