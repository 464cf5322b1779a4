//! Facts under construction, and what the tests ask of a compiled world.

use jiff::Timestamp;
use portolan_crds::{
    ClusterEntry, ConditionReason, Endpoint, MemberClusterSpec, OperatorName, ShardingConfigSpec, ShardingConfigStatus,
};
use portolan_wire::subscription::Subscription;
use serde_json::json;

use super::*;
use crate::facts::{AgentReport, MemberHistory, MemberObject, Namespace, Pin, ShardObject, Token};

pub(in crate::compile) const CLUSTERS: [&str; 2] = ["east", "west"];

/// Facts under construction.
#[derive(Debug, Clone, Default)]
pub(in crate::compile) struct Fleet {
    pub(in crate::compile) facts: Facts,
    pub(in crate::compile) state: State,
    /// As compiled last.
    last: Option<World>,
    memo: Memo,
}

pub(in crate::compile) fn shard_name(name: &str) -> ShardName {
    ShardName::new("ops", name).unwrap()
}

/// `entries`: cluster and its exact namespaces; none: all of them.
pub(in crate::compile) fn spec(entries: &[(&str, &[&str])]) -> ShardingConfigSpec {
    let entry = |(cluster, namespaces): &(&str, &[&str])| ClusterEntry {
        name: Some((*cluster).to_owned()),
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        ..ClusterEntry::default()
    };
    ShardingConfigSpec {
        selector: Some(serde_json::from_value(json!({"matchLabels": {"app": "op"}})).unwrap()),
        caller_clusters: vec!["east".to_owned()],
        clusters: entries.iter().map(entry).collect(),
        ..ShardingConfigSpec::default()
    }
}

impl Fleet {
    /// Members east and west with agents that have reported `namespaces`.
    pub(in crate::compile) fn new(namespaces: &[&str]) -> Self {
        let mut fleet = Self::default();
        for cluster in CLUSTERS {
            fleet.member(cluster);
            fleet.inventory(cluster, namespaces);
            fleet.agent(cluster).callers = Some(BTreeMap::new());
        }
        fleet
    }

    pub(in crate::compile) fn member(&mut self, cluster: &str) {
        let spec = MemberClusterSpec {
            accept: true,
            endpoints: vec![Endpoint {
                url: format!("https://{cluster}.example"),
                tls_server_name: None,
            }],
            ..MemberClusterSpec::default()
        };
        let member = MemberObject {
            uid: format!("object-{cluster}"),
            generation: 1,
            labels: BTreeMap::from([("region".to_owned(), cluster.to_owned())]),
            accept: true,
            problems: Vec::new(),
            in_force: Some(Arc::new(spec)),
            status: portolan_crds::MemberClusterStatus::default(),
        };
        let pin = Pin {
            member_uid: member.uid.clone(),
            cluster_uid: format!("uid-{cluster}"),
            signing_keys: vec![format!(r#"{{"kty":"RSA","n":"{cluster}","e":"AQAB"}}"#)],
            agent_keys: Vec::new(),
            history: MemberHistory::default(),
        };
        self.facts.members.insert(cluster.to_owned(), member);
        self.facts.pins.insert(cluster.to_owned(), pin);
    }

    /// The member is for ShardingConfigs of these namespaces of the hub.
    pub(in crate::compile) fn allow(&mut self, cluster: &str, namespaces: &[&str]) {
        let member = self.facts.members.get_mut(cluster).unwrap();
        let spec = MemberClusterSpec {
            allowed_namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            ..(**member.in_force.as_ref().unwrap()).clone()
        };
        member.in_force = Some(Arc::new(spec));
    }

    pub(in crate::compile) fn agent(&mut self, cluster: &str) -> &mut AgentReport {
        self.facts.agents.entry(cluster.to_owned()).or_default()
    }

    /// The agent has minted this text for a router.
    pub(in crate::compile) fn token(&mut self, cluster: &str, router: &str, text: &str) {
        let token = Token {
            router_uid: "uid".to_owned(),
            token: text.into(),
            expires_unix_seconds: 1,
        };
        Arc::make_mut(&mut self.agent(cluster).tokens).insert(router.into(), token.into());
    }

    pub(in crate::compile) fn inventory(&mut self, cluster: &str, namespaces: &[&str]) {
        let namespaces = namespaces.iter().map(|name| ((*name).to_owned(), Namespace::default()));
        self.agent(cluster).namespaces = Some(namespaces.collect()).into();
    }

    /// As an agent labels.
    pub(in crate::compile) fn label(&mut self, cluster: &str, namespace: &str) {
        let Settings { keys, bucketing, .. } = Settings::default();
        let labels = [
            (keys.namespace(), namespace.to_owned()),
            (keys.sharding_hash(), bucketing.bucket_of(namespace).to_string()),
        ];
        let namespaces = self.agent(cluster).namespaces.get_or_insert_default();
        let namespace = namespaces.entry(namespace.to_owned()).or_default();
        namespace.labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    }

    pub(in crate::compile) fn caller(&mut self, cluster: &str, uid: &str, app: &str) {
        let fact = v1::CallerFact {
            namespace: "ops".to_owned(),
            pod: format!("pod-{uid}"),
            uid: uid.to_owned(),
            service_account: "op".to_owned(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            phase: "Running".to_owned(),
            created_unix_seconds: Some(1_700_000_000),
            ..v1::CallerFact::default()
        };
        self.agent(cluster)
            .callers
            .get_or_insert_default()
            .insert(uid.to_owned(), fact);
    }

    /// Creates a shard, or edits it.
    pub(in crate::compile) fn apply(&mut self, name: &str, spec: ShardingConfigSpec) {
        self.apply_of(&shard_name(name), spec);
    }

    /// That of any author.
    pub(in crate::compile) fn apply_of(&mut self, name: &ShardName, spec: ShardingConfigSpec) {
        let age = i64::try_from(self.facts.shards.len()).unwrap();
        let object = self.facts.shards.entry(name.clone()).or_insert_with(|| ShardObject {
            uid: format!("object-{}", name.name()),
            generation: 0,
            created: Timestamp::from_second(age).unwrap(),
            deleting: false,
            has_finalizer: false,
            root: None,
            spec: Err(String::new()),
            flaw: None,
            bytes: 0,
            forced: None,
            status: ShardingConfigStatus::default(),
        });
        object.generation += 1;
        object.take_spec(name, Ok(Arc::new(spec)));
    }

    pub(in crate::compile) fn delete(&mut self, name: &str) {
        self.facts.shards.remove(&shard_name(name));
    }

    /// Compiles; `released` 0 means that no router has acknowledged anything.
    pub(in crate::compile) fn compile(&mut self, released: impl Into<Released>) -> World {
        self.compile_at(released, Timestamp::UNIX_EPOCH)
    }

    /// The hub dies after its last write and starts again. It knows of agents only what they tell anew; they are taken to
    /// have told already.
    pub(in crate::compile) fn restart(&mut self) {
        let ledger = &self.state.ledger;
        let whole = [Slot::WHOLE].into();
        let chunks = CLUSTERS
            .iter()
            .flat_map(|cluster| ledger.chunks(cluster, "", &whole, &whole));
        let ledger = Ledger::restore(
            ledger.contention(),
            chunks,
            ledger.view_revision(),
            ledger.is_withholding(),
        );
        self.state = State {
            run: 0,
            ledger: Arc::new(ledger),
            roots: BTreeMap::new(),
            attempts: BTreeMap::new(),
            steps: Steps::default(),
            ..self.state.clone()
        };
    }

    pub(in crate::compile) fn compile_at(&mut self, released: impl Into<Released>, now: Timestamp) -> World {
        let settings = Settings::default();
        let given = Given {
            facts: &self.facts,
            settings: &settings,
            before: &self.state,
            released: &released.into(),
            now,
        };
        let decided = decide(given, &mut self.memo);
        let anew = decide(given, &mut Memo::default());
        assert_eq!(
            decided.state, anew.state,
            "what the run before found out changes nothing"
        );
        assert_eq!(decided.verdicts, anew.verdicts, "nor any verdict");
        assert!(decided.state.ledger.is_consistent());
        self.state = decided.state.clone();
        let world = render(&self.facts, &settings, decided.clone(), self.last.as_ref(), now);
        let anew = render(&self.facts, &settings, decided, None, now);
        assert!(
            world.same_outcome(&anew),
            "what is shared with the world before changes nothing"
        );
        parts_are_what_they_see(&world);
        self.last = Some(world.clone());
        world
    }
}

/// A part of the world is found without looking through all of it.
fn parts_are_what_they_see(world: &World) {
    let shards = world.state.accepted.keys();
    let shards = shards.map(|shard| Subscription::Shards([shard.clone()].into()));
    let callers = world.views.keys().cloned().map(Subscription::Caller);
    for subscription in shards.chain(callers) {
        let scope = Scope::of(&subscription, world);
        let seen = world.resources.keys().filter(|name| scope.sees(name));
        let found: BTreeSet<_> = scope.resources(world).map(|(name, _)| name).collect();
        assert_eq!(found, seen.collect(), "{subscription:?}");
    }
}

impl From<u64> for Released {
    fn from(by_all: u64) -> Self {
        Self {
            by_all,
            ..Self::default()
        }
    }
}

impl World {
    pub(in crate::compile) fn refusal(&self, name: &str) -> Option<ConditionReason> {
        self.shards[&shard_name(name)]
            .refusal
            .as_ref()
            .map(|refusal| refusal.reason)
    }

    pub(in crate::compile) fn message(&self, name: &str) -> &str {
        let refusal = self.shards[&shard_name(name)].refusal.as_ref();
        refusal.map(|refusal| refusal.message.as_str()).unwrap_or_default()
    }

    pub(in crate::compile) fn callers_of(&self, name: &str) -> usize {
        self.callers.get(&shard_name(name)).map_or(0, BTreeSet::len)
    }

    pub(in crate::compile) fn owner(&self, cluster: &str, namespace: &str) -> Option<&str> {
        self.state
            .ledger
            .get(&OperatorName::default(), cluster, namespace)?
            .owner
            .as_ref()
            .map(ShardName::name)
    }

    pub(in crate::compile) fn view(&self, home: &str, uid: &str) -> Option<&v1::CallerView> {
        let name = Ref::View {
            home: home.to_owned(),
            pod_uid: uid.to_owned(),
        };
        match self.resources.get(&name)?.resource.body.as_ref()? {
            v1::resource::Body::CallerView(view) => Some(view),
            _ => None,
        }
    }

    pub(in crate::compile) fn body(&self, name: &Ref) -> Option<&v1::resource::Body> {
        self.resources.get(name)?.resource.body.as_ref()
    }

    pub(in crate::compile) fn identity(&self, cluster: &str) -> Option<&v1::MemberIdentity> {
        match self.body(&Ref::Identity(cluster.to_owned()))? {
            v1::resource::Body::MemberIdentity(identity) => Some(identity),
            _ => None,
        }
    }

    pub(in crate::compile) fn rules(&self, name: &str) -> Option<&v1::Shard> {
        match self.body(&Ref::Shard(shard_name(name)))? {
            v1::resource::Body::Shard(shard) => Some(shard),
            _ => None,
        }
    }

    pub(in crate::compile) fn owned(&self, cluster: &str, name: &str) -> Option<&v1::Ownership> {
        match self.body(&owned_by(cluster, name))? {
            v1::resource::Body::Ownership(owned) => Some(owned),
            _ => None,
        }
    }
}

pub(in crate::compile) fn owned_by(cluster: &str, name: &str) -> Ref {
    Ref::Ownership {
        cluster: cluster.to_owned(),
        shard: shard_name(name),
    }
}
