//! What the hub tells of breakers that people hold, for one class of traffic. Pure. Caller: `upstream`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_wire::v1;

use crate::resource::breaker::{ByHand, Held};
use crate::value::traffic::TrafficClass;

/// What is said of this class: by an entry of its own that still holds, else by one for all. Reviews of tokens are in none for
/// all. A reset is of its class, or of all.
pub(super) fn of(class: TrafficClass, told: &[v1::HeldBreaker]) -> ByHand {
    let own = told.iter().filter(|said| said.traffic_class == class.as_str());
    let for_all = |said: &&v1::HeldBreaker| said.traffic_class.is_empty() && class != TrafficClass::TokenReview;
    let said = own.chain(told.iter().filter(for_all));
    let reset = said.clone().filter(|said| said.state == "reset");
    let last = reset.max_by_key(|said| said.since_unix_seconds);
    ByHand {
        held: said.clone().find_map(held),
        reset: last.map(|said| (said.since_unix_seconds, said.reason.as_str().into())),
    }
}

/// `None` for what is over, and for the words of a later hub.
fn held(said: &v1::HeldBreaker) -> Option<Held> {
    let open = match said.state.as_str() {
        "open" => true,
        "closed" => false,
        _ => return None,
    };
    let until = UNIX_EPOCH + Duration::from_secs(u64::try_from(said.until_unix_seconds).ok()?);
    (until > SystemTime::now()).then(|| Held {
        open,
        reason: said.reason.as_str().into(),
        until,
    })
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
            until_unix_seconds: 1 << 40,
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
        assert_eq!(watch.reset.map(|(since, _)| since), Some(7));
        assert_eq!(of(TrafficClass::Unary, &[said("", "melted")]), ByHand::default());
        assert_eq!(
            watch.held.map(|held| held.open),
            Some(true),
            "a reset of old keeps it out of nothing"
        );
        let over = v1::HeldBreaker {
            until_unix_seconds: 9,
            ..said("list", "closed")
        };
        let list = of(TrafficClass::List, &[over, said("", "open")]);
        assert_eq!(list.held.map(|held| held.open), Some(true), "nor does what is over");
    }
}
