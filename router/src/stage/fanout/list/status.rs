//! Bodies that are read whole because they are small: refusals of members, the answers that pin their versions, and pages with which a
//! member is over.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use portolan_merge::list::TypeMeta;
use portolan_merge::wire;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::resource::upstream::Body;
use crate::value::media::Media;

/// Of a refusal; API servers' are some hundred bytes.
const MAX_STATUS: usize = 64 << 10;
/// Of one object's metadata; etcd takes 1.5 MiB.
const MAX_PIN: usize = 8 << 20;
/// For what has no deadline of its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// Fields of a list in protobuf.
const LIST_METADATA: u64 = 1;
const LIST_ITEMS: u64 = 2;
/// Fields of a Status and its parts in protobuf.
const STATUS_METADATA: u64 = 1;
const STATUS_DETAILS: u64 = 5;
const LIST_META_CONTINUE: u64 = 3;
const DETAILS_CAUSES: u64 = 4;
const CAUSE_REASON: u64 = 1;

/// What is read of a member's Status.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) continue_: Option<String>,
    /// Asked for a version that the member does not have yet.
    pub(super) too_large: bool,
}

/// The version of a member, from a list of at most one object's metadata.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) version: String,
    /// Nothing matches there.
    pub(super) empty: bool,
}

/// A refusal with its body at hand. What cannot be read to its end is empty: the code still tells.
pub(super) async fn whole(response: Response<Body>, deadline: Option<Instant>) -> (Response<Body>, Bytes) {
    let (head, body) = response.into_parts();
    let bytes = gather(body, MAX_STATUS, deadline).await.unwrap_or_default();
    (Response::from_parts(head, Body::from(bytes.clone())), bytes)
}

/// Reads a pin. The error says what is wrong with it.
pub(super) async fn pinned(response: Response<Body>, deadline: Option<Instant>) -> Result<Pinned, String> {
    let bytes = gather(response.into_body(), MAX_PIN, deadline).await?;
    let list: PinList =
        serde_json::from_slice(&bytes).map_err(|error| format!("its list of metadata cannot be read: {error}"))?;
    Ok(Pinned {
        empty: list.items.is_none_or(|items| items.is_empty())
            && list.metadata.continue_.is_none_or(|text| text.is_empty()),
        version: list.metadata.resource_version.unwrap_or_default(),
    })
}

/// What is known of a member's page that is at hand.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The type that it says it is.
    pub(super) of: TypeMeta,
    /// How many objects it has.
    pub(super) objects: u64,
    /// More of the member follows.
    pub(super) more: bool,
}

impl Page {
    /// `None`: it is no list, or is broken.
    pub(super) fn read(media: Media, page: &[u8]) -> Option<Self> {
        let (of, objects, continue_) = match media {
            Media::Json => {
                let list: PinList = serde_json::from_slice(page).ok()?;
                let of = TypeMeta {
                    kind: list.kind,
                    api_version: list.api_version,
                };
                (of, list.items.map_or(0, |items| items.len()), list.metadata.continue_)
            }
            Media::Protobuf => {
                let envelope = wire::open(page)?;
                let of = TypeMeta {
                    kind: envelope.kind.to_owned(),
                    api_version: envelope.api_version.to_owned(),
                };
                let (mut count, mut continue_) = (0, None);
                for field in wire::fields(envelope.object) {
                    let field = field?;
                    match (field.number, field.content) {
                        (LIST_METADATA, Some(meta)) => {
                            continue_ = Some(wire::text(meta, LIST_META_CONTINUE)?.to_owned());
                        }
                        (LIST_ITEMS, _) => count += 1,
                        _ => {}
                    }
                }
                (of, count, continue_)
            }
        };
        Some(Self {
            of,
            objects: u64::try_from(objects).unwrap_or(u64::MAX),
            more: continue_.is_some_and(|text| !text.is_empty()),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PinList {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    metadata: PinMeta,
    /// `null` is how API servers write an empty list of metadata; what has none at all is no list.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PinMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_: Option<String>,
}

impl Told {
    pub(super) fn read(body: &[u8]) -> Self {
        if let Some(opened) = wire::open(body) {
            return Self::read_protobuf(opened.object).unwrap_or_default();
        }
        let Ok(status) = serde_json::from_slice::<v1::Status>(body) else {
            return Self::default();
        };
        let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
        Self {
            continue_: status.metadata.continue_.filter(|text| !text.is_empty()),
            too_large: causes.iter().any(|cause| cause.reason.as_deref() == Some(TOO_LARGE)),
        }
    }

    fn read_protobuf(status: &[u8]) -> Option<Self> {
        let mut told = Self::default();
        for field in wire::fields(status) {
            let field = field?;
            match (field.number, field.content) {
                (STATUS_METADATA, Some(meta)) => {
                    let text = wire::text(meta, LIST_META_CONTINUE)?;
                    told.continue_ = (!text.is_empty()).then(|| text.to_owned());
                }
                (STATUS_DETAILS, Some(details)) => {
                    for cause in wire::fields(details) {
                        let cause = cause?;
                        if let (DETAILS_CAUSES, Some(cause)) = (cause.number, cause.content) {
                            told.too_large |= wire::text(cause, CAUSE_REASON)? == TOO_LARGE;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(told)
    }
}

const TOO_LARGE: &str = "ResourceVersionTooLarge";

/// A body of at most so many bytes; the error says what is wrong with it.
async fn gather(mut body: Body, limit: usize, deadline: Option<Instant>) -> Result<Bytes, String> {
    let read = async {
        let mut bytes = BytesMut::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            let frame = frame.map_err(|error| error.to_string())?;
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > limit {
                return Err(format!("its answer is larger than {limit} bytes"));
            }
        }
        Ok(bytes.freeze())
    };
    let until = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
    timeout_at(until, read)
        .await
        .unwrap_or_else(|_| Err("it did not finish its answer in time".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_in_either_format() {
        let json = br#"{"kind":"Status","apiVersion":"v1","metadata":{"continue":"m"},"status":"Failure","message":"x","reason":"Expired","code":410}"#;
        let told = Told::read(json);
        assert_eq!((told.continue_.as_deref(), told.too_large), (Some("m"), false));
        let json = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#;
        assert!(Told::read(json).too_large);
        let (mut meta, mut cause, mut details, mut status) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        wire::put(&mut meta, LIST_META_CONTINUE, b"m");
        wire::put(&mut cause, CAUSE_REASON, TOO_LARGE.as_bytes());
        wire::put(&mut details, DETAILS_CAUSES, &cause);
        wire::put(&mut status, STATUS_METADATA, &meta);
        wire::put(&mut status, STATUS_DETAILS, &details);
        let told = Told::read_protobuf(&status).unwrap();
        assert_eq!((told.continue_.as_deref(), told.too_large), (Some("m"), true));
        assert_eq!(Told::read(b"<html>"), Told::default());
    }

    #[test]
    fn a_page_tells_its_type_and_size_and_whether_more_follows_in_either_format() {
        let list = |continue_: &str, items: usize| {
            let (mut meta, mut list) = (Vec::new(), Vec::new());
            wire::put(&mut meta, LIST_META_CONTINUE, continue_.as_bytes());
            wire::put(&mut list, LIST_METADATA, &meta);
            (0..items).for_each(|_| wire::put(&mut list, LIST_ITEMS, b""));
            let mut kind = Vec::new();
            wire::put(&mut kind, wire::TYPE_META_VERSION, b"v1");
            wire::put(&mut kind, wire::TYPE_META_KIND, b"PodList");
            let mut body = b"k8s\0".to_vec();
            wire::put(&mut body, wire::UNKNOWN_TYPE_META, &kind);
            wire::put(&mut body, wire::UNKNOWN_RAW, &list);
            let json = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": continue_}, "items": vec![(); items]});
            [(Media::Protobuf, body), (Media::Json, json.to_string().into_bytes())]
        };
        for (continue_, objects, more) in [("", 2, false), ("", 0, false), ("m", 2, true)] {
            for (media, page) in list(continue_, objects) {
                let expected = Page {
                    of: TypeMeta {
                        kind: "PodList".to_owned(),
                        api_version: "v1".to_owned(),
                    },
                    objects: objects as u64,
                    more,
                };
                assert_eq!(Page::read(media, &page), Some(expected), "{media:?} {continue_}");
            }
        }
        assert_eq!(Page::read(Media::Json, br#"{"metadata":{}}"#), None, "no list");
        assert_eq!(Page::read(Media::Protobuf, b"{}"), None);
    }

    #[tokio::test]
    async fn a_pin_tells_version_and_emptiness() {
        let read = async |body: &'static str| pinned(Response::new(Body::Whole(body.into())), None).await;
        let pin = |version: &str, empty| Pinned {
            version: version.to_owned(),
            empty,
        };
        assert_eq!(
            read(r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#).await,
            Ok(pin("7", true))
        );
        assert_eq!(
            read(r#"{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7"},"items":null}"#).await,
            Ok(pin("7", true))
        );
        assert_eq!(
            read(r#"{"metadata":{"resourceVersion":"7","continue":"x"},"items":[]}"#).await,
            Ok(pin("7", false))
        );
        assert_eq!(
            read(r#"{"metadata":{"resourceVersion":"7","continue":""},"items":[{"a":1}]}"#).await,
            Ok(pin("7", false))
        );
        assert!(read("<html>").await.is_err());
        assert!(read(r#"{"metadata":{}}"#).await.is_err());
    }
}
