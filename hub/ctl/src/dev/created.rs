//! What `up` created and did not find: the only things `down` deletes.

use anyhow::Context as _;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use crate::apply;
use crate::dev::fleet::{Created, Fleet};

impl Fleet {
    /// Applies objects, and records first those that do not exist yet.
    pub(crate) async fn apply(
        &mut self,
        cluster: Option<&str>,
        client: &Client,
        objects: &[DynamicObject],
    ) -> anyhow::Result<()> {
        for object in objects {
            self.record(cluster, client, object).await?;
            apply::apply_one(client, object).await?;
        }
        Ok(())
    }

    /// Records an object that is about to be created, unless it exists.
    pub(crate) async fn record(
        &mut self,
        cluster: Option<&str>,
        client: &Client,
        object: &DynamicObject,
    ) -> anyhow::Result<()> {
        if apply::exists(client, object)
            .await
            .with_context(|| format!("cannot look for {}", apply::describe(object)))?
        {
            return Ok(());
        }
        let mut reference = DynamicObject {
            types: object.types.clone(),
            metadata: kube::api::ObjectMeta::default(),
            data: serde_json::Value::Null,
        };
        reference.metadata.name = Some(object.name_any());
        reference.metadata.namespace = object.namespace();
        self.created.push(Created {
            cluster: cluster.map(ToOwned::to_owned),
            object: reference,
        });
        self.write()
    }
}
