//! The pages every program has, and the log level at run time.

use anyhow::Context as _;
use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{PROGRAMS, WEST, ground};

/// PUT of a text to an admin server: code and body.
async fn put(address: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let head = format!(
        "PUT {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    let code = head.split(' ').nth(1).context("no code")?.parse()?;
    Ok((code, body.to_owned()))
}

#[tokio::test]
async fn every_program_has_them() {
    let ground = ground().await.read().await;
    for program in PROGRAMS {
        let admin = ground.admin(program);
        assert_eq!(admin_get(&admin, "/livez").await.unwrap().trim(), "ok", "{program}");
        let ready = eventually("it is ready", || admin_get(&admin, "/readyz")).await;
        assert!(!ready.is_empty(), "{program}");
        let page: Value = serde_json::from_str(&admin_get(&admin, "/configz").await.unwrap()).unwrap();
        assert!(page.as_object().is_some_and(|page| page.len() > 1), "{program}: {page}");
        let missing = admin_get(&admin, "/no-such-page").await.unwrap_err();
        assert!(format!("{missing:#}").contains("404"), "{program}: {missing:#}");
    }
    let page = ground.until_router_is_back().await;
    let snapshot = page["snapshot"].to_string();
    for word in ["east", "west", "operators/alpha", "team-b"] {
        assert!(snapshot.contains(word), "{word}: {snapshot}");
    }
}

/// Requests that the router has counted as over.
async fn finished(admin: &str) -> u64 {
    let metrics = admin_get(admin, "/metrics").await.unwrap();
    let lines = metrics.lines();
    let counts = lines.filter(|line| line.starts_with("portolan_router_requests_finished_total{"));
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[tokio::test]
async fn the_log_level_changes_at_run_time() {
    let ground = ground().await.write().await;
    let admin = ground.admin("router");
    let before = admin_get(&admin, "/loglevel").await.unwrap();
    let access = |log: &str| {
        log.lines()
            .filter(|line| line.contains("\"target\":\"access\""))
            .count()
    };
    let door = ground.world.merged_door("alpha").await.unwrap();

    // Lines are written a moment after the answer.
    let last = std::cell::Cell::new(None);
    eventually("no more lines come", || async {
        let now = Some(access(&ground.router.log().unwrap()));
        last.replace(now) == now
    })
    .await;
    let finished = finished(&admin).await;
    let (code, told) = put(&admin, "/loglevel", "info,access=warn").await.unwrap();
    assert_eq!((code, told.trim()), (200, "info,access=warn"));
    assert_eq!(admin_get(&admin, "/loglevel").await.unwrap().trim(), "info,access=warn");
    let silent = access(&ground.router.log().unwrap());
    for _ in 0..3 {
        assert_eq!(door.get(WEST, &[]).await.unwrap().status, 200);
    }
    let (code, told) = put(&admin, "/loglevel", "no such=level=at all").await.unwrap();
    assert_eq!(code, 400, "{told}");
    assert_eq!(
        admin_get(&admin, "/loglevel").await.unwrap().trim(),
        "info,access=warn",
        "a bad one changes nothing"
    );
    // They are logged where they are counted, or not at all.
    eventually("the requests are over", || async {
        (self::finished(&admin).await >= finished + 3).then_some(())
    })
    .await;

    assert_eq!(put(&admin, "/loglevel", before.trim()).await.unwrap().0, 200);
    assert_eq!(access(&ground.router.log().unwrap()), silent);
    assert_eq!(door.get(WEST, &[]).await.unwrap().status, 200);
    eventually("requests are logged again", || async {
        access(&ground.router.log().unwrap()) > silent
    })
    .await;
}
