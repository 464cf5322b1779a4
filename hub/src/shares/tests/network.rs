//! A hub, its routers, and what is under way between them.

use super::router::{Conduct, SimRouter};
use super::*;

pub(super) struct Network {
    pub(super) core: Core,
    pub(super) routers: Vec<SimRouter>,
    pub(super) rules: BTreeSet<SharedLimit>,
    /// Uids of the objects that there are, also of those without rules.
    objects: BTreeMap<PolicyName, String>,
    /// Of them those that are out of force as a whole for now.
    withdrawn: BTreeSet<PolicyName>,
    /// What passed of each rule, less what came meanwhile.
    pub(super) passed: BTreeMap<SharedLimit, u64>,
    /// How often the object of each number was deleted: another one of its name has another uid.
    deleted: BTreeMap<u32, u32>,
    pub(super) supply: Supply,
    now: Instant,
    epochs: u64,
    /// Hubs so far.
    terms: u64,
}

/// Rule `rule` of object `policy`; from 10 on another object of the same name.
pub(super) fn key(policy: u32, rule: u32) -> SharedLimit {
    SharedLimit {
        policy: format!("CircuitBreaker/ops/p{}", policy % 10).parse().unwrap(),
        uid: format!("uid-{policy}"),
        rule: format!("rule-{rule}"),
    }
}

impl Network {
    /// With routers that are connected and have said that they have nothing.
    pub(super) fn new(routers: usize) -> Self {
        let now = Instant::now();
        let mut network = Self {
            core: Core::default(),
            routers: Vec::new(),
            rules: BTreeSet::new(),
            objects: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            passed: BTreeMap::new(),
            deleted: BTreeMap::new(),
            supply: Supply {
                rate: RATE,
                least: 1,
                fills_in: Some(Duration::from_secs(1)),
            },
            now,
            epochs: 0,
            terms: 0,
        };
        network.tell_rules();
        for router in 0..routers {
            network.routers.push(SimRouter {
                name: format!("r{router}"),
                registered: true,
                serves: true,
                ..SimRouter::default()
            });
        }
        network.register();
        for router in 0..routers {
            network.reconnect(router);
        }
        network.deliver();
        network
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now += by;
        let came = u64::try_from(by.as_millis()).unwrap();
        for router in &mut self.routers {
            router.tokens.come(&router.shares, came);
        }
        for passed in self.passed.values_mut() {
            *passed = passed.saturating_sub(came.saturating_mul(WHOLE.into()));
        }
    }

    /// Callers of this router take all that it has.
    pub(super) fn spend(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if !router.registered || router.is_old() {
            return;
        }
        for rule in &router.has {
            let spent = std::mem::take(router.tokens.levels.entry(rule.clone()).or_default());
            *self.passed.entry(rule.clone()).or_default() += spent;
        }
    }

    /// The object's label takes all of it out of force, or brings it back.
    pub(super) fn withdraw(&mut self, policy: u32, withdrawn: bool) {
        let SharedLimit { policy, .. } = self.present(policy, 0);
        if withdrawn {
            self.withdrawn.insert(policy);
        } else {
            self.withdrawn.remove(&policy);
        }
        self.tell_rules();
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn tell_rules(&mut self) {
        let rules = self.rules.iter().filter(|rule| !self.withdrawn.contains(&rule.policy));
        let rules = rules.map(|rule| (rule.clone(), self.supply)).collect();
        let objects = self.objects.iter().map(|(name, uid)| {
            let object = Object {
                uid: uid.clone(),
                in_force: !self.withdrawn.contains(name),
            };
            (name.clone(), object)
        });
        self.core.set_rules(&rules, objects.collect(), self.now);
    }

    /// The rule of the object that has this number's name now, or will have it next.
    pub(super) fn present(&self, policy: u32, rule: u32) -> SharedLimit {
        let deleted = self.deleted.get(&policy).copied().unwrap_or_default();
        key(policy + 10 * deleted, rule)
    }

    /// No object of this number's name is there any more; one that comes is another.
    pub(super) fn delete(&mut self, policy: u32) {
        let SharedLimit { policy: name, .. } = self.present(policy, 0);
        *self.deleted.entry(policy).or_default() += 1;
        self.rules.retain(|rule| rule.policy != name);
        self.objects.remove(&name);
        self.tell_rules();
    }

    /// A rule is in force, and routers get it.
    pub(super) fn put_rule(&mut self, rule: SharedLimit) {
        self.objects.insert(rule.policy.clone(), rule.uid.clone());
        if !self.core.bounds().contains_key(&rule) {
            // It is new, or was taken out before and let go of by all.
            self.passed.remove(&rule);
        }
        self.rules.insert(rule);
        self.tell_rules();
    }

    pub(super) fn register(&mut self) {
        let registered = self.routers.iter().filter(|router| router.registered).map(|router| {
            let registered = Registered {
                uid: router.uid.to_string(),
                sees: router.sees.clone(),
            };
            (router.name.clone(), registered)
        });
        self.core.set_routers(registered.collect(), self.now);
    }

    pub(super) fn join(&mut self, name: &str) {
        self.routers.push(SimRouter {
            name: name.to_owned(),
            registered: true,
            serves: true,
            ..SimRouter::default()
        });
        self.register();
    }

    /// Its object is deleted: whatever it goes on doing counts no more.
    pub(super) fn forget(&mut self, router: usize) {
        self.break_stream(router);
        self.notice(router);
        let router = &mut self.routers[router];
        router.registered = false;
        router.to_hear.clear();
        self.register();
    }

    /// It enrols anew, as another program.
    pub(super) fn enrol(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if !router.registered {
            router.registered = true;
            router.uid += 1;
            router.kept = <_>::default();
            router.restart();
            self.register();
        }
    }

    /// It ends and gives back what it has. A process with its folder may come later.
    pub(super) fn end(&mut self, router: usize) {
        let ends = &mut self.routers[router];
        if ends.conduct != Conduct::Loyal || !ends.is_open {
            return;
        }
        ends.kept = (BTreeMap::new(), ends.revision);
        while self.routers[router].epoch.is_some() && !self.routers[router].to_say.is_empty() {
            self.hear_one(router);
        }
        let ends = &self.routers[router];
        if let Some(epoch) = ends.epoch {
            self.core.gave_back(&ends.name, epoch, self.now);
        }
        self.break_stream(router);
        self.notice(router);
        self.routers[router].restart();
    }

    /// Its end is closed; what is under way is lost.
    pub(super) fn break_stream(&mut self, router: usize) {
        let router = &mut self.routers[router];
        router.is_open = false;
        router.to_say.clear();
        router.to_hear.clear();
    }

    /// The hub sees that the stream is over; the router may still read what it has of it.
    pub(super) fn notice(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if let Some(epoch) = router.epoch.take() {
            self.core.left(&router.name, epoch, self.now);
        }
        router.to_say.clear();
    }

    /// A new stream, on which it reports at once.
    pub(super) fn reconnect(&mut self, router: usize) {
        self.break_stream(router);
        self.notice(router);
        let router = &mut self.routers[router];
        if !router.registered {
            return;
        }
        if !router.is_old() {
            router.remember();
        }
        self.epochs += 1;
        let enrolled = (router.name.clone(), router.uid.to_string());
        self.core.connected(enrolled, self.epochs, router.serves, self.now);
        router.epoch = Some(self.epochs);
        router.is_open = true;
        router.say();
    }

    pub(super) fn restart_router(&mut self, router: usize) {
        self.break_stream(router);
        self.routers[router].restart();
    }

    /// It comes back without what it had on disk.
    pub(super) fn lose(&mut self, router: usize) {
        self.break_stream(router);
        let router = &mut self.routers[router];
        router.kept = <_>::default();
        router.restart();
    }

    pub(super) fn keep(&mut self, router: usize) {
        let router = &mut self.routers[router];
        router.kept = (router.told.clone(), router.revision);
        router.shares = router.told.clone();
        router.tokens.follow(&router.shares);
    }

    /// A hub that knows nothing; no stream outlives the one of before.
    pub(super) fn restart_hub(&mut self) {
        for router in 0..self.routers.len() {
            self.break_stream(router);
            self.notice(router);
            if self.routers[router].is_old() {
                // It used what was not on disk, of which the next hub does not know.
                self.keep(router);
            }
        }
        self.terms += 1;
        self.core = Core::default();
        self.core.begin(self.terms << 32);
        self.tell_rules();
        self.register();
    }

    pub(super) fn epoch_of(&self, router: usize) -> u64 {
        self.routers[router].epoch.unwrap()
    }

    /// The policies of the world arrive.
    pub(super) fn learn(&mut self, router: usize) {
        let router = &mut self.routers[router];
        let told = self.rules.iter().filter(|rule| !self.withdrawn.contains(&rule.policy));
        router.has = told.filter(|rule| router.may_have(rule)).cloned().collect();
        // An edit ends what it takes out; what this router is told of no more is laid aside.
        let is_told = |rule: &SharedLimit| {
            let is_there = self.objects.get(&rule.policy) == Some(&rule.uid);
            is_there && !self.withdrawn.contains(&rule.policy) && router.may_have(rule)
        };
        let ended = |rule: &SharedLimit| is_told(rule) && !router.has.contains(rule);
        let mut levels = router.tokens.levels.clone();
        levels.retain(|rule, _| !ended(rule));
        for rule in &router.has {
            levels.entry(rule.clone()).or_default();
        }
        router.tokens.levels = levels;
        router.tokens.follow(&router.shares);
    }

    /// It has no policy any more.
    pub(super) fn forget_rules(&mut self, router: usize) {
        self.routers[router].has.clear();
    }

    /// From now on it may be told of these policies.
    pub(super) fn see(&mut self, router: usize, sees: Option<BTreeSet<PolicyName>>) {
        self.routers[router].sees = sees;
        self.register();
    }

    pub(super) fn say(&mut self, router: usize) {
        self.routers[router].say();
    }

    /// The hub hears the next report.
    pub(super) fn hear_one(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if let (Some(epoch), Some(said)) = (router.epoch, router.to_say.pop_front()) {
            self.core
                .reported(&router.name, epoch, &said.demands, said.shares_revision);
        }
    }

    /// The router hears what comes next.
    pub(super) fn deliver_one(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if let Some(told) = router.to_hear.pop_front().filter(|_| router.conduct != Conduct::Deaf) {
            router.revision = told.revision;
            let fresh = told.shares.iter().filter(|share| share.fresh).cloned().map(keyed);
            let fresh: Vec<_> = fresh.filter(|(rule, _)| !router.told.contains_key(rule)).collect();
            router.told = told.shares.into_iter().map(keyed).collect();
            router.told.retain(|_, share| *share > 0);
            router.tokens.give_up(&router.told);
            router.tokens.fresh.extend(fresh);
            let (told, kept) = (&router.told, &router.kept.0);
            let used = told.iter().map(|(key, told)| {
                let on_disk = kept.get(key).copied().unwrap_or_default();
                (key.clone(), if router.is_old() { *told } else { on_disk.min(*told) })
            });
            router.shares = used.collect();
            router.tokens.follow(&router.shares);
        }
    }

    pub(super) fn divide(&mut self) {
        for Message { router, epoch, shares } in self.core.divide(self.now) {
            let router = self.routers.iter_mut().find(|one| one.name == router).unwrap();
            assert_eq!(router.epoch, Some(epoch));
            assert!(router.revision < shares.revision, "a router may overlook it");
            if router.is_open {
                router.to_hear.push_back(shares);
            }
        }
    }

    /// What all have heard is on disk.
    pub(super) fn keep_all(&mut self) {
        (0..self.routers.len()).for_each(|router| self.keep(router));
    }

    /// All report what they have kept by now, and are heard.
    pub(super) fn report(&mut self) {
        for router in 0..self.routers.len() {
            self.keep(router);
            self.say(router);
            while !self.routers[router].to_say.is_empty() && self.routers[router].epoch.is_some() {
                self.hear_one(router);
            }
        }
    }

    /// Everything that is under way arrives.
    pub(super) fn deliver(&mut self) {
        for router in 0..self.routers.len() {
            while !self.routers[router].to_hear.is_empty() {
                self.deliver_one(router);
            }
            while !self.routers[router].to_say.is_empty() {
                self.hear_one(router);
            }
        }
    }

    /// Seconds in which nothing goes wrong.
    pub(super) fn settle(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for router in 0..self.routers.len() {
                if self.routers[router].is_open {
                    let had = std::mem::take(&mut self.routers[router].has);
                    // What is not in force any more it keeps until the test says otherwise.
                    self.learn(router);
                    self.routers[router].has.extend(had);
                }
            }
            self.report();
            self.divide();
            self.deliver();
            self.keep_all();
            self.advance(Duration::from_secs(1));
        }
    }

    /// What each router keeps to.
    pub(super) fn shares(&self, rule: &SharedLimit) -> Vec<u32> {
        let of = |router: &SimRouter| router.shares.get(rule).copied().unwrap_or_default();
        self.routers.iter().map(of).collect()
    }

    /// What registered routers have or are about to have of each rule.
    pub(super) fn sums(&self) -> BTreeMap<SharedLimit, u64> {
        let mut sums = BTreeMap::new();
        for router in self.routers.iter().filter(|router| router.registered) {
            let mut most: BTreeMap<SharedLimit, u32> = router.shares.clone();
            let heard = router.told.clone().into_iter();
            let to_hear = router.to_hear.iter().flat_map(|told| told.shares.iter().cloned());
            for (key, share) in heard.chain(to_hear.map(keyed)) {
                let most = most.entry(key).or_default();
                *most = share.max(*most);
            }
            for (key, share) in most {
                *sums.entry(key).or_default() += u64::from(share);
            }
        }
        sums
    }

    /// Routers that there are and that are connected.
    pub(super) fn connected(&self) -> impl Iterator<Item = &SimRouter> {
        self.routers
            .iter()
            .filter(|router| router.registered && router.is_open && router.epoch.is_some())
    }
}

fn keyed(share: v1::RuleShare) -> (SharedLimit, u32) {
    let key = SharedLimit {
        policy: share.policy.parse().unwrap(),
        uid: share.uid,
        rule: share.rule,
    };
    (key, share.millionths)
}
