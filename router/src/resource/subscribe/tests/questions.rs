//! Questions that go to the hub over the stream, and its answers.

use tokio::time::Instant;

use super::*;
use crate::resource::access::tests::anybody;
use crate::resource::whereabouts::Question;

struct NoMembers;

impl MemberApi for NoMembers {
    fn post(
        &self,
        cluster: &str,
        _: &'static str,
        _: Turn,
        _: Vec<u8>,
    ) -> futures::future::BoxFuture<'static, MemberAnswer> {
        panic!("member {cluster} was asked")
    }
}

fn proxy(user: &str) -> [Check; 1] {
    [Check::HubProxy {
        user: user.to_owned(),
        groups: vec!["sre".to_owned()],
        cluster: "east".to_owned(),
    }]
}

#[tokio::test]
async fn questions_to_the_hub_are_told_apart_by_id() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    // The stream carries questions once it has been answered on.
    session.push(1, Vec::new(), Vec::new()).await;
    let access = Access::new(client.reviews.clone(), std::sync::Arc::new(NoMembers));
    let answers = async {
        let mut asked = Vec::new();
        for _ in 0..2 {
            let In::AccessReview(review) = session.receive().await else {
                panic!("not a question")
            };
            assert_eq!(
                (review.groups.as_slice(), review.cluster.as_str()),
                (&["sre".to_owned()][..], "east")
            );
            asked.push(review);
        }
        // In the other order.
        for review in asked.into_iter().rev() {
            let decision = v1::AccessDecision {
                id: review.id,
                allowed: review.user == "ada",
                reason: String::new(),
            };
            session.send(Out::AccessDecision(decision)).await;
        }
    };
    let (ada, bob) = (proxy("ada"), proxy("bob"));
    let caller = anybody();
    let (ada, bob, ()) = tokio::join!(access.check(&caller, &ada), access.check(&caller, &bob), answers);
    assert_eq!(ada, Ok(()));
    assert!(
        matches!(&bob, Err(Fault::Forbidden(text)) if text.contains("memberclusters/east")),
        "{bob:?}"
    );

    // The hub goes away: its last word stands, and a stranger is told why.
    session.end(Status::unavailable("restarting")).await;
    hub.stop().await;
    assert_eq!(access.check(&anybody(), &proxy("ada")).await, Ok(()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let eve = access.check(&anybody(), &proxy("eve")).await;
    assert!(
        matches!(&eve, Err(fault @ Fault::HubAway(text)) if text.contains("away") && fault.retry_after_seconds().is_none()),
        "{eve:?}"
    );
    client.stop().await;
}

#[tokio::test]
async fn what_any_router_was_told_is_served_once_the_hub_says_so() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, Vec::new(), Vec::new()).await;
    let catch_up = &client.routing.catch_up;
    let answer = async {
        let In::CatchUp(question) = session.receive().await else {
            panic!("not a question")
        };
        session.push(2, everything(), Vec::new()).await;
        assert_eq!(shard_of(&client, "u1"), Some("ns/a".to_owned()));
        let caught_up = v1::CaughtUp { id: question.id };
        session.send(Out::CaughtUp(caught_up)).await;
    };
    let (one, other, ()) = tokio::join!(catch_up.wait(), catch_up.wait(), answer);
    assert!(one.is_ok() && other.is_ok());

    let alone = v1::Alone { for_seconds: 600 };
    session.send(Out::Alone(alone)).await;
    session.push(3, Vec::new(), Vec::new()).await;
    assert!(client.routing.alone.lasts() >= Duration::from_mins(10));
    session.end(Status::unavailable("restarting")).await;
    hub.stop().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(catch_up.wait().await.is_err(), "the hub is away");
    assert_eq!(client.routing.alone.lasts(), Duration::ZERO, "others may come");
    client.stop().await;
}

fn welcome(capabilities: &[&str]) -> Out {
    Out::Welcome(v1::Welcome {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: capabilities.iter().map(|word| (*word).to_owned()).collect(),
        ..v1::Welcome::default()
    })
}

fn where_is(namespace: &str) -> Question {
    Question {
        namespace: namespace.to_owned(),
        clusters: vec!["east".to_owned()],
    }
}

#[tokio::test]
async fn a_hub_that_cannot_say_where_a_namespace_is_is_not_asked() {
    let (mut hub, client, _folder) = connected().await;
    let whereabouts = &client.routing.whereabouts;
    let mut session = hub.session().await;
    session.send(welcome(&["report-pages"])).await;
    session.push(1, Vec::new(), Vec::new()).await;
    let asked = Instant::now();
    assert!(whereabouts.find(where_is("a")).await.is_err());
    let took = asked.elapsed();
    assert!(
        took < Duration::from_millis(900),
        "{took:?}: nobody waits for its answer"
    );
    session.end(Status::unavailable("replaced by a newer one")).await;

    let mut session = hub.session().await;
    session.send(welcome(&["report-pages", "namespaces"])).await;
    session.push(2, Vec::new(), Vec::new()).await;
    let answer = async {
        let In::NamespaceQuery(query) = session.receive().await else {
            panic!("not a question")
        };
        assert_eq!(query.namespace, "a");
        let found = v1::NamespaceFound {
            id: query.id,
            there: vec!["east".to_owned()],
            ..v1::NamespaceFound::default()
        };
        session.send(Out::NamespaceFound(found)).await;
    };
    let (found, ()) = tokio::join!(whereabouts.find(where_is("a")), answer);
    assert_eq!(found.unwrap().there, ["east"]);
    session.end(Status::unavailable("over")).await;
    hub.stop().await;
    client.stop().await;
}

#[tokio::test]
async fn a_hub_of_before_is_left_and_what_it_tells_is_not_taken() {
    let (mut hub, client, _folder) = connected().await;
    let told = |term: u64| {
        Out::Welcome(v1::Welcome {
            protocol: portolan_wire::protocol::PROTOCOL,
            term,
            ..v1::Welcome::default()
        })
    };
    let mut session = hub.session().await;
    session.send(told(7)).await;
    session.push(1, Vec::new(), Vec::new()).await;
    session.end(Status::unavailable("frozen")).await;
    let generation = client.routing.load().snapshot.generation;
    let mut session = hub.session().await;
    session.send(told(6)).await;
    // It comes back, maybe to the hub by then.
    let mut session = hub.session().await;
    assert_eq!(client.routing.load().snapshot.generation, generation);
    session.send(told(7)).await;
    session.push(2, Vec::new(), Vec::new()).await;
    assert_ne!(client.routing.load().snapshot.generation, generation);
    session.end(Status::unavailable("over")).await;
    hub.stop().await;
    client.stop().await;
}
