//! Questions about rights that only somebody else can answer. Asked for by `plan`, answered by `access`.

use crate::value::classify::Impersonation;

/// Something to ask before a request may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    /// May this person use the explicit view of this member? Asked of the hub.
    HubProxy {
        /// The person.
        user: String,
        /// Their groups.
        groups: Vec<String>,
        /// The member.
        cluster: String,
    },
    /// May the caller act as the user it names? Asked of the member, one SubjectAccessReview per attribute of
    /// [`Impersonation::attributes`].
    Impersonate {
        /// The member.
        cluster: String,
        /// Who asks, as the member knows it.
        user: String,
        /// Groups of who asks, as the member would see them.
        groups: Vec<String>,
        /// Whom it wants to act as.
        wanted: Impersonation,
    },
}
