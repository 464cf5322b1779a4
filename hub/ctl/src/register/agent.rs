//! The agent's Deployment in a member.

use anyhow::Context as _;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::apply;

const MANIFEST: &str = include_str!("../../../../deploy/member/agent.yaml");
/// Where the image stands in it.
const IMAGE: &str = "/spec/template/spec/containers/0/image";

/// The Deployment with this image.
pub(super) fn deployment(image: &str) -> anyhow::Result<DynamicObject> {
    let mut objects = apply::parse("deploy/member/agent.yaml", MANIFEST)?;
    let mut agent = objects.pop().context("deploy/member/agent.yaml is empty")?;
    let place = agent
        .data
        .pointer_mut(IMAGE)
        .context("deploy/member/agent.yaml has no image")?;
    *place = Value::from(image);
    Ok(agent)
}

/// The image of the agent's Deployment.
pub(super) fn image(deployment: &DynamicObject) -> &str {
    deployment
        .data
        .pointer(IMAGE)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
