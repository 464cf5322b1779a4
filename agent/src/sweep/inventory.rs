//! What one sweep knows of the objects of its kind: which are labelled, and which wait for their labels. Pure.
//!
//! Per object it keeps the key and one mark, whatever the object's size; uids only of those that wait. The queue is
//! bounded: what does not fit stays marked as wrong, and a relist finds it again. Caller: `sweep::kind`.

use std::collections::{BTreeMap, HashMap, VecDeque};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::buckets::Buckets;
use crate::label::Labelling;

/// Longest queue of one kind. A waiting object costs some 150 bytes: 3 MB.
const QUEUE_MAX: usize = 20_000;

/// An object that lacks its labels, as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Todo {
    /// Where it lives; of a Namespace, its own name.
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) uid: Box<str>,
}

/// What kind of object is labelled, and what its labels follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Objects in namespaces: labelled as their namespace.
    Objects,
    /// The Namespaces themselves.
    Namespaces,
}

/// True: the labels are as they shall be.
type Marks = HashMap<Box<str>, HashMap<Box<str>, bool>>;

/// What one kind's sweep knows of its objects: which are labelled, and which are still to be.
#[derive(Debug)]
pub(crate) struct Inventory {
    labelling: Labelling,
    subject: Subject,
    marks: Marks,
    /// The marks of the list under way; they replace `marks` at its end.
    listing: Option<Marks>,
    queue: VecDeque<Todo>,
    /// Tried in vain for now, by namespace and name: each waits once, however often it changes. Shares the bound of the
    /// queue.
    failed: BTreeMap<(Box<str>, Box<str>), Todo>,
    /// The queue was full: only a relist finds what was not queued.
    overflowed: bool,
    counts: Counts,
    buckets: Buckets,
    swept: bool,
}

/// Objects outside of system namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) labelled: u64,
    pub(crate) total: u64,
}

/// Where a new entry of the queue goes.
#[derive(Clone, Copy)]
enum Urgency {
    /// Just created or changed: someone may be waiting for it.
    Event,
    /// Found in a list, with many others.
    Listed,
}

impl Inventory {
    pub(crate) fn new(labelling: Labelling, subject: Subject) -> Self {
        Self {
            buckets: Buckets::new(labelling.bucketing),
            labelling,
            subject,
            marks: Marks::new(),
            listing: None,
            queue: VecDeque::new(),
            failed: BTreeMap::new(),
            overflowed: false,
            counts: Counts::default(),
            swept: false,
        }
    }

    /// A list begins: everything that is wrong will be seen again.
    pub(crate) fn begin(&mut self) {
        self.listing = Some(Marks::new());
        self.queue.clear();
        self.failed.clear();
        self.overflowed = false;
    }

    /// An object of the list.
    pub(crate) fn listed(&mut self, metadata: &ObjectMeta) {
        let Some((todo, met)) = self.todo_of(metadata) else {
            return;
        };
        let marks = self.listing.get_or_insert_default();
        marks
            .entry(todo.namespace.clone())
            .or_default()
            .insert(todo.name.clone(), met);
        if !met {
            self.enqueue(todo, Urgency::Listed);
        }
    }

    /// The list is through: what it did not contain is gone.
    pub(crate) fn end(&mut self) {
        if let Some(marks) = self.listing.take() {
            self.marks = marks;
        }
        self.counts = count(&self.marks);
        let sizes = self
            .marks
            .iter()
            .map(|(namespace, objects)| (&**namespace, objects.len()));
        self.buckets.recount(sizes);
        self.swept = true;
    }

    /// An object was created or changed.
    pub(crate) fn changed(&mut self, metadata: &ObjectMeta) {
        let Some((todo, met)) = self.todo_of(metadata) else {
            return;
        };
        let before = match self.marks.get_mut(&todo.namespace) {
            Some(objects) => objects.insert(todo.name.clone(), met),
            None => self
                .marks
                .entry(todo.namespace.clone())
                .or_default()
                .insert(todo.name.clone(), met),
        };
        self.counts.total += u64::from(before.is_none());
        if before.is_none() {
            self.buckets.add(&todo.namespace);
        }
        self.counts.labelled += u64::from(met);
        self.counts.labelled -= u64::from(before == Some(true));
        if !met {
            self.enqueue(todo, Urgency::Event);
        }
    }

    pub(crate) fn deleted(&mut self, metadata: &ObjectMeta) {
        let Some((todo, _)) = self.todo_of(metadata) else {
            return;
        };
        let Some(objects) = self.marks.get_mut(&todo.namespace) else {
            return;
        };
        let before = objects.remove(&todo.name);
        if objects.is_empty() {
            self.marks.remove(&todo.namespace);
        }
        self.counts.total -= u64::from(before.is_some());
        if before.is_some() {
            self.buckets.remove(&todo.namespace);
        }
        self.counts.labelled -= u64::from(before == Some(true));
    }

    /// The next object to label, if it still needs it.
    pub(crate) fn next(&mut self) -> Option<Todo> {
        while let Some(todo) = self.queue.pop_front() {
            let marks = self.listing.as_ref().unwrap_or(&self.marks);
            let met = marks.get(&todo.namespace).and_then(|objects| objects.get(&todo.name));
            if met == Some(&false) {
                return Some(todo);
            }
        }
        None
    }

    /// The labels could not be written now: it waits for [`Self::again`] while others have their turn.
    pub(crate) fn put_aside(&mut self, todo: Todo) {
        if self.is_full() {
            self.overflowed = true;
        } else {
            self.failed.insert(key(&todo), todo);
        }
    }

    /// What failed is queued again, behind everything else.
    pub(crate) fn again(&mut self) {
        self.queue.extend(std::mem::take(&mut self.failed).into_values());
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// About how many objects are in each bucket; nothing before the first full list is through, when nobody knows.
    pub(crate) fn by_bucket(&self) -> Vec<u64> {
        if self.swept { self.buckets.told() } else { Vec::new() }
    }

    /// The first full list is through.
    pub(crate) fn swept(&self) -> bool {
        self.swept
    }

    /// Nothing waits, yet something is wrong: it did not fit the queue, or its patch was refused.
    pub(crate) fn has_leftovers(&self) -> bool {
        self.swept
            && self.listing.is_none()
            && self.queue.is_empty()
            && self.failed.is_empty()
            && self.counts.labelled < self.counts.total
    }

    /// The leftovers are there because the queue was full.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// `None` for what is not labelled at all: objects of system namespaces.
    fn todo_of(&self, metadata: &ObjectMeta) -> Option<(Todo, bool)> {
        let name = metadata.name.as_deref()?;
        let namespace = match self.subject {
            Subject::Objects => metadata.namespace.as_deref()?,
            Subject::Namespaces => name,
        };
        self.labelling.wanted(namespace)?;
        let todo = Todo {
            namespace: namespace.into(),
            name: name.into(),
            uid: metadata.uid.as_deref()?.into(),
        };
        Some((todo, self.labelling.is_met(namespace, metadata.labels.as_ref())))
    }

    fn is_full(&self) -> bool {
        self.queue.len() + self.failed.len() >= QUEUE_MAX
    }

    fn enqueue(&mut self, todo: Todo, urgency: Urgency) {
        if let Some(waits) = self.failed.get_mut(&key(&todo)) {
            *waits = todo;
            return;
        }
        if self.is_full() {
            self.overflowed = true;
            return;
        }
        match urgency {
            Urgency::Event => self.queue.push_front(todo),
            Urgency::Listed => self.queue.push_back(todo),
        }
    }
}

fn key(todo: &Todo) -> (Box<str>, Box<str>) {
    (todo.namespace.clone(), todo.name.clone())
}

fn count(marks: &Marks) -> Counts {
    let all = || marks.values().flat_map(HashMap::values);
    Counts {
        labelled: all().filter(|met| **met).count() as u64,
        total: all().count() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn object(namespace: &str, name: &str, uid: u32, met: bool) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            uid: Some(uid.to_string()),
            labels: met.then(|| Labelling::default().wanted(namespace)).flatten(),
            ..ObjectMeta::default()
        }
    }

    fn inventory() -> Inventory {
        let mut inventory = Inventory::new(Labelling::default(), Subject::Objects);
        inventory.begin();
        inventory.end();
        inventory
    }

    fn counts(labelled: u64, total: u64) -> Counts {
        Counts { labelled, total }
    }

    #[test]
    fn a_restart_queues_only_what_is_wrong() {
        let mut inventory = Inventory::new(Labelling::default(), Subject::Objects);
        inventory.begin();
        inventory.listed(&object("a", "right", 1, true));
        inventory.listed(&object("a", "wrong", 2, false));
        inventory.listed(&object("kube-system", "left-alone", 3, false));
        assert!(!inventory.swept() && inventory.by_bucket().is_empty());
        inventory.end();
        assert!(inventory.swept());
        assert_eq!(inventory.by_bucket().iter().sum::<u64>(), 2);
        assert_eq!((inventory.counts(), inventory.queued()), (counts(1, 2), 1));
        assert_eq!(&*inventory.next().unwrap().name, "wrong");
        assert_eq!(inventory.next(), None);
        assert!(inventory.has_leftovers(), "until the event of the patch arrives");
        inventory.changed(&object("a", "wrong", 2, true));
        assert!(!inventory.has_leftovers() && inventory.counts() == counts(2, 2));
    }

    #[test]
    fn what_was_mended_or_deleted_meanwhile_is_not_patched() {
        let mut inventory = inventory();
        inventory.changed(&object("a", "mended", 1, false));
        inventory.changed(&object("a", "deleted", 2, false));
        inventory.changed(&object("a", "mended", 1, true));
        inventory.deleted(&object("a", "deleted", 2, false));
        assert_eq!(inventory.next(), None);
        assert_eq!(inventory.counts(), counts(1, 1));
    }

    #[test]
    fn what_failed_comes_again_behind_the_others() {
        let mut inventory = inventory();
        inventory.changed(&object("a", "fails", 1, false));
        inventory.changed(&object("a", "gone", 2, false));
        for _ in 0..2 {
            let todo = inventory.next().unwrap();
            inventory.put_aside(todo);
        }
        inventory.deleted(&object("a", "gone", 2, false));
        inventory.changed(&object("a", "other", 3, false));
        inventory.again();
        let names: Vec<_> = std::iter::from_fn(|| inventory.next()).map(|todo| todo.name).collect();
        assert_eq!(names, ["other".into(), "fails".into()]);
        let todo = Todo {
            namespace: "a".into(),
            name: "fails".into(),
            uid: "1".into(),
        };
        inventory.put_aside(todo);
        for uid in [1, 7] {
            inventory.changed(&object("a", "fails", uid, false));
        }
        assert_eq!(inventory.failed.len(), 1, "it waits once");
        assert!(!inventory.has_work() && !inventory.has_leftovers());
        inventory.again();
        let todo = inventory.next().unwrap();
        assert_eq!((&*todo.uid, inventory.next()), ("7", None), "as it is now");
        inventory.put_aside(todo);
        inventory.begin();
        inventory.again();
        assert!(!inventory.has_work(), "a list finds it again");
    }

    #[test]
    fn a_recreated_object_is_labelled_by_its_new_uid_too() {
        let mut inventory = inventory();
        inventory.changed(&object("a", "x", 1, false));
        inventory.deleted(&object("a", "x", 1, false));
        inventory.changed(&object("a", "x", 2, false));
        let uids: Vec<_> = std::iter::from_fn(|| inventory.next()).map(|todo| todo.uid).collect();
        assert!(uids.contains(&"2".into()), "{uids:?}");
    }

    #[test]
    fn namespaces_are_labelled_by_their_own_name() {
        let mut inventory = Inventory::new(Labelling::default(), Subject::Namespaces);
        inventory.begin();
        for name in ["team", "kube-system"] {
            let metadata = ObjectMeta {
                name: Some(name.into()),
                uid: Some("u".into()),
                ..ObjectMeta::default()
            };
            inventory.listed(&metadata);
        }
        inventory.end();
        let todo = inventory.next().unwrap();
        assert_eq!((&*todo.namespace, &*todo.name), ("team", "team"));
        assert_eq!(inventory.counts(), counts(0, 1));
    }

    #[test]
    fn a_full_queue_forgets_nothing_for_good() {
        let mut inventory = Inventory::new(Labelling::default(), Subject::Objects);
        inventory.begin();
        for uid in 0..=u32::try_from(QUEUE_MAX).unwrap() {
            inventory.listed(&object("a", &format!("o{uid}"), uid, false));
        }
        inventory.end();
        assert_eq!(std::iter::from_fn(|| inventory.next()).count(), QUEUE_MAX);
        assert!(inventory.has_overflowed() && inventory.has_leftovers());
        inventory.begin();
        assert!(!inventory.has_overflowed());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Changed(u8, bool),
        Deleted(u8),
        Relist,
        Take,
        Fail,
        Again,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..6, any::<bool>()).prop_map(|(name, met)| Step::Changed(name, met)),
            2 => (0_u8..6).prop_map(Step::Deleted),
            1 => Just(Step::Relist),
            2 => Just(Step::Take),
            1 => Just(Step::Fail),
            1 => Just(Step::Again),
        ]
    }

    /// Where the objects of the truth live: several namespaces, so that there are several buckets.
    fn home(n: u8) -> &'static str {
        ["a", "ns-a", "ns-b"][usize::from(n % 3)]
    }

    proptest! {
        /// Against the plain truth: counts are right at every step, and every wrong object is offered before the
        /// inventory calls itself done.
        #[test]
        fn counts_and_queue_follow_the_truth(steps in proptest::collection::vec(step(), 1..60)) {
            let mut truth = std::collections::BTreeMap::<u8, bool>::new();
            let mut offered = std::collections::BTreeSet::<String>::new();
            let mut inventory = inventory();
            let name = |n: u8| format!("o{n}");
            for step in steps {
                match step {
                    Step::Changed(n, met) => {
                        truth.insert(n, met);
                        offered.remove(&name(n));
                        inventory.changed(&object(home(n), &name(n), n.into(), met));
                    }
                    Step::Deleted(n) => {
                        truth.remove(&n);
                        inventory.deleted(&object(home(n), &name(n), n.into(), false));
                    }
                    Step::Relist => {
                        inventory.begin();
                        offered.clear();
                        for (n, met) in &truth {
                            inventory.listed(&object(home(*n), &name(*n), (*n).into(), *met));
                        }
                        inventory.end();
                    }
                    Step::Fail => {
                        if let Some(todo) = inventory.next() {
                            inventory.put_aside(todo);
                        }
                    }
                    Step::Again => inventory.again(),
                    Step::Take => {
                        if let Some(todo) = inventory.next() {
                            offered.insert(todo.name.to_string());
                        }
                    }
                }
                let labelled = truth.values().filter(|met| **met).count() as u64;
                prop_assert_eq!(inventory.counts(), counts(labelled, truth.len() as u64));
                let mut by_bucket = vec![0; 32];
                for n in truth.keys() {
                    by_bucket[usize::from(Labelling::default().bucketing.bucket_of(home(*n)))] += 1;
                }
                prop_assert_eq!(inventory.by_bucket(), by_bucket);
            }
            inventory.again();
            while let Some(todo) = inventory.next() {
                offered.insert(todo.name.to_string());
            }
            for (n, _) in truth.iter().filter(|(_, met)| !**met) {
                prop_assert!(offered.contains(&name(*n)), "o{} was never offered", n);
            }
        }
    }
}
