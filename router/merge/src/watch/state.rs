//! What the frames of a leg mean, and how one meaning follows the other.
//!
//! A leg ends `Live`. It gets there from `Initial` (a client without a position), from `Inventory` (a union of names that is
//! gone on with) or from `Resync` (what the client holds is compared with what the member has). Each of these three reads
//! the member's state as ADDED and ends at its marker; of a member that sends none, at a bookmark or anything but ADDED.
//! Where it is not known what the client holds, `Listing` comes before `Resync`.

use super::Start;

/// What a leg is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegState {
    /// The member's state, for a client that has nothing of it.
    Initial {
        /// The client holds some of its objects, but no position says which.
        dirty: bool,
        /// The leg came or changed with the plan: what left other legs may turn up here.
        replanned: bool,
    },
    /// The member's state, for the known names alone: the client was told of it in an earlier stream. Then the leg is asked
    /// again, from where the client stands.
    Inventory,
    /// What the client holds of it: the member's objects as of where the client stands, which it was told in an earlier
    /// stream. No events.
    Listing {
        /// Why it is compared then.
        cause: ResyncCause,
        /// As in [`LegState::Resync`].
        dirty: bool,
    },
    /// The member's state, to be compared with the known objects.
    Resync {
        /// Why, for all reasons together.
        cause: ResyncCause,
        /// Some of the differences were emitted, and no position says which.
        dirty: bool,
        /// The highest version read before: until then the member only catches up.
        caught_up: u64,
    },
    /// What happens.
    Live,
}

/// Why a leg's state is compared once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResyncCause {
    /// Its stream was lost, or its version compacted.
    Recovery,
    /// It is asked in another way for what is the caller's as before: nothing came here from elsewhere, but what was there
    /// and was not told may be found.
    Asked,
    /// Objects that left other legs may be here: none of these is told as deleted before it is through.
    Handover,
    /// A handover to a leg that is asked for other objects than the known ones.
    Replanned,
}

impl ResyncCause {
    /// Both: what either of them asks for is done.
    fn and(self, other: Self) -> Self {
        let receives = self.receives() || other.receives();
        match (self.reads_all() || other.reads_all(), receives) {
            (false, false) => Self::Recovery,
            (true, false) => Self::Asked,
            (false, true) => Self::Handover,
            (true, true) => Self::Replanned,
        }
    }

    /// What left other legs may turn up here.
    fn receives(self) -> bool {
        matches!(self, Self::Handover | Self::Replanned)
    }

    /// Also what is older than what the client has of the member may be news to it.
    pub(super) fn reads_all(self) -> bool {
        matches!(self, Self::Asked | Self::Replanned)
    }
}

impl LegState {
    /// Before the first frame.
    pub(super) fn starting(start: Start) -> Self {
        match start {
            Start::At(_) | Start::Exact(_) | Start::Came(_) => Self::Live,
            Start::Any | Start::Recent | Start::Sync => Self::Initial {
                dirty: false,
                replanned: false,
            },
        }
    }

    /// Its state is to be read and compared. What was emitted of it, and why it was read before, stays true.
    pub(super) fn begin_resync(&mut self, cause: ResyncCause, caught_up: u64) {
        let (before, dirty) = match *self {
            Self::Initial { dirty, replanned: true } => (ResyncCause::Handover, dirty),
            Self::Initial { dirty, .. } => (ResyncCause::Recovery, dirty),
            Self::Resync { cause, dirty, .. } | Self::Listing { cause, dirty } => (cause, dirty),
            Self::Inventory | Self::Live => (ResyncCause::Recovery, false),
        };
        *self = Self::Resync {
            cause: cause.and(before),
            dirty,
            caught_up,
        };
    }

    /// What the client holds is to be listed before that.
    pub(super) fn begin_listing(&mut self, cause: ResyncCause) {
        self.begin_resync(cause, 0);
        if let Self::Resync { cause, dirty, .. } = *self {
            *self = Self::Listing { cause, dirty };
        }
    }

    /// The plan changed what is asked of a leg of which the client holds nothing.
    pub(super) fn replan(&mut self) {
        match self {
            Self::Initial { replanned, .. } => *replanned = true,
            Self::Resync { cause, .. } | Self::Listing { cause, .. } => *cause = ResyncCause::Replanned,
            Self::Inventory | Self::Live => {}
        }
    }

    /// Something of the state was emitted before it is through.
    pub(super) fn mark_dirty(&mut self) {
        if let Self::Initial { dirty, .. } | Self::Resync { dirty, .. } | Self::Listing { dirty, .. } = self {
            *dirty = true;
        }
    }

    /// What came with a share was on the way before, as of where the stream stands (`Some(true)`: then no more was told of it than
    /// the position says) or of later.
    pub(super) fn note_entered(&mut self, exactly: Option<bool>) {
        let Some(exactly) = exactly else { return };
        if let Self::Resync { dirty, .. } | Self::Listing { dirty, .. } = self {
            *dirty = !exactly;
        }
    }

    /// The state is through. What it was read for.
    pub(super) fn complete(&mut self) -> Self {
        std::mem::replace(self, Self::Live)
    }

    pub(super) fn is_live(self) -> bool {
        self == Self::Live
    }

    pub(super) fn is_resync(self) -> bool {
        matches!(self, Self::Resync { .. } | Self::Listing { .. })
    }

    pub(super) fn is_listing(self) -> bool {
        matches!(self, Self::Listing { .. })
    }

    /// The client holds some of its objects, but no position says which.
    pub(super) fn is_dirty(self) -> bool {
        matches!(
            self,
            Self::Initial { dirty: true, .. } | Self::Resync { dirty: true, .. } | Self::Listing { dirty: true, .. }
        )
    }

    /// What left other legs may turn up here.
    pub(super) fn receives(self) -> bool {
        match self {
            Self::Initial { replanned, .. } => replanned,
            Self::Resync { cause, .. } | Self::Listing { cause, .. } => cause.receives(),
            Self::Inventory | Self::Live => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resync_keeps_what_was_emitted_and_all_its_causes() {
        let mut state = LegState::starting(Start::Sync);
        assert!(!state.is_dirty() && !state.receives());
        state.mark_dirty();
        state.begin_resync(ResyncCause::Recovery, 7);
        assert!(state.is_dirty() && !state.receives());
        state.begin_resync(ResyncCause::Replanned, 8);
        state.begin_resync(ResyncCause::Recovery, 9);
        let (cause, dirty, caught_up) = (ResyncCause::Replanned, true, 9);
        let expected = LegState::Resync {
            cause,
            dirty,
            caught_up,
        };
        assert_eq!((state, state.receives()), (expected, true));
        assert_eq!((state.complete(), state), (expected, LegState::Live));
        state.begin_resync(ResyncCause::Recovery, 9);
        assert!(!state.is_dirty() && !state.receives());
    }

    #[test]
    fn who_is_merely_asked_in_another_way_receives_nothing() {
        use ResyncCause::{Asked, Handover, Recovery, Replanned};
        for (one, other, both) in [
            (Recovery, Recovery, Recovery),
            (Recovery, Asked, Asked),
            (Asked, Asked, Asked),
            (Recovery, Handover, Handover),
            (Asked, Handover, Replanned),
            (Asked, Replanned, Replanned),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let mut state = LegState::starting(Start::At(3));
                state.begin_listing(one);
                state.begin_resync(other, 5);
                let LegState::Resync { cause, .. } = state else {
                    panic!("{state:?}");
                };
                assert_eq!(cause, both, "{one:?} and {other:?}");
                let receives = matches!(both, Handover | Replanned);
                assert_eq!(
                    (state.receives(), cause.reads_all()),
                    (receives, matches!(both, Asked | Replanned))
                );
            }
        }
    }

    #[test]
    fn a_leg_that_came_with_the_plan_receives_until_it_is_live() {
        let mut state = LegState::starting(Start::Sync);
        state.replan();
        assert!(state.receives() && !state.is_resync());
        state.begin_resync(ResyncCause::Recovery, 0);
        assert!(state.receives() && state.is_resync());
        state.complete();
        assert!(!state.receives());
        let mut live = LegState::starting(Start::At(3));
        live.mark_dirty();
        live.replan();
        assert_eq!(live, LegState::Live);
    }
}
