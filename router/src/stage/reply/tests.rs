//! Every fault as clients read it, in both formats.

use http::header::ACCEPT;
use portolan_merge::wire;
use prost::Message;

use super::protobuf::{Status, Unknown};
use super::*;
use crate::value::fault::MemberFailure;
use crate::value::object::message_of;
use crate::value::object::protobuf::MAGIC;

fn unavailable(sent: bool) -> Fault {
    Fault::Unavailable {
        message: "member cluster west is away".into(),
        cluster: Some("west".into()),
        sent,
    }
}

/// A fault with its code, reason, `Retry-After` and word in metrics.
type Row = (Fault, u16, &'static str, Option<i32>, &'static str);

#[expect(clippy::too_many_lines, reason = "a table")]
fn all_faults() -> Vec<Row> {
    let busy = Fault::TooManyRequests {
        message: "m".into(),
        retry_after_seconds: 7,
        cluster: None,
    };
    let not_yet = Fault::Unavailable {
        message: "m".into(),
        cluster: None,
        sent: false,
    };
    let late = Fault::Timeout {
        message: "m".into(),
        cluster: "west".into(),
        sent: true,
    };
    vec![
        (Fault::BadRequest("m".into()), 400, "BadRequest", None, "bad-request"),
        (
            Fault::Unauthenticated("m".into()),
            401,
            "Unauthorized",
            None,
            "unauthenticated",
        ),
        (Fault::Forbidden("m".into()), 403, "Forbidden", None, "forbidden"),
        (Fault::NotFound("m".into()), 404, "NotFound", None, "not-found"),
        (
            Fault::MethodNotAllowed("m".into()),
            405,
            "MethodNotAllowed",
            None,
            "method-not-allowed",
        ),
        (Fault::Expired("m".into()), 410, "Expired", None, "expired"),
        (
            Fault::TooLarge { limit: 3 },
            413,
            "RequestEntityTooLarge",
            None,
            "too-large",
        ),
        (
            Fault::HeadTooLarge("m".into()),
            431,
            "RequestHeaderFieldsTooLarge",
            None,
            "too-large",
        ),
        (
            Fault::UnsupportedMediaType("m".into()),
            415,
            "UnsupportedMediaType",
            None,
            "unsupported-media-type",
        ),
        (busy, 429, "TooManyRequests", Some(7), "too-many-requests"),
        (Fault::Internal("m".into()), 500, "InternalError", None, "internal"),
        (unavailable(false), 503, "ServiceUnavailable", None, "unavailable"),
        (not_yet, 503, "ServiceUnavailable", Some(1), "unavailable"),
        (unavailable(true), 503, "ServiceUnavailable", None, "unavailable"),
        (
            Fault::HubAway("m".into()),
            503,
            "ServiceUnavailable",
            None,
            "unavailable",
        ),
        (late, 504, "Timeout", None, "timeout"),
    ]
}

#[test]
fn faults_are_statuses() {
    for (fault, code, reason, retry, label) in all_faults() {
        let response = reply(&fault, Media::Json);
        assert_eq!(response.status().as_u16(), code, "{fault:?}");
        assert_eq!(fault.reason(), label);
        let header = response
            .headers()
            .get(RETRY_AFTER)
            .map(|value| value.to_str().unwrap().parse::<i32>().unwrap());
        assert_eq!(header, retry, "{fault:?}");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((&body["kind"], &body["apiVersion"]), (&"Status".into(), &"v1".into()));
        assert_eq!(
            (&body["code"], &body["reason"], &body["status"]),
            (&code.into(), &reason.into(), &"Failure".into())
        );
        assert_eq!(body["details"]["retryAfterSeconds"].as_i64(), retry.map(i64::from));
        assert_eq!(body["message"], fault.to_string());
    }
    let body: serde_json::Value = serde_json::from_slice(reply(&unavailable(true), Media::Json).body()).unwrap();
    assert_eq!(body["details"]["causes"][0]["message"], "west");
}

#[test]
fn protobuf_says_the_same() {
    let response = reply(&unavailable(false), Media::Protobuf);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/vnd.kubernetes.protobuf");
    let envelope = Unknown::decode(response.body().strip_prefix(MAGIC).unwrap()).unwrap();
    assert_eq!(
        (
            envelope.type_meta.kind.as_str(),
            envelope.type_meta.api_version.as_str()
        ),
        ("Status", "v1")
    );
    let status = Status::decode(envelope.raw.as_slice()).unwrap();
    assert_eq!(
        (status.code, status.reason.as_deref()),
        (Some(503), Some("ServiceUnavailable"))
    );
    let details = status.details.unwrap();
    assert_eq!(
        (details.retry_after_seconds, details.causes[0].message.as_deref()),
        (None, Some("west"))
    );
}

#[test]
fn events_are_framed() {
    let fault = Fault::Expired("gone".into());
    let json = error_event(&fault, Media::Json);
    assert!(json.ends_with(b"\n"));
    let event: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    let frame = error_event(&fault, Media::Protobuf);
    let (length, event) = frame.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, event.len());
    let inside = |number| wire::last(event, number).unwrap().unwrap();
    assert_eq!(inside(1), b"ERROR");
    assert!(wire::last(inside(2), 1).unwrap().unwrap().starts_with(MAGIC));
}

#[test]
fn discovery_by_client_go_is_known() {
    let accepts =
        |accept: &'static str| reads_no_status(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]));
    assert!(accepts(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    ));
    assert!(!accepts("application/json"));
    assert!(!reads_no_status(&HeaderMap::new()));
}

#[test]
fn members_that_fail_are_in_the_causes() {
    let failure = |cluster: &str, status: StatusCode| MemberFailure {
        cluster: cluster.to_owned(),
        status,
        message: "no".to_owned(),
    };
    let forbidden = StatusCode::FORBIDDEN;
    let one = Fault::Members(vec![failure("east", forbidden), failure("west", forbidden)]);
    let status = one.status();
    assert_eq!((status.code, status.reason.as_deref()), (Some(403), Some("Forbidden")));
    let causes = status.details.unwrap().causes.unwrap();
    let causes: Vec<_> = causes.iter().filter_map(|cause| cause.message.as_deref()).collect();
    assert_eq!(causes, ["east: no", "west: no"]);
    assert_eq!(one.retry_after_seconds(), None, "it was sent");
    let other = Fault::Members(vec![failure("east", forbidden), failure("west", StatusCode::CONFLICT)]);
    assert_eq!(other.status_code(), StatusCode::INTERNAL_SERVER_ERROR);
    for media in [Media::Json, Media::Protobuf] {
        let answer = reply(&one, media);
        assert_eq!(message_of(answer.body()), Some(one.to_string()), "{media:?}");
    }
}
