//! What an agent says, as the index takes it. Called by agent sessions.

use jiff::Timestamp;
use portolan_wire::v1;

/// One message of an agent, of the stream that it came on and with the time that it came at.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    Heartbeat(v1::Heartbeat, Timestamp),
    Namespaces(v1::NamespaceDelta),
    Coverage(v1::CoverageDelta),
    Callers(v1::CallerDelta),
    Token(v1::MemberToken),
    Allowed(v1::Allowed),
    Policies(v1::AdmissionPolicies),
    Excess(v1::CallerExcess),
    Fences(v1::Fences),
    Nodes(v1::NodeNames),
    /// Why a signing key is not taken; none: it is.
    Key(Option<String>),
    Disconnected,
}
