//! What a router says first: its Hello, behind pages of what it holds where that is too much for one message.

use std::time::Duration;

use futures::Stream;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind as Said;
use tonic::Status;

use crate::stream::first;

/// All of it must come within this time.
const INTRODUCED_WITHIN: Duration = Duration::from_mins(1);
/// Most resources that a router may say it holds: of hundreds of members as large as any. They take some 150 bytes each.
const MAX_KNOWN: usize = 2_000_000;
/// Most bytes of their names and versions.
const MAX_KNOWN_BYTES: usize = 256 * 1024 * 1024;

/// The Hello, with all that the router holds.
pub(super) async fn introduction(
    inbound: &mut (impl Stream<Item = Result<v1::RouterMessage, Status>> + Unpin),
) -> Result<v1::RouterHello, Status> {
    let late = || Status::deadline_exceeded("not all of a hello came in time");
    let whole = tokio::time::timeout(INTRODUCED_WITHIN, collected(inbound));
    whole.await.map_err(|_| late())?
}

async fn collected(
    inbound: &mut (impl Stream<Item = Result<v1::RouterMessage, Status>> + Unpin),
) -> Result<v1::RouterHello, Status> {
    let mut known = Vec::new();
    let mut bytes = 0;
    loop {
        let (more, hello) = match first(inbound).await?.kind {
            Some(Said::Known(page)) => (page.known, None),
            Some(Said::Hello(mut hello)) => (std::mem::take(&mut hello.known), Some(hello)),
            _ => return Err(Status::invalid_argument("the first message must be a hello")),
        };
        bytes += more.iter().map(bytes_of).sum::<usize>();
        known.extend(more);
        if known.len() > MAX_KNOWN || bytes > MAX_KNOWN_BYTES {
            return Err(Status::resource_exhausted(format!(
                "known: this router says that it holds more than {MAX_KNOWN} resources, or {MAX_KNOWN_BYTES} bytes of names: give \
                 routers subscriptions of some shards each, by portolanctl router-token --shard"
            )));
        }
        if let Some(hello) = hello {
            return Ok(v1::RouterHello { known, ..hello });
        }
    }
}

fn bytes_of(known: &v1::KnownResource) -> usize {
    let name = known.r#ref.as_ref().map_or(0, |reference| reference.name.len());
    name + known.version.len()
}
