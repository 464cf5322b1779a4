//! A member that does not let the router act with the groups, uid or extras of a user, or for the owner of a namespace: what
//! its refusal means.
//!
//! Which users it lets the router act as the router knows (`plan::forward`); of the rest only the member's own RBAC tells, in
//! words about the router's ServiceAccount. Caller: `send`.

use http::{Response, StatusCode};
use memchr::memmem;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::policy::{REFUSED_GRANT_OVER, REFUSED_NO_GRANT};

use super::Run;
use super::outcome::{fault_of, proxies};
use crate::decision::plan::WriteGrant;
use crate::resource::upstream::{Body, Broke, UpstreamError, gather};
use crate::value::classify::{Impersonation, ResourceRequest};
use crate::value::fault::Fault;
use crate::value::media::Media;
use crate::value::object::message_of;

/// In the Status of an API server whose impersonation filter refuses, whatever its encoding.
const REFUSED: &[u8] = b"cannot impersonate resource";
/// In the Status of an API server, before the own words of policy `portolan_crds::labels::POLICY_FENCE` and its binding.
const DENIES: &str = "ValidatingAdmissionPolicy 'portolan-fence' with binding 'portolan-fence' denied request: ";
/// Of such a Status.
const MAX_STATUS_BYTES: usize = 1 << 20;

/// The answer as it is, unless it is such a refusal: then which right is missing.
pub(super) async fn told(run: &Run, response: Response<Body>) -> Result<Response<Body>, Fault> {
    let forward = &run.leg.forward;
    let act_as = &forward.act_as;
    let more = !act_as.groups.is_empty() || act_as.uid.is_some() || !act_as.extras.is_empty();
    let is_status = Media::of_content(response.headers()).is_some() && !proxies(&run.leg);
    let fenced = forward.grant.as_ref().filter(|grant| grant.fenced);
    if response.status() != StatusCode::FORBIDDEN || !(more || fenced.is_some()) || !is_status {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let body = gather(body, MAX_STATUS_BYTES).await.map_err(|error| {
        let error = UpstreamError::Lost {
            cluster: run.upstream.cluster.clone(),
            reason: error.to_string(),
            broke: Broke::Stream,
        };
        fault_of(forward, &error)
    })?;
    let asked = run.leg.asked.resource.as_ref();
    let why = || FencedOff::of(&message_of(&body)?, asked?);
    if let Some((grant, why)) = fenced.and_then(|grant| Some((grant, why()?))) {
        if let (FencedOff::HasNone, Some(replanner)) = (why, &run.leg.replanner) {
            let pair = grant.pair(&forward.target);
            replanner.writes().has_no_epoch(pair, grant.epoch);
        }
        return Err(fenced_off(&run.upstream.cluster, grant, why));
    }
    match missing(&run.upstream.cluster, act_as, &body).filter(|_| more) {
        Some(message) => Err(Fault::Forbidden(message)),
        None => Ok(Response::from_parts(head, Body::from(body))),
    }
}

/// Why a member's fence refuses a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FencedOff {
    /// The namespace is on its way to another owner, which the next try is told.
    IsOver,
    /// The namespace was made anew, and its annotation is to follow. The next try may say no epoch.
    HasNone,
    /// The router may not say epochs any more, which the hub hears from the member's agent.
    MayNotSay,
}

impl FencedOff {
    /// By the words of the policy, from the first to the last: clients choose names, and other refusals repeat them. What else it
    /// refuses, or another policy of a like name, is for the client.
    fn of(message: &str, asked: &ResourceRequest) -> Option<Self> {
        if may_not_say(message) {
            return Some(Self::MayNotSay);
        }
        let named = message.strip_prefix(&format!("{} \"", asked.kind()))?;
        let (name, said) = named.split_once('"')?;
        // The name of a create is whatever its body says; with a quote in it, it would be escaped.
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let is_asked = !asked.named_by_path || asked.name.as_deref() == Some(name);
        let said = said.strip_prefix(" is forbidden: ")?.strip_prefix(DENIES)?;
        if !is_plain || !is_asked {
            None
        } else if said == REFUSED_NO_GRANT {
            Some(Self::HasNone)
        } else {
            let over = said.strip_prefix(REFUSED_GRANT_OVER)?;
            over.starts_with(": epoch ").then_some(Self::IsOver)
        }
    }
}

/// Whether the API server does not let the router say shard and epoch.
fn may_not_say(message: &str) -> bool {
    let refuses = |key: &str| message.contains(&format!("cannot impersonate resource \"userextras/{key}\""));
    message.starts_with("userextras.authentication.k8s.io ") && [FENCE_EPOCH, FENCE_SHARD].into_iter().any(refuses)
}

/// Nothing of it was carried out.
fn fenced_off(cluster: &str, grant: &WriteGrant, why: FencedOff) -> Fault {
    let WriteGrant {
        namespace,
        shard,
        epoch,
        ..
    } = grant;
    let not_taken = |why: &str| {
        format!(
            "member cluster {cluster} does not take writes of epoch {epoch} of namespace {namespace}, which shard {shard} had last, \
             as that {why}: try again"
        )
    };
    Fault::TooManyRequests {
        message: match why {
            FencedOff::IsOver => not_taken("is in another epoch"),
            FencedOff::HasNone => not_taken("has none yet"),
            FencedOff::MayNotSay => format!(
                "member cluster {cluster} does not let the router say of which epoch a write is: run `portolanctl join` for it again"
            ),
        },
        retry_after_seconds: 1,
        cluster: Some(cluster.to_owned()),
    }
}

fn missing(cluster: &str, act_as: &Impersonation, status: &[u8]) -> Option<String> {
    let at = memmem::find(status, REFUSED)?;
    let resource = &status[at + REFUSED.len()..];
    let is = |word: &str| memmem::find(resource, word.as_bytes()).is_some();
    let flag = |flag: &str, values: &[&str]| values.iter().map(|value| format!("{flag} {value}")).collect::<Vec<_>>();
    let (what, flags) = if is("userextras") {
        let keys: Vec<&str> = act_as.extras.iter().map(|(key, _)| key.as_str()).collect();
        (format!("extras {}", keys.join(", ")), flag("--extra", &keys))
    } else if is("uids") {
        let uid = act_as.uid.as_deref().unwrap_or_default();
        (format!("uid {uid}"), flag("--uid", &[uid]))
    } else if is("groups") {
        let groups: Vec<&str> = act_as.groups.iter().map(String::as_str).collect();
        (format!("groups {}", groups.join(", ")), flag("--group", &groups))
    } else {
        return None;
    };
    Some(format!(
        "member cluster {cluster} does not let the router act as {} with {what}: run `portolanctl allow --member-kubeconfig FILE {}` there",
        act_as.user,
        flags.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use portolan_crds::labels::POLICY_FENCE;

    use super::*;

    fn asked(name: Option<&str>) -> ResourceRequest {
        ResourceRequest {
            group: "example.com".to_owned(),
            resource: "ports".to_owned(),
            name: name.map(str::to_owned),
            named_by_path: name.is_some(),
            ..ResourceRequest::default()
        }
    }

    #[test]
    fn only_what_the_fence_says_of_epochs_is_to_be_tried_again() {
        assert!(DENIES.contains(&format!("'{POLICY_FENCE}' with binding '{POLICY_FENCE}'")));
        let denied = |words: &str| format!("ports.example.com \"one\" is forbidden: {DENIES}{words}");
        let is_over = denied(&format!("{REFUSED_GRANT_OVER}: epoch 3, and the namespace is in 4"));
        let has_none = denied(REFUSED_NO_GRANT);
        for asked in [asked(Some("one")), asked(None)] {
            assert_eq!(FencedOff::of(&is_over, &asked), Some(FencedOff::IsOver));
            assert_eq!(FencedOff::of(&has_none, &asked), Some(FencedOff::HasNone));
            for other in [
                denied("annotation ctrlmesh.kusionstack.io/epoch is reserved for portolan-agent: leave it as it is"),
                denied(&format!("{REFUSED_NO_GRANT} of mine")),
                has_none.replacen("ports.example.com", "ports", 1),
                "ports.example.com \"portolan-fence\" is forbidden: User \"x\" cannot patch resource".to_owned(),
                format!(
                    "ValidatingAdmissionPolicy 'portolan-fences' with binding 'x' denied request: {REFUSED_GRANT_OVER}"
                ),
            ] {
                assert_eq!(FencedOff::of(&other, &asked), None, "{other}");
            }
        }
        assert_eq!(FencedOff::of(&has_none, &asked(Some("two"))), None);
    }

    /// RBAC repeats the name that was asked for, whatever it is.
    #[test]
    fn a_name_does_not_speak_for_the_fence() {
        for name in [
            format!("{DENIES}{REFUSED_NO_GRANT}"),
            format!("one\" is forbidden: {DENIES}{REFUSED_NO_GRANT}"),
            format!("ports.example.com \"one\" is forbidden: {DENIES}{REFUSED_NO_GRANT}"),
        ] {
            let forbidden = format!("ports.example.com {name:?} is forbidden: User \"x\" cannot patch resource");
            for asked in [asked(Some(&name)), asked(Some("one")), asked(None)] {
                assert_eq!(FencedOff::of(&forbidden, &asked), None, "{forbidden}");
            }
        }
    }

    #[test]
    fn a_member_that_takes_back_the_right_to_say_epochs_is_tried_again() {
        let refused = |key: &str| {
            format!(
                "userextras.authentication.k8s.io \"4\" is forbidden: User \"r\" cannot impersonate resource \"userextras/{key}\" in \
                 API group \"authentication.k8s.io\" at the cluster scope"
            )
        };
        for key in [FENCE_EPOCH, FENCE_SHARD] {
            assert_eq!(FencedOff::of(&refused(key), &asked(None)), Some(FencedOff::MayNotSay));
        }
        assert_eq!(FencedOff::of(&refused("scopes"), &asked(None)), None);
        let grant = WriteGrant {
            namespace: "ns-a".to_owned(),
            shard: "ops/blue".to_owned(),
            epoch: 4,
            fenced: true,
        };
        let fault = fenced_off("east", &grant, FencedOff::MayNotSay);
        assert!(matches!(&fault, Fault::TooManyRequests { .. }) && fault.to_string().contains("`portolanctl join`"));
    }

    #[test]
    fn a_refusal_says_which_right_is_missing_in_which_member() {
        let act_as = Impersonation {
            user: "ada".to_owned(),
            groups: vec!["devs".to_owned(), "ops".to_owned()],
            uid: Some("u-1".to_owned()),
            extras: vec![("scopes".to_owned(), vec!["view".to_owned()])],
        };
        let says = |resource: &str| {
            let status = format!(
                r#"{{"kind":"Status","message":"x is forbidden: User \"r\" cannot impersonate resource \"{resource}\" in API group \"\" at the cluster scope"}}"#
            );
            missing("east", &act_as, status.as_bytes()).unwrap_or_default()
        };
        for (resource, words) in [
            (
                "groups",
                "as ada with groups devs, ops: run `portolanctl allow --member-kubeconfig FILE --group devs --group ops` there",
            ),
            (
                "uids",
                "with uid u-1: run `portolanctl allow --member-kubeconfig FILE --uid u-1` there",
            ),
            (
                "userextras/scopes",
                "with extras scopes: run `portolanctl allow --member-kubeconfig FILE --extra scopes` there",
            ),
        ] {
            let said = says(resource);
            assert!(
                said.starts_with("member cluster east ") && said.contains(words),
                "{said}"
            );
        }
        assert_eq!(says("users"), "", "that the router knows itself");
        assert_eq!(missing("east", &act_as, b"pods is forbidden"), None);
    }
}
