//! One list through the router against the same lists direct, whole or in pages: how long it takes, when its first byte is
//! there, and what the router needs for it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use prost::Message;

use crate::load::{Client, Route};
use crate::report::{ListRound, ListRow, ListTable};
use crate::usage;

/// Between looks at the resident memory of a router that answers a list.
const LOOK: Duration = Duration::from_millis(5);
/// Of client-go's pager.
const PAGE: usize = 500;

/// How a list is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    protobuf: bool,
    paged: bool,
}

impl Form {
    pub(crate) const WHOLE_JSON: Self = Self::new("JSON", false, false);
    pub(crate) const PAGED_JSON: Self = Self::new("JSON in pages of 500", false, true);
    pub(crate) const WHOLE_PROTOBUF: Self = Self::new("protobuf", true, false);
    pub(crate) const PAGED_PROTOBUF: Self = Self::new("protobuf in pages of 500", true, true);

    const fn new(name: &'static str, protobuf: bool, paged: bool) -> Self {
        Self { name, protobuf, paged }
    }

    fn next_page(self, body: &[u8]) -> anyhow::Result<Option<String>> {
        let token = if self.protobuf {
            protobuf_token(body)?
        } else {
            json_token(body)?
        };
        Ok(Some(token).filter(|token| !token.is_empty()))
    }
}

/// The ways to the objects.
#[derive(Clone, Copy)]
pub(crate) struct Ways<'a> {
    pub(crate) direct: &'a [Route],
    pub(crate) explicit: &'a [Route],
    pub(crate) merged: &'a Route,
    /// A plain proxy before the first member.
    pub(crate) forwarder: Option<&'a Route>,
    /// Process of the router.
    pub(crate) router: i32,
    /// Path of the collection.
    pub(crate) collection: &'a str,
}

/// What one list took.
#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    bytes: usize,
    elapsed: Duration,
    first_byte: Duration,
}

impl Listed {
    fn and(self, next: Self) -> Self {
        Self {
            bytes: self.bytes + next.bytes,
            elapsed: self.elapsed + next.elapsed,
            ..self
        }
    }
}

/// So many rounds of each way, taking turns.
pub(crate) async fn run(ways: Ways<'_>, form: Form, rounds: usize) -> anyhow::Result<ListTable> {
    let mut rows = vec![
        ListRow::new("direct, one by one"),
        ListRow::new("direct, slowest"),
        ListRow::new("direct, all at once"),
        ListRow::new("explicit, one by one"),
        ListRow::new("merged"),
    ];
    if ways.forwarder.is_some() {
        rows.push(ListRow::new("plain proxy, one by one"));
    }
    for _ in 0..rounds {
        let all = one_by_one(ways.direct, ways.collection, form).await?;
        let slowest = all.iter().copied().max_by_key(|listed| listed.elapsed);
        let slowest = slowest.context("no member")?;
        let direct = sum(&all)?;
        add(&mut rows[0], direct, 0.0, 0.0);
        add(&mut rows[1], slowest, 0.0, 0.0);
        add(&mut rows[2], at_once(ways, form).await?, 0.0, 0.0);
        for (row, routes) in [(3, ways.explicit), (4, std::slice::from_ref(ways.merged))] {
            let (listed, cpu, peak) = through_router(ways, routes, form).await?;
            ensure!(
                listed.bytes * 10 > direct.bytes * 9,
                "{} bytes of {} came through the router",
                listed.bytes,
                direct.bytes
            );
            add(&mut rows[row], listed, cpu, peak);
        }
        if let Some(forwarder) = ways.forwarder {
            // As often as there are members: its own is as large as each of the others.
            let routes = vec![forwarder.clone(); ways.direct.len()];
            let listed = sum(&one_by_one(&routes, ways.collection, form).await?)?;
            add(&mut rows[5], listed, 0.0, 0.0);
        }
    }
    Ok(ListTable { form: form.name, rows })
}

fn add(row: &mut ListRow, listed: Listed, cpu: f64, peak: f64) {
    row.add(ListRound {
        elapsed: listed.elapsed,
        first_byte: listed.first_byte,
        bytes: listed.bytes,
        cpu,
        peak,
    });
}

fn sum(all: &[Listed]) -> anyhow::Result<Listed> {
    all.iter().copied().reduce(Listed::and).context("no member")
}

async fn one_by_one(routes: &[Route], collection: &str, form: Form) -> anyhow::Result<Vec<Listed>> {
    let mut all = Vec::with_capacity(routes.len());
    for route in routes {
        all.push(list(route, collection, form).await?);
    }
    Ok(all)
}

async fn at_once(ways: Ways<'_>, form: Form) -> anyhow::Result<Listed> {
    let begun = Instant::now();
    let lists = ways.direct.iter().map(|route| list(route, ways.collection, form));
    let all = futures::future::try_join_all(lists).await?;
    let first = all.iter().map(|listed| listed.first_byte).min();
    Ok(Listed {
        bytes: all.iter().map(|listed| listed.bytes).sum(),
        elapsed: begun.elapsed(),
        first_byte: first.unwrap_or_default(),
    })
}

/// Lists one after the other; CPU seconds and the highest memory over idle of the router meanwhile, in MiB.
async fn through_router(ways: Ways<'_>, routes: &[Route], form: Form) -> anyhow::Result<(Listed, f64, f64)> {
    let idle = usage::resident_kib(ways.router)?;
    let cpu = usage::cpu_seconds(ways.router)?;
    let mut listing = std::pin::pin!(one_by_one(routes, ways.collection, form));
    let mut peak = idle;
    let all = loop {
        tokio::select! {
            listed = &mut listing => break listed?,
            () = tokio::time::sleep(LOOK) => peak = peak.max(usage::resident_kib(ways.router)?),
        }
    };
    let cpu = usage::cpu_seconds(ways.router)? - cpu;
    Ok((sum(&all)?, cpu, (peak - idle) / 1024.0))
}

/// A whole list, in as many pages as `form` has it.
async fn list(route: &Route, collection: &str, form: Form) -> anyhow::Result<Listed> {
    let client = Client::connected(route.clone(), 1).await?;
    if !form.paged {
        return one(&client, collection, |_| ()).await;
    }
    let mut all: Option<Listed> = None;
    let mut path = format!("{collection}?limit={PAGE}");
    loop {
        let mut body = Vec::new();
        let page = one(&client, &path, |chunk| body.extend_from_slice(chunk)).await?;
        all = Some(all.map_or(page, |before| before.and(page)));
        match form.next_page(&body)? {
            Some(token) => path = format!("{collection}?limit={PAGE}&continue={token}"),
            None => return all.context("no page"),
        }
    }
}

/// One answer.
async fn one(client: &Client, path: &str, mut take: impl FnMut(&[u8])) -> anyhow::Result<Listed> {
    let begun = Instant::now();
    let mut listed = Listed::default();
    client
        .read(path, |chunk| {
            if listed.bytes == 0 {
                listed.first_byte = begun.elapsed();
            }
            listed.bytes += chunk.len();
            take(chunk);
        })
        .await?;
    listed.elapsed = begun.elapsed();
    Ok(listed)
}

fn json_token(body: &[u8]) -> anyhow::Result<String> {
    const KEY: &[u8] = b"\"continue\":\"";
    let Some(found) = memchr::memmem::find(body, KEY) else {
        return Ok(String::new());
    };
    let token = body[found + KEY.len()..].split(|byte| *byte == b'"').next();
    Ok(String::from_utf8(token.unwrap_or_default().to_vec())?)
}

/// `runtime.Unknown`, as far as it is read.
#[derive(Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// Any list, as far as it is read.
#[derive(Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
}

#[derive(Message)]
struct ListMeta {
    #[prost(string, tag = "3")]
    continue_token: String,
}

fn protobuf_token(body: &[u8]) -> anyhow::Result<String> {
    let envelope = body.strip_prefix(b"k8s\0").context("no protobuf of Kubernetes")?;
    let list = List::decode(&*Unknown::decode(envelope)?.raw)?;
    Ok(list.metadata.unwrap_or_default().continue_token)
}
