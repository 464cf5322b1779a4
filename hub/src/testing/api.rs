//! A scripted API server: a store of objects, and what goes wrong with it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::access::AccessReviewer;

/// Most bytes of a ConfigMap's data.
const CONFIG_MAP_MAX_BYTES: usize = 1024 * 1024;

/// What it keeps, by path.
pub(crate) type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// What goes wrong with requests, and with writes.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Of the write after so many others the answer is lost.
    pub(crate) lost_after: Option<usize>,
    /// None is carried out.
    pub(crate) refused: bool,
    /// Before the next write of the object at this path, another client puts this into its data.
    pub(crate) overtaken: Option<(String, Value)>,
    /// Nothing is answered in time.
    pub(crate) away: bool,
}

pub(crate) type SharedFaults = Arc<Mutex<Faults>>;

/// Objects by path; resourceVersions that count and are checked; SubjectAccessReviews that know one user.
pub(crate) fn scripted_api(objects: Objects) -> Client {
    faulty_api(objects, SharedFaults::default())
}

/// A [`scripted_api`] with faults.
pub(crate) fn faulty_api(objects: Objects, faults: SharedFaults) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (objects, faults) = (objects.clone(), faults.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            if faults.lock().away {
                std::future::pending::<()>().await;
            }
            let is_write = head.method != http::Method::GET;
            let mut faults = faults.lock();
            if let Some((path, data)) = faults
                .overtaken
                .take_if(|(path, _)| is_write && head.uri.path() == path.as_str())
                && let Some(object) = objects.lock().get_mut(&path)
            {
                object["data"] = data;
                object["metadata"]["resourceVersion"] = json!("1000");
            }
            let lost = is_write && faults.lost_after == Some(0);
            faults.lost_after = faults.lost_after.and_then(|left| left.checked_sub(is_write.into()));
            let failure = json!({"kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError"});
            let (code, answer) = if is_write && faults.refused {
                (500, failure.clone())
            } else {
                answer(&objects, &head, body)
            };
            let (code, answer) = if lost { (500, failure) } else { (code, answer) };
            let answer = http::Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    Client::new(service, "default")
}

/// A reviewer by an API server that knows who may shard which member (`None`: all of them), and the specs of what it asked.
pub(crate) fn sharding_rights(
    rights: &[(&'static str, Option<&'static str>)],
) -> (AccessReviewer, Arc<Mutex<Vec<Value>>>) {
    let asked = Arc::<Mutex<Vec<Value>>>::default();
    let (log, rights) = (asked.clone(), rights.to_vec());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (log, rights) = (log.clone(), rights.clone());
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let (user, attributes) = (&review["spec"]["user"], &review["spec"]["resourceAttributes"]);
            assert_eq!(
                (&attributes["verb"], &attributes["resource"]),
                (&json!("shard"), &json!("memberclusters"))
            );
            let allows = |(who, cluster): &(&str, Option<&str>)| {
                user == who && cluster.is_none_or(|cluster| attributes["name"] == cluster)
            };
            let allowed = rights.iter().any(allows);
            log.lock().push(review["spec"].clone());
            review["status"] = json!({"allowed": allowed});
            let answer = http::Response::builder().status(201);
            Ok::<_, Infallible>(answer.body(Body::from(review.to_string().into_bytes())).unwrap())
        }
    });
    (AccessReviewer::new(Client::new(service, "default")), asked)
}

fn is_too_large(config_map: &Value) -> bool {
    let data = config_map["data"].as_object().into_iter().flatten();
    let bytes: usize = data.filter_map(|(_, text)| text.as_str()).map(str::len).sum();
    bytes > CONFIG_MAP_MAX_BYTES
}

/// What a list of a folder has. Existence of one label is all that may be asked for.
fn listed(objects: &BTreeMap<String, Value>, folder: &str, head: &http::request::Parts) -> Vec<Value> {
    let query = head.uri.query().unwrap_or_default().replace("%2F", "/");
    let label = query.split('&').find_map(|word| word.strip_prefix("labelSelector="));
    let selected = |object: &Value| label.is_none_or(|label| !object["metadata"]["labels"][label].is_null());
    let of_folder = objects.iter().filter(|(name, _)| name.starts_with(folder));
    let chosen = of_folder.map(|(_, object)| object).filter(|object| selected(object));
    chosen.cloned().collect()
}

fn answer(objects: &Objects, head: &http::request::Parts, mut body: Value) -> (u16, Value) {
    let path = head.uri.path().to_owned();
    let refuse = |code: u16, reason: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason});
        (code, status)
    };
    if path.ends_with("/subjectaccessreviews") {
        body["status"] = json!({"allowed": body["spec"]["user"] == "ada", "reason": "scripted"});
        return (201, body);
    }
    if path.contains("/configmaps") && is_too_large(&body) {
        return refuse(422, "Invalid");
    }
    let mut objects = objects.lock();
    match head.method.as_str() {
        "GET" if path.ends_with("/configmaps") => {
            let items = listed(&objects, &path, head);
            let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": items});
            (200, list)
        }
        "GET" => objects
            .get(&path)
            .map_or_else(|| refuse(404, "NotFound"), |object| (200, object.clone())),
        "DELETE" => match objects.remove(&path) {
            Some(_) => (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            None => refuse(404, "NotFound"),
        },
        "POST" => {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            if objects.contains_key(&path) {
                return refuse(409, "AlreadyExists");
            }
            body["metadata"]["resourceVersion"] = json!("1");
            body["metadata"]["uid"] = json!(format!("uid-{}", rand::random::<u32>()));
            objects.insert(path, body.clone());
            (201, body)
        }
        "PUT" => {
            let Some(present) = objects.get(&path) else {
                return refuse(404, "NotFound");
            };
            let version = |object: &Value| {
                object["metadata"]["resourceVersion"]
                    .as_str()
                    .and_then(|v| v.parse::<u64>().ok())
            };
            if version(&body) != version(present) {
                return refuse(409, "Conflict");
            }
            body["metadata"]["resourceVersion"] = json!((version(&body).unwrap_or_default() + 1).to_string());
            objects.insert(path, body.clone());
            (200, body)
        }
        "PATCH" => apply(&mut objects, path, body).unwrap_or_else(|| refuse(409, "Conflict")),
        _ => refuse(405, "MethodNotAllowed"),
    }
}

/// A server-side apply, as far as one client writes objects: what is there gets the spec, and a generation more if that is
/// another. `None`: it is meant for an object that is not there.
fn apply(objects: &mut BTreeMap<String, Value>, path: String, applied: Value) -> Option<(u16, Value)> {
    let present = objects.get(&path).cloned();
    let uid = &applied["metadata"]["uid"];
    if !uid.is_null()
        && present
            .as_ref()
            .is_none_or(|present| present["metadata"]["uid"] != *uid)
    {
        return None;
    }
    let code = if present.is_some() { 200 } else { 201 };
    let mut object = present.unwrap_or_else(|| {
        let mut made = applied.clone();
        made["metadata"]["uid"] = json!(format!("uid-{}", rand::random::<u32>()));
        made["metadata"]["generation"] = json!(1);
        made["metadata"]["resourceVersion"] = json!("1");
        made
    });
    if object["spec"] != applied["spec"] {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        object["metadata"]["generation"] = json!(generation + 1);
        object["spec"] = applied["spec"].clone();
    }
    objects.insert(path, object.clone());
    Some((code, object))
}
