//! What a router says first on a stream: its Hello, behind pages of what it holds where that is too much for one message. Pure.
//! Caller: `session`.

use portolan_wire::protocol::HELLO_KNOWN_MAX_BYTES;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind;
use prost::Message;

/// Of an entry in a list, besides the entry: its key, and its length.
const FRAME_BYTES: usize = 8;

/// The messages of `hello`, the Hello last. As hubs of before know it, if they can take it.
pub(super) fn introduction(mut hello: v1::RouterHello) -> impl Iterator<Item = v1::RouterMessage> {
    let known = std::mem::take(&mut hello.known);
    let mut pages: Vec<_> = pages(known).collect();
    if pages.len() == 1 {
        hello.known = pages.pop().unwrap_or_default();
    }
    let pages = pages.into_iter().map(|known| Kind::Known(v1::KnownPage { known }));
    let all = pages.chain([Kind::Hello(hello)]);
    all.map(|kind| v1::RouterMessage { kind: Some(kind) })
}

/// `known` in its order, in parts of at most [`HELLO_KNOWN_MAX_BYTES`].
fn pages(known: Vec<v1::KnownResource>) -> impl Iterator<Item = Vec<v1::KnownResource>> {
    let mut known = known.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut page = vec![known.next()?];
        let bytes = |one: &v1::KnownResource| one.encoded_len() + FRAME_BYTES;
        let mut room = HELLO_KNOWN_MAX_BYTES.saturating_sub(bytes(&page[0]));
        while let Some(next) = known.next_if(|next| bytes(next) <= room) {
            room -= bytes(&next);
            page.push(next);
        }
        Some(page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(count: u32) -> Vec<v1::KnownResource> {
        let one = |number: u32| v1::KnownResource {
            r#ref: Some(v1::ResourceRef {
                kind: v1::ResourceKind::CallerView.into(),
                name: format!("east/{number:036}"),
            }),
            version: format!("{number:064}"),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn a_hello_is_never_too_large_and_nothing_is_left_out() {
        for (count, messages) in [(0, 1), (1, 1), (100_000, 1), (150_000, 3), (300_000, 4)] {
            let hello = v1::RouterHello {
                version: "v".to_owned(),
                known: known(count),
                ..v1::RouterHello::default()
            };
            let said: Vec<_> = introduction(hello).collect();
            assert_eq!(said.len(), messages, "{count}");
            assert!(said.iter().all(|message| message.encoded_len() < 16 * 1024 * 1024));
            let mut told = Vec::new();
            for (place, message) in said.into_iter().enumerate() {
                match message.kind.unwrap() {
                    Kind::Known(page) => told.extend(page.known),
                    Kind::Hello(hello) => {
                        assert_eq!((place + 1, hello.version.as_str()), (messages, "v"));
                        told.extend(hello.known);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(told, known(count));
        }
    }
}
