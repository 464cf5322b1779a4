//! What a client and a server see of each other through a stage, on plain TCP.

use std::io::ErrorKind;

use tokio::time::timeout;

use super::*;
use crate::eventually::eventually;

/// Long enough for a byte to cross two sockets on a busy machine, short enough to wait for in vain.
const SOON: Duration = Duration::from_millis(250);
const LATE: Duration = Duration::from_secs(10);

struct Scene {
    stage: Stage,
    server: TcpListener,
}

impl Scene {
    async fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stage = Stage::before(server.local_addr().unwrap().port()).unwrap();
        Self { stage, server }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.stage.address()).await.unwrap()
    }

    async fn accept(&self) -> TcpStream {
        timeout(LATE, self.server.accept()).await.unwrap().unwrap().0
    }

    async fn pair(&self) -> (TcpStream, TcpStream) {
        let client = self.client().await;
        (client, self.accept().await)
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 64];
    let length = timeout(LATE, stream.read(&mut buffer)).await.expect("nothing came")?;
    Ok(buffer[..length].to_vec())
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SOON, stream.read(&mut [0; 64])).await.is_err()
}

async fn is_reset(stream: &mut TcpStream) -> bool {
    read(stream)
        .await
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// The RST may be there before our side has seen that it is connected.
async fn is_reset_at_once(stage: &Stage) -> bool {
    match TcpStream::connect(stage.address()).await {
        Ok(mut stream) => is_reset(&mut stream).await,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn bytes_and_half_closes_pass() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read(&mut server).await.unwrap(), b"question");
    assert_eq!(read(&mut server).await.unwrap(), b"");
    server.write_all(b"answer").await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), b"answer");
    drop(server);
    assert_eq!(read(&mut client).await.unwrap(), b"");
}

#[tokio::test]
async fn a_reset_by_one_side_reaches_the_other() {
    let scene = Scene::new().await;
    let (client, mut server) = scene.pair().await;
    client.set_zero_linger().unwrap();
    drop(client);
    assert!(is_reset(&mut server).await);
}

#[tokio::test]
async fn without_a_server_connections_are_reset() {
    let Scene { stage, server } = Scene::new().await;
    drop(server);
    assert!(is_reset_at_once(&stage).await);
}

#[tokio::test]
async fn reset_cuts_open_and_new_connections() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    scene.stage.set(Fault::Reset);
    assert!(is_reset(&mut client).await);
    assert!(is_reset(&mut server).await);
    assert!(is_reset_at_once(&scene.stage).await);
    scene.stage.set(Fault::None);
    let (mut client, mut server) = scene.pair().await;
    client.write_all(b"again").await.unwrap();
    assert_eq!(read(&mut server).await.unwrap(), b"again");
}

#[tokio::test]
async fn delay_is_latency_and_not_throughput() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    let delay = SOON;
    scene.stage.set(Fault::Delay(delay));
    let start = Instant::now();
    for chunk in 0..20 {
        client.write_all(&[chunk; 64]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut all = [0; 20 * 64];
    timeout(LATE, server.read_exact(&mut all)).await.unwrap().unwrap();
    assert!(start.elapsed() >= delay);
    assert!(
        start.elapsed() < 15 * delay,
        "the chunks waited one after the other: {:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn new_connections_are_late_where_old_ones_are_not() {
    let scene = Scene::new().await;
    let (mut old, mut old_server) = scene.pair().await;
    scene.stage.set(Fault::DelayNew(Duration::from_hours(1)));
    let (mut new, mut new_server) = scene.pair().await;
    scene.stage.set(Fault::None);
    new.write_all(b"late").await.unwrap();
    old.write_all(b"in time").await.unwrap();
    assert_eq!(read(&mut old_server).await.unwrap(), b"in time");
    assert!(is_silent(&mut new_server).await);
}

#[tokio::test]
async fn bytes_under_way_arrive_when_the_delay_ends() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    scene.stage.set(Fault::Delay(Duration::from_hours(1)));
    client.write_all(b"late").await.unwrap();
    assert!(is_silent(&mut server).await);
    scene.stage.set(Fault::None);
    assert_eq!(read(&mut server).await.unwrap(), b"late");
}

#[tokio::test]
async fn a_blackhole_swallows_bytes_and_ends_nothing() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    scene.stage.set(Fault::Blackhole);
    client.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut server).await);
    drop(client);
    assert!(is_silent(&mut server).await, "the end of the client must be lost, too");
    scene.stage.set(Fault::None);
    assert!(is_reset(&mut server).await, "a stream with a hole cannot go on");
}

#[tokio::test]
async fn a_silent_connection_outlives_a_blackhole() {
    let scene = Scene::new().await;
    let (mut client, mut server) = scene.pair().await;
    scene.stage.set(Fault::Blackhole);
    assert!(is_silent(&mut server).await);
    scene.stage.set(Fault::None);
    server.write_all(b"still here").await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), b"still here");
}

#[tokio::test]
async fn a_connection_made_in_a_blackhole_hangs() {
    let scene = Scene::new().await;
    scene.stage.set(Fault::Blackhole);
    let (mut talker, mut listener) = (scene.client().await, scene.client().await);
    talker.write_all(b"hello?").await.unwrap();
    assert!(timeout(SOON, scene.server.accept()).await.is_err());
    assert!(is_silent(&mut talker).await);
    scene.stage.set(Fault::None);
    assert!(is_reset(&mut talker).await, "what it said is lost");
    let mut server = scene.accept().await;
    server.write_all(b"hello").await.unwrap();
    assert_eq!(read(&mut listener).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_dropped_stage_ends_its_connections_and_frees_its_port() {
    let Scene { stage, server } = Scene::new().await;
    let address = stage.address();
    let mut client = TcpStream::connect(address).await.unwrap();
    let _server = server.accept().await.unwrap();
    drop(stage);
    assert_eq!(read(&mut client).await.unwrap_or_default(), b"");
    eventually("connections are refused", || async {
        TcpStream::connect(address).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn whoever_connects_to_what_does_not_answer_hears_nothing() {
    let scene = Scene::new().await;
    let (mut old, mut old_server) = scene.pair().await;
    scene.stage.set(Fault::Unanswered);
    let address = scene.stage.address();
    eventually("SYNs are dropped", || async {
        timeout(SOON, TcpStream::connect(address)).await.is_err()
    })
    .await;
    old.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut old_server).await);
    assert!(timeout(SOON, TcpStream::connect(address)).await.is_err());
    scene.stage.set(Fault::None);
    assert!(is_reset(&mut old_server).await, "a stream with a hole cannot go on");
    let mut client = scene.client().await;
    client.write_all(b"again").await.unwrap();
    // Those that were tried before the fault was there may stand before it, and say nothing.
    while read(&mut scene.accept().await).await.unwrap_or_default() != b"again" {}
    assert!(scene.stage.accepted() >= 2);
}
