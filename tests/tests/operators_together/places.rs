//! Where operators run, and where they work.

pub(crate) const MEMBERS: [&str; 2] = ["east", "west"];
/// Each is in one member, by turns, and of all operators.
pub(crate) const NAMESPACES: [&str; 6] = ["shop-0", "shop-1", "shop-2", "shop-3", "shop-4", "shop-5"];
/// Namespace of the operators in their home, and of their roots on the hub.
pub(crate) const HOME: &str = "operators";

/// The member that has one of the namespaces.
pub(crate) fn member_of(namespace: &str) -> &'static str {
    let place = NAMESPACES.iter().position(|name| *name == namespace);
    MEMBERS[place.unwrap_or_default() % 2]
}
