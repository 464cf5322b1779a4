//! What an endpoint that was ejected must show before it gets streams again: all that a connection needs, and an answer.
//!
//! No less than what requests will ask of it: one that only accepts connections would come back, and fail them, for ever.
//! Caller: `dialer`.

use std::pin::pin;

use bytes::Bytes;
use futures::FutureExt as _;
use h2::RecvStream;
use http::{Request, Response, StatusCode};

use super::connection::{Connection, UNARY};
use super::endpoint::{ConnectError, Dialed};

/// Every API server puts it on every answer; what stands in front of one does not.
pub(crate) const AUDIT_ID: &str = "audit-id";

/// Whether something answered that stands before an API server and does not reach it: each of those marks its answers.
pub(super) fn is_gateways(head: &Response<RecvStream>) -> bool {
    let gateways = [
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    gateways.contains(&head.status()) && !head.headers().contains_key(AUDIT_ID)
}

/// Asks for `/livez` as nobody: any answer of an API server will do, a refusal as well.
pub(super) async fn prove(dialed: Dialed) -> Result<(), ConnectError> {
    let address = dialed.authority.to_string();
    let failed = |reason: String| ConnectError::Http {
        address: address.clone(),
        reason,
    };
    let (connection, driver) = Connection::open(dialed, UNARY).await?;
    let mut asking = pin!(ask(&connection));
    // Whom it does not know an API server answers and leaves, both at once.
    let answer = tokio::select! {
        biased;
        answer = asking.as_mut() => Some(answer),
        _ = driver.run(&connection, std::future::pending(), || false, |_| {}) => asking.now_or_never(),
    };
    match answer {
        Some(Ok(head)) if is_gateways(&head) => Err(failed(format!("it answered {}", head.status()))),
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(failed(error.to_string())),
        None => Err(failed("the connection ended before it answered".to_owned())),
    }
}

async fn ask(connection: &Connection) -> Result<Response<RecvStream>, h2::Error> {
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(connection.authority.clone())
        .path_and_query("/livez");
    let mut request = Request::new(());
    *request.uri_mut() = uri.build().expect("an authority and a path are a URI");
    *request.version_mut() = http::Version::HTTP_2;
    let mut send = connection.sender().ready().await?;
    let (answer, _) = send.send_request(request, true)?;
    drop::<h2::client::SendRequest<Bytes>>(send);
    answer.await
}
