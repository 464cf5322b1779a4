//! Events on policies: that one came into force or is in force no more, and why. Pure; called by `policy_events`.

use kube::runtime::events::{Event, EventType};
use portolan_crds::{ConditionReason, ConditionType};

use super::super::events::event;
use crate::facts::PolicyStatus;

/// How condition Active stands: what is not known is no news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stands {
    /// `True`.
    active: bool,
    reason: String,
    message: String,
}

impl Stands {
    pub(super) fn of(status: &PolicyStatus) -> Option<Self> {
        let conditions = match status {
            PolicyStatus::Breaker(status) => &status.conditions,
            PolicyStatus::Fault(status) => &status.conditions,
        };
        let type_ = ConditionType::Active.to_string();
        let found = conditions.iter().find(|condition| condition.type_ == type_)?;
        let active = match found.status.as_str() {
            "True" => true,
            "False" => false,
            _ => return None,
        };
        Some(Self {
            active,
            reason: found.reason.clone(),
            message: found.message.clone(),
        })
    }

    /// Routers are told of it no more. Outside of its hours they are.
    pub(super) fn is_over(&self) -> bool {
        !self.active && !self.is_for(ConditionReason::NotNow)
    }

    fn is_for(&self, reason: ConditionReason) -> bool {
        self.reason == reason.to_string()
    }
}

/// What became of it, in the words of its condition.
pub(super) fn change(before: Option<&Stands>, now: &Stands) -> Option<Event> {
    if before.is_some_and(|before| (before.active, &before.reason) == (now.active, &now.reason)) {
        return None;
    }
    let was_told = before.is_some_and(|before| !before.is_over());
    let reason = match (now.active, now.is_for(ConditionReason::NotNow)) {
        (true, _) if was_told => "WindowBegan",
        (true, _) => "InForce",
        (false, true) if was_told => "WindowEnded",
        (false, _) => &now.reason,
    };
    let is_wrong = [ConditionReason::Invalid, ConditionReason::TooManyPolicies]
        .into_iter()
        .any(|reason| now.is_for(reason));
    let type_ = if is_wrong {
        EventType::Warning
    } else {
        EventType::Normal
    };
    Some(event(type_, reason, reason, now.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stands(active: bool, reason: ConditionReason) -> Stands {
        Stands {
            active,
            reason: reason.to_string(),
            message: "why".to_owned(),
        }
    }

    #[test]
    fn each_turn_is_told_by_its_name() {
        use ConditionReason::{Disabled, Expired, Invalid, NotNow, Ok, Stopped};
        let told = |before: Option<(bool, ConditionReason)>, now: (bool, ConditionReason)| {
            let before = before.map(|(active, reason)| stands(active, reason));
            let event = change(before.as_ref(), &stands(now.0, now.1))?;
            assert_eq!(event.note.as_deref(), Some("why"));
            let warns = matches!(event.type_, EventType::Warning);
            Some((event.reason, warns))
        };
        for (before, now, wanted) in [
            (None, (true, Ok), Some(("InForce", false))),
            (None, (false, NotNow), Some(("NotNow", false))),
            (None, (false, Invalid), Some(("Invalid", true))),
            (Some((true, Ok)), (true, Ok), None),
            (Some((true, Ok)), (false, NotNow), Some(("WindowEnded", false))),
            (Some((false, NotNow)), (true, Ok), Some(("WindowBegan", false))),
            (Some((false, NotNow)), (false, NotNow), None),
            (Some((true, Ok)), (false, Stopped), Some(("Stopped", false))),
            (Some((false, Stopped)), (true, Ok), Some(("InForce", false))),
            (Some((false, Stopped)), (false, NotNow), Some(("NotNow", false))),
            (Some((false, NotNow)), (false, Expired), Some(("Expired", false))),
            (Some((false, Expired)), (false, Disabled), Some(("Disabled", false))),
            (Some((false, Disabled)), (true, Ok), Some(("InForce", false))),
        ] {
            let wanted = wanted.map(|(reason, warns)| (reason.to_owned(), warns));
            assert_eq!(told(before, now), wanted, "{before:?} → {now:?}");
        }
    }
}
