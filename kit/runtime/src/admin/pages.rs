//! The pages of the admin server: handlers and routes, no sockets. Caller: `AdminServer::serve`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::AdminPages;
use crate::metrics;

/// Makes the answer of `/configz`.
pub type Configz = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// A log filter is a line.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// A page that takes longer is stuck.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The routes for peers on this machine, and for all others.
pub(super) fn routers(pages: AdminPages) -> (Router, Router) {
    let own = Router::new()
        .route("/configz", get(configz))
        .route("/loglevel", get(log_level).put(set_log_level))
        .with_state(pages.clone())
        .merge(pages.extra.clone());
    // Whoever opens them to other machines may give this one a name.
    let own = if pages.remote {
        own
    } else {
        own.layer(middleware::from_fn(of_this_machine))
    };
    let all = own.merge(health(&pages));
    let public = if pages.remote {
        all.clone()
    } else {
        health(&pages).fallback(local_only)
    };
    (bounded(all), bounded(public))
}

fn health(pages: &AdminPages) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(pages.clone())
}

fn bounded(router: Router) -> Router {
    router
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(timed))
}

async fn timed(request: Request, next: Next) -> Response {
    match tokio::time::timeout(PAGE_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, "the page took too long\n").into_response(),
    }
}

/// A browser on this machine sends what a page from elsewhere asks of a name that its owner points here (DNS rebinding):
/// with that name as Host.
async fn of_this_machine(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .map(|host| host.to_str().unwrap_or("?"));
    let name = host.and_then(|host| host.parse::<Authority>().ok());
    let known = match (host, &name) {
        (None, _) => true,
        (_, Some(name)) => {
            let name = name.host().trim_matches(['[', ']']);
            name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
        }
        (Some(_), None) => false,
    };
    if known {
        return next.run(request).await;
    }
    let text = "ask for this page by an IP address or as localhost, or start the program with --admin-remote\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

async fn readyz(State(pages): State<AdminPages>) -> (StatusCode, String) {
    let status = if pages.readiness.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, pages.readiness.report())
}

async fn metrics_text(State(pages): State<AdminPages>) -> Response {
    match pages.registry.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot encode metrics: {error}\n"),
        )
            .into_response(),
    }
}

async fn configz(State(pages): State<AdminPages>) -> Json<serde_json::Value> {
    Json((pages.configz)())
}

async fn log_level(State(pages): State<AdminPages>) -> String {
    pages.telemetry.log_level() + "\n"
}

async fn set_log_level(State(pages): State<AdminPages>, filter: String) -> (StatusCode, String) {
    match pages.telemetry.set_log_level(&filter) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log filter changed");
            (StatusCode::OK, pages.telemetry.log_level() + "\n")
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

async fn local_only() -> (StatusCode, &'static str) {
    let text = "served to this machine only: use kubectl port-forward, or start the program with --admin-remote\n";
    (StatusCode::FORBIDDEN, text)
}
