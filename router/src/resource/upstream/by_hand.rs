//! What the hub tells of breakers that people hold, for one class of traffic. Pure. Caller: `upstream`.

use std::time::{Duration, UNIX_EPOCH};

use portolan_wire::v1;

use crate::resource::breaker::{ByHand, Held};
use crate::value::traffic::TrafficClass;

/// What is said of this class: by an entry of its own before one for all. Reviews of tokens are in none for all.
pub(super) fn of(class: TrafficClass, told: &[v1::HeldBreaker]) -> ByHand {
    let for_all = |held: &&v1::HeldBreaker| held.traffic_class.is_empty() && class != TrafficClass::TokenReview;
    let own = told.iter().find(|held| held.traffic_class == class.as_str());
    let Some(said) = own.or_else(|| told.iter().find(for_all)) else {
        return ByHand::default();
    };
    let reason = said.reason.as_str().into();
    let until =
        u64::try_from(said.until_unix_seconds).map_or(UNIX_EPOCH, |until| UNIX_EPOCH + Duration::from_secs(until));
    let held = |open| ByHand {
        held: Some(Held { open, reason, until }),
        reset: None,
    };
    match said.state.as_str() {
        "open" => held(true),
        "closed" => held(false),
        "reset" => ByHand {
            held: None,
            reset: Some((said.since_unix_seconds, said.reason.as_str().into())),
        },
        // Of a later hub.
        _ => ByHand::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(class: &str, state: &str) -> v1::HeldBreaker {
        v1::HeldBreaker {
            traffic_class: class.to_owned(),
            state: state.to_owned(),
            reason: format!("{state} {class}"),
            since_unix_seconds: 7,
            until_unix_seconds: 9,
        }
    }

    #[test]
    fn a_class_has_its_own_word_before_that_for_all() {
        let told = [said("", "open"), said("list", "closed"), said("watch", "reset")];
        let open = |class| of(class, &told).held.map(|held| held.open);
        assert_eq!(open(TrafficClass::Unary), Some(true));
        assert_eq!(open(TrafficClass::List), Some(false));
        assert_eq!(open(TrafficClass::TokenReview), None, "without them nobody is known");
        assert_eq!(
            of(TrafficClass::TokenReview, &[said("token-review", "open")])
                .held
                .map(|held| held.open),
            Some(true)
        );
        let watch = of(TrafficClass::Watch, &told);
        assert_eq!((watch.held, watch.reset.map(|(since, _)| since)), (None, Some(7)));
        assert_eq!(of(TrafficClass::Unary, &[said("", "melted")]), ByHand::default());
    }
}
