//! Which namespaces are the caller's. Not here yet: the interface only.

/// Which namespaces of a member are the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceFilter {}

impl NamespaceFilter {
    /// Whether objects of this namespace are the caller's.
    pub fn admits(&self, _namespace: &str) -> bool {
        true
    }

    /// Kind `namespaces`: judge `metadata.name` instead of `metadata.namespace`.
    pub fn by_name(&self) -> bool {
        false
    }
}
