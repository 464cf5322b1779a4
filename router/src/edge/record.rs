//! What is told of every request when it is over.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use portolan_crds::partition::ChildRole;

use crate::decision::plan::Rule;
use crate::resource::upstream::Ended;
use crate::value::classify::Verb;
use crate::value::traffic::TrafficClass;

/// One request, over.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    pub(crate) verb: Option<Verb>,
    /// Of a caller whose shard is a root's child.
    pub(crate) child: Option<ChildRole>,
    /// Of those, which program that is: with whose shards its shard contends.
    pub(crate) operator: Arc<str>,
    /// `None` when the request did not come as far as a plan.
    pub(crate) rule: Option<Rule>,
    /// `None` when nothing was to be forwarded.
    pub(crate) class: Option<TrafficClass>,
    /// The member that it was for.
    pub(crate) cluster: Option<Arc<str>>,
    /// `None` when the client went away before the answer.
    pub(crate) status: Option<StatusCode>,
    /// `Fault::reason` of an answer of our own.
    pub(crate) reason: Option<&'static str>,
    pub(crate) ended: Ended,
    /// To the answer's head.
    pub(crate) head: Option<Duration>,
    /// To the end of the body, or of the tunnel.
    pub(crate) total: Duration,
    /// Of the answer's body.
    pub(crate) bytes: u64,
    /// `Audit` let it through.
    pub(crate) audited: bool,
    pub(crate) panicked: bool,
    /// A FaultInjection had its hand in it: how long it took says nothing.
    pub(crate) injected: bool,
}

/// Names for the access line; not labels.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) caller: Option<Arc<str>>,
    pub(crate) shard: Option<Arc<str>>,
    pub(crate) method: Option<http::Method>,
    pub(crate) path: String,
    /// `pods` or `deployments.apps`.
    pub(crate) resource: Option<String>,
    /// What the client was told of an error of ours, if it is to be kept.
    pub(crate) fault: Option<String>,
    /// The faults that were ordered for it, `<namespace>/<name>/<rule>`.
    pub(crate) injected: Option<String>,
    /// Of a trace that is kept.
    pub(crate) trace_id: Option<String>,
}

/// A request that has just come: its client may go before anything else is known.
impl Default for RequestRecord {
    fn default() -> Self {
        Self {
            verb: None,
            child: None,
            operator: Arc::default(),
            rule: None,
            class: None,
            cluster: None,
            status: None,
            reason: None,
            ended: Ended::ClientGone,
            head: None,
            total: Duration::ZERO,
            bytes: 0,
            audited: false,
            panicked: false,
            injected: false,
        }
    }
}
