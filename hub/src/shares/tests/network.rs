//! A hub, its routers, and what is under way between them.

use std::collections::VecDeque;

use super::*;

/// One router, as it is: it keeps to the last shares that it heard, whole; and says what it would have after a restart.
#[derive(Debug, Default)]
pub(super) struct SimRouter {
    pub(super) name: String,
    uid: u32,
    registered: bool,
    pub(super) serves: bool,
    pub(super) sees: Option<BTreeSet<PolicyName>>,
    pub(super) shares: BTreeMap<SharedLimit, u32>,
    pub(super) revision: u64,
    /// Of these a restart would know: on disk.
    kept: (BTreeMap<SharedLimit, u32>, u64),
    /// Rules of policies that it has.
    pub(super) has: BTreeSet<SharedLimit>,
    pub(super) asked: u64,
    /// The hub's end of its stream.
    epoch: Option<u64>,
    /// Its own end is open.
    is_open: bool,
    to_say: VecDeque<Vec<v1::SharedDemand>>,
    pub(super) to_hear: VecDeque<v1::Shares>,
}

pub(super) struct Network {
    pub(super) core: Core,
    pub(super) routers: Vec<SimRouter>,
    pub(super) rules: BTreeSet<SharedLimit>,
    pub(super) supply: Supply,
    now: Instant,
    epochs: u64,
    /// Hubs so far.
    terms: u64,
}

/// Rule `rule` of object `policy`; another object of the same name from 10 on.
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
    }

    pub(super) fn tell_rules(&mut self) {
        let rules = self.rules.iter().map(|rule| (rule.clone(), self.supply));
        // Objects stay when their rules are not in force, and the latest of a name is there.
        let mut objects = BTreeMap::new();
        for rule in &self.rules {
            objects.insert(rule.policy.clone(), rule.uid.clone());
        }
        self.core.set_rules(&rules.collect(), objects);
    }

    /// A rule is in force, and routers get it.
    pub(super) fn put_rule(&mut self, rule: SharedLimit) {
        self.rules
            .retain(|one| one.policy != rule.policy || one.uid == rule.uid);
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
            router.shares.clear();
            router.revision = 0;
            router.kept = <_>::default();
            self.register();
        }
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
            self.core.left(&router.name, epoch);
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
        self.epochs += 1;
        let enrolled = (router.name.clone(), router.uid.to_string());
        self.core.connected(enrolled, self.epochs, router.serves, self.now);
        router.epoch = Some(self.epochs);
        router.is_open = true;
        router.say();
    }

    pub(super) fn restart_router(&mut self, router: usize) {
        self.break_stream(router);
        let router = &mut self.routers[router];
        (router.shares, router.revision) = router.kept.clone();
        router.has.clear();
    }

    /// It comes back without what it had on disk.
    pub(super) fn lose(&mut self, router: usize) {
        self.break_stream(router);
        let router = &mut self.routers[router];
        router.kept = <_>::default();
        (router.shares, router.revision) = router.kept.clone();
        router.has.clear();
    }

    pub(super) fn keep(&mut self, router: usize) {
        let router = &mut self.routers[router];
        router.kept = (router.shares.clone(), router.revision);
    }

    /// A hub that knows nothing; no stream outlives the one of before.
    pub(super) fn restart_hub(&mut self) {
        for router in 0..self.routers.len() {
            self.break_stream(router);
            self.notice(router);
            // What is not on disk by then is unknown to the next hub.
            self.keep(router);
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
        router.has = self
            .rules
            .iter()
            .filter(|rule| router.may_have(rule))
            .cloned()
            .collect();
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
            self.core.reported(&router.name, epoch, &said);
        }
    }

    /// The router hears what comes next.
    pub(super) fn deliver_one(&mut self, router: usize) {
        let router = &mut self.routers[router];
        if let Some(told) = router.to_hear.pop_front() {
            router.revision = told.revision;
            router.shares = told
                .shares
                .into_iter()
                .map(|share| {
                    let key = SharedLimit {
                        policy: share.policy.parse().unwrap(),
                        uid: share.uid,
                        rule: share.rule,
                    };
                    (key, share.millionths)
                })
                .collect();
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
            for share in router.to_hear.iter().flat_map(|told| &told.shares) {
                let key = SharedLimit {
                    policy: share.policy.parse().unwrap(),
                    uid: share.uid.clone(),
                    rule: share.rule.clone(),
                };
                let most = most.entry(key).or_default();
                *most = share.millionths.max(*most);
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

impl SimRouter {
    fn may_have(&self, rule: &SharedLimit) -> bool {
        self.sees.as_ref().is_none_or(|sees| sees.contains(&rule.policy))
    }

    fn say(&mut self) {
        if !self.is_open {
            return;
        }
        let demands = self.has.iter().map(|rule| v1::SharedDemand {
            policy: rule.policy.to_string(),
            rule: rule.rule.clone(),
            share_millionths: self.kept.0.get(rule).copied().unwrap_or_default(),
            revision: self.kept.1,
            asked_per_second_thousandths: self.asked,
        });
        let demands = if self.serves { demands.collect() } else { Vec::new() };
        self.to_say.push_back(demands);
    }
}
