//! How requests travel: classes that have connections and a breaker of their own, and what else of a request decides on
//! queues, deadlines and retries. Pure. Said by `plan`, used by `upstream` and all above.

use crate::value::classify::{ApiRequest, Verb};

/// Kinds of traffic that do not share connections or breakers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TrafficClass {
    /// Everything that ends by itself, but for lists.
    Unary,
    /// Reads of whole collections: a member that cannot manage them may well answer the rest.
    List,
    /// Watches and followed logs.
    Watch,
    /// Requests that ask for another protocol.
    Upgrade,
    /// Reviews of tokens, which this router asks: without them nobody is known.
    TokenReview,
}

impl TrafficClass {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::Unary, Self::List, Self::Watch, Self::Upgrade, Self::TokenReview];

    /// As in metrics and breaker reports.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Upgrade => "upgrade",
            Self::TokenReview => "token-review",
        }
    }
}

/// What a request does in the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Reads a collection: a list, or the start of a watch. An informer behind it would list anew after a 503.
    Collection,
    /// Reads something else.
    Read,
    /// May change something: is never sent again once it has left.
    Write,
}

/// How one request travels to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Which connections and which breaker.
    pub(crate) class: TrafficClass,
    /// What it does there.
    pub(crate) effect: Effect,
    /// No deadline: watches, logs, and connections into Pods.
    pub(crate) long: bool,
}

impl Traffic {
    /// What the router itself asks before a request: a read that ends.
    pub(crate) const QUESTION: Self = Self {
        class: TrafficClass::Unary,
        effect: Effect::Read,
        long: false,
    };

    /// The request as it is.
    pub(crate) fn of(request: &ApiRequest) -> Self {
        let subresource = request.resource.as_ref().and_then(|one| one.subresource.as_deref());
        let follows = subresource == Some("log") && request.query.flag("follow");
        let class = match request.upgrade {
            Some(_) => TrafficClass::Upgrade,
            None if request.verb == Verb::Watch || follows => TrafficClass::Watch,
            None if request.verb == Verb::List => TrafficClass::List,
            None => TrafficClass::Unary,
        };
        let effect = match request.verb {
            _ if !request.is_read() => Effect::Write,
            Verb::List | Verb::Watch => Effect::Collection,
            _ => Effect::Read,
        };
        // The API server's own list of what has no time-out.
        let long = request.upgrade.is_some()
            || matches!(request.verb, Verb::Watch | Verb::Proxy)
            || matches!(subresource, Some("attach" | "exec" | "log" | "portforward" | "proxy"));
        Self { class, effect, long }
    }

    /// One member's part of a list or a watch: a plain stream, whatever protocol the client wants to switch to.
    pub(crate) fn collection(watch: bool) -> Self {
        let class = if watch { TrafficClass::Watch } else { TrafficClass::List };
        Self {
            class,
            effect: Effect::Collection,
            long: watch,
        }
    }

    /// Nothing in the member can change by it: it may be sent again.
    pub(crate) fn is_read(self) -> bool {
        self.effect != Effect::Write
    }
}
