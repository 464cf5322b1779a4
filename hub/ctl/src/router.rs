//! Asks the admin server of a router, and reads what it answers. Called by `explain`, `watch_state`,
//! `kinds` and `policies`.

use portolan_crds::GroupResource;
use serde_json::Value;

use crate::admin;
use crate::cli::RouterArgs;
use crate::dev::fleet::Fleet;

/// In messages.
const PROGRAM: &str = "the router";

/// A page of a router, as JSON.
pub(crate) async fn ask(router: &RouterArgs, path_and_query: &str) -> anyhow::Result<Value> {
    admin::ask(PROGRAM, &address(router)?, path_and_query).await
}

/// What a router makes of JSON that is sent to one of its pages.
pub(crate) async fn send(router: &RouterArgs, path: &str, question: &Value) -> anyhow::Result<Value> {
    admin::send(PROGRAM, &address(router)?, path, question).await
}

fn address(router: &RouterArgs) -> anyhow::Result<String> {
    Ok(match &router.dir {
        Some(dir) => Fleet::read(dir)?.router_admin,
        None => router.router_admin.clone(),
    })
}

/// A text of an answer; empty if there is none.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A list of texts of an answer, in one line.
pub(crate) fn words(values: &Value) -> String {
    let words = values.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join(", ")
}

/// The kind that an answer names by `group` and `resource`, as kubectl writes it.
pub(crate) fn kind_of(answer: &Value) -> String {
    GroupResource::new(text(&answer["group"]), text(&answer["resource"])).to_string()
}
