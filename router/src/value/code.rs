//! Status codes as metrics tell them apart.

/// A label whose value does not apply.
pub(crate) const NONE: &str = "none";

/// A closed set.
pub(crate) fn code_class(status: Option<u16>) -> &'static str {
    match status {
        None => NONE,
        Some(101) => "101",
        Some(200..=299) => "2xx",
        Some(300..=399) => "3xx",
        // Told apart: pressure, and everything else that the client did.
        Some(429) => "429",
        Some(400..=499) => "4xx",
        Some(500..=599) => "5xx",
        Some(_) => "other",
    }
}
