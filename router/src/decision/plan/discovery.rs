//! Discovery and OpenAPI: which members' documents make the answer. What is read is the same for all who are authenticated,
//! so no member need let the caller in; who asks as somebody else must still be allowed to.

use super::merged::Merged;
use super::{Plan, Refusal, Rewrite, Rule};
use crate::value::document::{Document, Wanted};

impl Merged<'_> {
    /// What is no resource: united documents, and the primary's word for everything else.
    pub(super) fn without_resource(&self) -> Result<(Rule, Plan), Refusal> {
        let request = self.route.request;
        let primary = &self.shard.primary_cluster;
        let Some(document) = Document::of(&request.method, &request.path) else {
            let forward = self.route.to(primary, Rewrite::default())?;
            return Ok((Rule::NonResource, forward.into()));
        };
        let checks = match &request.impersonate {
            None => Vec::new(),
            Some(_) => self.route.to(primary, Rewrite::default())?.access().cloned().collect(),
        };
        let withdrawn = &self.route.snapshot.withdrawn;
        let members = self.shard.members.iter().map(|member| &member.cluster);
        let members = members.filter(|cluster| !withdrawn.contains(*cluster));
        let wanted = Wanted {
            document,
            members: Wanted::sources(primary, members, &self.view.key.home_cluster),
            checks,
        };
        Ok((Rule::Discovery, Plan::Discovery(Box::new(wanted))))
    }
}
