//! The switch against a scripted API server: whom it waits for, and that it is ordered and answered once.

use portolan_crds::{Contention, RouterStatus};
use serde_json::json;

use super::*;
use crate::compile::Ledger;
use crate::distribute::Published;
use crate::facts::RouterObject;
use crate::index::Change;
use crate::testing::{Objects, scripted_api};

const STATE: &str = "/api/v1/namespaces/portolan-system/configmaps/portolan-separation";

struct Ground {
    objects: Objects,
    separating: Separating,
    world: watch::Sender<Option<Published>>,
}

fn published(contention: Contention) -> Published {
    let mut world = World::default();
    world.state.ledger = Arc::new(Ledger::restore(contention, [], 0, false));
    Published {
        world: Arc::new(world),
        ..Published::default()
    }
}

impl Ground {
    /// A hub with a ledger of before that knows these routers.
    fn new(routers: &[&str]) -> Self {
        let (objects, index) = (Objects::default(), Arc::new(Index::default()));
        index.write(|facts| {
            let object = RouterObject {
                uid: "uid".to_owned(),
                generation: 1,
                key_hashes: Vec::new(),
                subscription: None,
                status: RouterStatus::default(),
            };
            let routers = routers.iter().map(|name| ((*name).to_owned(), object.clone()));
            facts.routers = routers.collect();
            Change::Nothing
        });
        let (world, worlds) = watch::channel(Some(published(Contention::Fleet)));
        let separating = Separating {
            client: scripted_api(objects.clone()),
            namespace: "portolan-system".to_owned(),
            index,
            acks: Arc::default(),
            worlds,
            order: watch::Sender::new(false),
        };
        Self {
            objects,
            separating,
            world,
        }
    }

    fn router(&self, name: &str, knows_operators: bool) {
        let state = RouterState {
            knows_operators,
            ..RouterState::new(1, BTreeMap::new())
        };
        assert!(self.separating.acks.connected(name, state));
    }

    fn wants(&self) {
        let wanted = Separation {
            wanted: true,
            ..Separation::default()
        };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "portolan-separation", "resourceVersion": "1"}, "data": wanted.to_data(),
        });
        self.objects.lock().insert(STATE.to_owned(), map);
    }

    /// Whether it is ordered, whether it is wanted still, and what is said to that.
    async fn looks(&self) -> (bool, bool, String) {
        self.separating.look().await.unwrap();
        let data = self.objects.lock().get(STATE).map(|map| map["data"].clone());
        let data = data
            .and_then(|data| serde_json::from_value(data).ok())
            .unwrap_or_default();
        let said = Separation::from_data(&data);
        (*self.separating.order.borrow(), said.wanted, said.refused.join("\n"))
    }
}

#[tokio::test]
async fn it_is_ordered_once_every_router_that_is_not_forgotten_knows_operators() {
    let ground = Ground::new(&["new", "old", "unheard"]);
    ground.router("new", true);
    ground.router("old", false);
    ground.router("forgotten", false);
    assert_eq!(ground.looks().await, (false, false, String::new()), "nobody wants it");
    ground.wants();
    let (ordered, wanted, refused) = ground.looks().await;
    assert!(!ordered && !wanted);
    let lines: Vec<_> = refused.lines().collect();
    assert_eq!(lines.len(), 2, "{refused}");
    assert!(lines[0].starts_with("router old is of a release"), "{refused}");
    assert!(lines[1].contains("portolanctl router forget unheard"), "{refused}");
    ground.separating.index.write(|facts| {
        facts.routers.remove("old");
        facts.routers.remove("unheard");
        Change::Nothing
    });
    ground.wants();
    assert_eq!(ground.looks().await, (true, true, String::new()), "until it is done");
    ground.world.send_replace(Some(published(Contention::Operator)));
    assert_eq!(ground.looks().await, (false, false, String::new()));
    assert!(ground.separating.look().await.unwrap(), "nothing is left to do");
}

/// Of which operator it was nobody knows: another one of it may wait for what it lets go of.
#[tokio::test]
async fn what_a_shard_that_is_gone_lets_go_of_is_waited_for() {
    use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};
    let ground = Ground::new(&[]);
    let mut chunk = Chunk::new("east", Slot::WHOLE);
    let pair = Pair {
        owner: Some(ShardName::new("ops", "gone").unwrap()),
        owner_count: 1,
        view_revision: 1,
        releasing: true,
        fence: PairFence::default(),
    };
    chunk.add("shop-a", portolan_crds::OperatorName::default(), pair);
    let mut world = World::default();
    world.state.ledger = Arc::new(Ledger::restore(Contention::Fleet, [chunk], 1, false));
    ground.world.send_replace(Some(Published {
        world: Arc::new(world),
        ..Published::default()
    }));
    ground.wants();
    let (ordered, _, refused) = ground.looks().await;
    assert!(!ordered && refused.contains("east/shop-a (of ops/gone)"), "{refused}");
}
