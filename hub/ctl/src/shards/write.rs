//! Writes edits of ShardingConfigs: tried by a dry run of all first, then one after the other; if one cannot be written those
//! before it are put back.

use anyhow::{Context as _, anyhow, bail};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::{ShardName, ShardingConfig};
use serde_json::Value;

/// How often an edit is tried at most while the hub writes the status of the same object, which it does after each change.
const TRIES: usize = 5;
/// Field manager of edits by command.
pub(super) const MANAGER: &str = "portolanctl-shards";

/// The object as it was read, and the spec that it is to have.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    pub(crate) name: ShardName,
    pub(crate) object: DynamicObject,
    pub(crate) spec: Value,
}

impl Edit {
    /// The object as it is to be. It has the resourceVersion that it was read with: nothing of anybody else is overwritten.
    pub(super) fn edited(&self) -> DynamicObject {
        let mut edited = self.object.clone();
        edited.data["spec"] = self.spec.clone();
        edited
    }
}

/// The object of a shard.
pub(crate) async fn find(hub: &Client, name: &ShardName) -> anyhow::Result<DynamicObject> {
    let found = api(hub, name).get_opt(name.name()).await;
    let found = found.with_context(|| format!("cannot read ShardingConfig {name}"))?;
    found.with_context(|| format!("there is no ShardingConfig {name}: see portolanctl get shards"))
}

/// The object of a shard, which nothing else makes.
pub(super) async fn read(hub: &Client, name: &ShardName) -> anyhow::Result<DynamicObject> {
    let object = find(hub, name).await?;
    let owners = object.owner_references().iter();
    let mut makers = owners.filter(|owner| owner.controller == Some(true));
    if let Some(maker) = makers.next() {
        bail!(
            "ShardingConfig {name} is made by {} {:?}, which would undo the edit: edit that one",
            maker.kind,
            maker.name
        );
    }
    if object.metadata.deletion_timestamp.is_some() {
        bail!("ShardingConfig {name} is being deleted");
    }
    Ok(object)
}

/// Writes them in order, all or none as far as it can be had.
pub(crate) async fn write(hub: &Client, edits: &[Edit]) -> anyhow::Result<()> {
    for edit in edits {
        let tried = write_spec(hub, edit, edit.object.clone(), Write::Tried).await;
        tried.with_context(|| {
            format!(
                "ShardingConfig {} would not be taken, and nothing was written",
                edit.name
            )
        })?;
    }
    let mut written = Vec::new();
    for edit in edits {
        match write_spec(hub, edit, edit.object.clone(), Write::Edited).await {
            Ok(object) => written.push((edit, object)),
            Err(error) => {
                let error = anyhow!(error).context(format!("cannot write ShardingConfig {}", edit.name));
                return Err(error.context(put_back(hub, written).await));
            }
        }
    }
    Ok(())
}

/// Puts back what was written, the last first. Returns what to tell.
async fn put_back(hub: &Client, written: Vec<(&Edit, DynamicObject)>) -> String {
    let mut told = "nothing was changed".to_owned();
    for (edit, object) in written.into_iter().rev() {
        let name = &edit.name;
        told = match write_spec(hub, edit, object, Write::PutBack).await {
            Ok(_) => format!("ShardingConfig {name} was written, and put back"),
            Err(error) => {
                format!(
                    "ShardingConfig {name} was written and could not be put back ({error}): see portolanctl shards rollback {name}"
                )
            }
        };
    }
    told
}

/// What is written of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    /// What it is to be, by a dry run.
    Tried,
    /// What it is to be.
    Edited,
    /// What it was.
    PutBack,
}

/// Writes over `object`, as it was read or written last. That the hub has written a status meanwhile hinders nothing; that somebody
/// has written another spec does.
async fn write_spec(
    hub: &Client,
    edit: &Edit,
    mut object: DynamicObject,
    write: Write,
) -> Result<DynamicObject, kube::Error> {
    let spec = match write {
        Write::Tried | Write::Edited => &edit.spec,
        Write::PutBack => &edit.object.data["spec"],
    };
    let mut tries = 1;
    loop {
        let mut edited = object.clone();
        edited.data["spec"] = spec.clone();
        let error = match replace(hub, &edit.name, &edited, write == Write::Tried).await {
            Err(kube::Error::Api(status)) if status.is_conflict() && tries < TRIES => kube::Error::Api(status),
            written => return written,
        };
        match api(hub, &edit.name).get(edit.name.name()).await {
            Ok(now) if is_as_it_was(&now, &object) => object = now,
            _ => return Err(error),
        }
        tries += 1;
    }
}

/// Whether all is the same that people write.
fn is_as_it_was(now: &DynamicObject, before: &DynamicObject) -> bool {
    let meant = |object: &DynamicObject| {
        let metadata = &object.metadata;
        let of_people = (metadata.labels.clone(), metadata.annotations.clone());
        (metadata.uid.clone(), metadata.deletion_timestamp.clone(), of_people)
    };
    now.data["spec"] == before.data["spec"] && meant(now) == meant(before)
}

async fn replace(
    hub: &Client,
    name: &ShardName,
    object: &DynamicObject,
    dry_run: bool,
) -> Result<DynamicObject, kube::Error> {
    let parameters = PostParams {
        dry_run,
        field_manager: Some(MANAGER.to_owned()),
    };
    api(hub, name).replace(name.name(), &parameters, object).await
}

pub(super) fn api(hub: &Client, name: &ShardName) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<ShardingConfig>(&());
    Api::namespaced_with(hub.clone(), name.namespace(), &kind)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::sync::Mutex;

    use super::*;

    /// What was asked for: object, whether tried only, and the namespaces that it would have.
    type Asked = Arc<Mutex<Vec<String>>>;

    /// A hub that refuses to replace the object of this name in the version that was read, if it is not only tried; meanwhile
    /// somebody has written it, and it `has` this.
    fn hub(refuses: &'static str, has: &'static str, asked: &Asked) -> Client {
        let asked = asked.clone();
        let api = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let asked = asked.clone();
            async move {
                let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
                if request.method() == http::Method::GET {
                    let now = json!({
                        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
                        "metadata": {"name": name, "namespace": "ops", "resourceVersion": "2"}, "spec": {"has": has},
                    });
                    let answer = kube::client::Body::from(now.to_string().into_bytes());
                    return anyhow::Ok(http::Response::new(answer));
                }
                let tried = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                let what = if tried { "tries" } else { "writes" };
                let version = object["metadata"]["resourceVersion"].clone();
                asked
                    .lock()
                    .await
                    .push(format!("{what} {name} of {version}: {}", object["spec"]["has"]));
                let (code, answer) = if name == refuses && version == "1" && !tried {
                    let status = json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed", "status": "Failure"});
                    (409, status)
                } else {
                    object["metadata"]["resourceVersion"] = json!("9");
                    (200, object)
                };
                let answer = kube::client::Body::from(answer.to_string().into_bytes());
                anyhow::Ok(http::Response::builder().status(code).body(answer)?)
            }
        });
        Client::new(api, "default")
    }

    fn edits() -> [Edit; 2] {
        ["a", "b"].map(|name| Edit {
            name: ShardName::new("ops", name).unwrap(),
            object: serde_json::from_value(json!({
                "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
                "metadata": {"name": name, "namespace": "ops", "resourceVersion": "1"}, "spec": {"has": "before"},
            }))
            .unwrap(),
            spec: json!({"has": "after"}),
        })
    }

    #[tokio::test]
    async fn all_are_tried_before_the_first_is_written() {
        let asked = Asked::default();
        write(&hub("", "", &asked), &edits()).await.unwrap();
        let lines = [
            r#"tries a of "1": "after""#,
            r#"tries b of "1": "after""#,
            r#"writes a of "1": "after""#,
            r#"writes b of "1": "after""#,
        ];
        assert_eq!(*asked.lock().await, lines);
    }

    #[tokio::test]
    async fn what_was_written_is_put_back_if_the_next_cannot_be() {
        let asked = Asked::default();
        let error = write(&hub("b", "theirs", &asked), &edits()).await.unwrap_err();
        let told = format!("{error:#}");
        assert!(
            told.starts_with("ShardingConfig ops/a was written, and put back: cannot write ShardingConfig ops/b"),
            "{told}"
        );
        let asked = asked.lock().await;
        assert_eq!(
            asked.last().unwrap(),
            r#"writes a of "9": "before""#,
            "in the version that was written"
        );
        let error = write(&hub("a", "theirs", &Asked::default()), &edits())
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("nothing was changed"), "{error:#}");
    }

    /// After each change the hub writes the status of the object, and so of each that is edited.
    #[tokio::test]
    async fn a_status_written_meanwhile_hinders_nothing() {
        let asked = Asked::default();
        write(&hub("b", "before", &asked), &edits()).await.unwrap();
        let asked = asked.lock().await;
        assert_eq!(asked.last().unwrap(), r#"writes b of "2": "after""#);
    }
}
