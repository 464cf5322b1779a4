//! How many may be there at a time, of each class and of each tenant: of those whom the member serves, and of those who wait.
//!
//! Parts of one whole, so that the less urgent never take what is kept for the more urgent, and who has much never what is
//! kept for who has little. Pure.

use super::class::{Class, WAITING};

/// Of those who wait or are served: how many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) all: usize,
    /// Of one tenant: no class of it has more than three quarters of that, no two more than seven eighths, so that none of its
    /// own keeps its others out.
    pub(super) tenant: usize,
    /// Of lists.
    lists: usize,
    /// Of lists and single requests.
    below_running: usize,
    /// Left free by tenants that have as many as this already.
    kept: usize,
    /// What a class has before those above it take more.
    pub(super) part: usize,
}

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) running: usize,
    pub(super) single: usize,
    pub(super) list: usize,
}

impl Bounds {
    /// At least 16, which is the least that has parts.
    pub(super) fn of(all: usize) -> Self {
        let all = all.max(16);
        Self {
            all,
            tenant: all / 2,
            lists: all * 3 / 4,
            below_running: all * 7 / 8,
            kept: all / 16,
            part: all / 8,
        }
    }

    /// One tenant waits with a quarter at most: it has its places among those who are served besides.
    pub(super) fn waiting(all: usize) -> Self {
        let bounds = Self::of(all);
        Self {
            tenant: bounds.all / 4,
            lists: bounds.all / 2,
            ..bounds
        }
    }

    /// Whether one more of a class may be there, of a tenant that has so many.
    pub(super) fn allow(&self, class: Class, counts: &Counts, tenant: &Counts) -> bool {
        let kept = if tenant.all() < self.kept { 0 } else { self.kept };
        let below_running = counts.single + counts.list;
        let rest = counts.all() + kept < self.all;
        let below_running = below_running + kept < self.below_running;
        let open = match class {
            Class::Lease => return true,
            Class::Running => rest,
            Class::Single => rest && below_running,
            Class::List => rest && below_running && counts.list + kept < self.lists,
        };
        open && self.allow_tenant(class, tenant)
    }

    fn allow_tenant(&self, class: Class, tenant: &Counts) -> bool {
        let own = tenant.of(class);
        let others = WAITING.iter().filter(|other| **other != class);
        let pair = own + others.map(|other| tenant.of(*other)).max().unwrap_or_default();
        own < self.tenant * 3 / 4 && pair < self.tenant * 7 / 8 && tenant.all() < self.tenant
    }
}

impl Counts {
    pub(super) fn of(&self, class: Class) -> usize {
        match class {
            Class::Lease => 0,
            Class::Running => self.running,
            Class::Single => self.single,
            Class::List => self.list,
        }
    }

    /// `None` of Leases: they are counted by tenant alone.
    pub(super) fn of_mut(&mut self, class: Class) -> Option<&mut usize> {
        match class {
            Class::Lease => None,
            Class::Running => Some(&mut self.running),
            Class::Single => Some(&mut self.single),
            Class::List => Some(&mut self.list),
        }
    }

    pub(super) fn all(&self) -> usize {
        self.running + self.single + self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_leaves_room_for_those_above_it_and_the_rich_for_the_poor() {
        let bounds = Bounds::of(16);
        let allow = |class, (running, single, list), single_of_tenant| {
            let tenant = Counts {
                single: single_of_tenant,
                ..Counts::default()
            };
            bounds.allow(class, &Counts { running, single, list }, &tenant)
        };
        assert!(allow(Class::List, (0, 0, 11), 0) && !allow(Class::List, (0, 0, 12), 0));
        assert!(!allow(Class::List, (0, 0, 11), 1), "one is kept for who has none");
        assert!(allow(Class::Single, (0, 1, 12), 0) && !allow(Class::Single, (0, 2, 12), 0));
        assert!(!allow(Class::Single, (0, 1, 12), 1));
        assert!(allow(Class::Running, (1, 2, 12), 0) && !allow(Class::Running, (2, 2, 12), 0));
        assert!(allow(Class::Lease, (16, 0, 0), 0));
    }

    #[test]
    fn no_class_of_a_tenant_keeps_its_others_out() {
        let bounds = Bounds::of(16);
        let own = |class, (running, single, list)| bounds.allow_tenant(class, &Counts { running, single, list });
        for class in WAITING {
            assert!(
                own(class, (5, 0, 0)) && own(class, (0, 5, 0)) && own(class, (0, 0, 5)),
                "{class:?}"
            );
        }
        assert!(
            !own(Class::Running, (6, 0, 0)) && own(Class::List, (6, 0, 0)),
            "three quarters of one"
        );
        assert!(
            !own(Class::Single, (6, 1, 0)) && own(Class::List, (3, 3, 1)),
            "seven eighths of two"
        );
        assert!(!own(Class::Single, (3, 2, 3)), "half of all");
    }
}
