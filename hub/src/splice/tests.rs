//! Doors of replicas on real sockets.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn follows(identity: &str, address: &str) -> Role {
    Role::Follows(Leader {
        identity: identity.to_owned(),
        address: Some(address.to_owned()),
        ..Leader::default()
    })
}

/// A replica: its door, where it listens, and what stands there once it was admitted.
struct Replica {
    address: String,
    role: watch::Sender<Role>,
    admitted: JoinSet<Option<TcpStream>>,
    listener: TcpListener,
    door: Arc<Door>,
}

impl Replica {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let role = watch::Sender::new(Role::Unknown(String::new()));
        let door = Door {
            role: role.subscribe(),
            metrics: Metrics::default(),
            first_bytes_within: Duration::from_millis(200),
        };
        Self {
            address: listener.local_addr().unwrap().to_string(),
            role,
            admitted: JoinSet::new(),
            listener,
            door: Arc::new(door),
        }
    }

    /// The next connection comes to the door.
    async fn accept(&mut self) {
        let (stream, _) = self.listener.accept().await.unwrap();
        self.admitted.spawn(self.door.clone().admit(stream));
    }

    async fn outcome(&mut self) -> Option<TcpStream> {
        let next = tokio::time::timeout(PATIENCE, self.admitted.join_next()).await.unwrap();
        next.unwrap().unwrap()
    }
}

async fn says(address: &str, words: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(words).await.unwrap();
    client
}

async fn hears(stream: &mut TcpStream, words: &[u8]) {
    let mut heard = vec![0; words.len()];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut heard))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(heard, words);
}

async fn ends(stream: &mut TcpStream) {
    let ended = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test]
async fn a_connection_reaches_the_one_that_leads_and_is_cut_when_that_is_another() {
    let (mut here, mut there) = (Replica::new().await, Replica::new().await);
    there.role.send_replace(Role::Leads);
    here.role.send_replace(follows("there", &there.address));
    let mut client = says(&here.address, b"\x16hello").await;
    here.accept().await;
    there.accept().await;
    let mut server = there.outcome().await.expect("it leads");
    hears(&mut server, b"\x16hello").await;
    server.write_all(b"welcome").await.unwrap();
    hears(&mut client, b"welcome").await;
    // That nobody is known to lead for a moment cuts nothing.
    here.role.send_replace(Role::Unknown(String::new()));
    client.write_all(b"more").await.unwrap();
    hears(&mut server, b"more").await;
    here.role.send_replace(follows("another", "127.0.0.1:1"));
    ends(&mut client).await;
    ends(&mut server).await;
    assert!(here.outcome().await.is_none());
}

#[tokio::test]
async fn a_client_that_is_silent_is_let_go_when_the_one_that_leads_has_let_it_go() {
    let (mut here, mut there) = (Replica::new().await, Replica::new().await);
    there.role.send_replace(Role::Leads);
    here.role.send_replace(follows("there", &there.address));
    let mut client = says(&here.address, b"\x16").await;
    here.accept().await;
    there.accept().await;
    let mut server = there.outcome().await.expect("it leads");
    hears(&mut server, b"\x16").await;
    drop(server);
    assert!(here.outcome().await.is_none());
    ends(&mut client).await;
}

#[tokio::test]
async fn what_was_passed_on_once_is_not_passed_on_again() {
    let (mut here, mut there) = (Replica::new().await, Replica::new().await);
    // Each takes the other for the one that leads.
    here.role.send_replace(follows("there", &there.address));
    there.role.send_replace(follows("here", &here.address));
    let mut client = says(&here.address, b"\x16hello").await;
    here.accept().await;
    there.accept().await;
    let again = tokio::time::timeout(Duration::from_secs(1), here.listener.accept()).await;
    assert!(again.is_err(), "it came back");
    // It stays where it waits, if that one leads soon.
    there.role.send_replace(Role::Leads);
    let mut server = there.outcome().await.expect("it leads by now");
    hears(&mut server, b"\x16hello").await;
    server.write_all(b"welcome").await.unwrap();
    hears(&mut client, b"welcome").await;
}

#[tokio::test]
async fn a_client_waits_at_the_door_while_nobody_leads() {
    let mut here = Replica::new().await;
    // The one that led is dead.
    here.role.send_replace(follows("dead", "127.0.0.1:1"));
    let _client = says(&here.address, b"\x16hello").await;
    here.accept().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    here.role.send_replace(Role::Leads);
    let mut server = here.outcome().await.expect("it leads by now");
    hears(&mut server, b"\x16hello").await;
}

#[tokio::test]
async fn who_says_nothing_or_nonsense_is_let_go() {
    let mut here = Replica::new().await;
    here.role.send_replace(Role::Leads);
    let _silent = TcpStream::connect(&here.address).await.unwrap();
    here.accept().await;
    assert!(here.outcome().await.is_none());
    let mut liar = says(&here.address, b"PORTOLAN-PASSED-OFF\r\n").await;
    here.accept().await;
    assert!(here.outcome().await.is_none());
    ends(&mut liar).await;
}
