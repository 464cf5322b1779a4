//! What a namespace's annotation says, or is to say: the epochs that are open.

/// The epochs that are open in the namespace: one of each operator, 0 for none. Admission asks whether an epoch is among them, not
/// whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct List {
    /// Of the operator whose handovers are modelled.
    pub ours: u8,
    /// Of the other one.
    pub theirs: u8,
}

impl List {
    /// There is no annotation.
    pub(crate) const NONE: Self = Self { ours: 0, theirs: 0 };

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether the epoch is open.
    pub(crate) fn says(self, epoch: u8) -> bool {
        epoch != 0 && (self.ours == epoch || self.theirs == epoch)
    }

    /// The one by which API servers show that they go by all of the list.
    pub(crate) fn highest(self) -> u8 {
        self.ours.max(self.theirs)
    }

    /// The highest that is over; 0: of before all.
    pub(crate) fn highest_over(self) -> u8 {
        let below = (1..self.highest()).rev();
        let mut over = below.filter(|epoch| !self.says(*epoch));
        over.next().unwrap_or_default()
    }

    /// Whether the compare and set takes it in where `known` is set: what is open in it was open, or is beyond all that was.
    pub(crate) fn grows_from(self, known: Self) -> bool {
        let is_taken = |epoch: u8| epoch == 0 || known.says(epoch) || epoch > known.highest();
        !self.is_same(known) && is_taken(self.ours) && is_taken(self.theirs)
    }

    /// Whether an annotation says the same: it does not say whose an epoch is.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let swapped = Self {
            ours: other.theirs,
            theirs: other.ours,
        };
        self == other || self == swapped
    }

    /// Grows with each list that is ordered: neither operator's epoch falls.
    pub(crate) fn sum(self) -> u8 {
        self.ours + self.theirs
    }
}

/// Epochs below this one, and 0, are told apart in a set of lists.
pub(crate) const EPOCHS: u8 = 8;

/// A set of lists: messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lists(u64);

impl Lists {
    fn bit(list: List) -> u64 {
        1 << (u32::from(list.ours) * u32::from(EPOCHS) + u32::from(list.theirs))
    }

    pub(crate) fn of(list: List) -> Self {
        Self(Self::bit(list))
    }

    pub(crate) fn insert(&mut self, list: List) {
        self.0 |= Self::bit(list);
    }

    pub(crate) fn contains(self, list: List) -> bool {
        self.0 & Self::bit(list) != 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = List> {
        let all = (0..EPOCHS).flat_map(|ours| (0..EPOCHS).map(move |theirs| List { ours, theirs }));
        all.filter(move |list| self.contains(*list))
    }

    /// The list that was ordered last.
    pub(crate) fn newest(self) -> Option<List> {
        self.iter().max_by_key(|list| list.sum())
    }
}
