//! Which member clusters a spec lays claim to: what its author needs the verb `shard` on.

use super::ShardingConfigSpec;

/// One field by which a spec lays claim to member clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Path of the field, such as `spec.clusters[1].name`.
    pub field: String,
    /// The member that it names; `None`: whichever there are, now or later.
    pub cluster: Option<&'a str>,
}

impl ShardingConfigSpec {
    /// What the author of the spec must be allowed to shard: each member that it names, and all of them for a selector, or
    /// where it does not say in which its callers run.
    ///
    /// ```
    /// use portolan_crds::ShardingConfigSpec;
    ///
    /// let spec: ShardingConfigSpec = serde_yaml_ng::from_str(
    ///     "
    ///     selector: {matchLabels: {app: greeter}}
    ///     callerClusters: [east]
    ///     clusters: [{name: west}, {selector: {matchLabels: {region: eu}}}]
    ///     ",
    /// )?;
    /// let claims: Vec<_> = spec.claims().into_iter().map(|claim| claim.cluster).collect();
    /// assert_eq!(claims, [Some("west"), Some("east"), None]);
    /// # Ok::<(), serde_yaml_ng::Error>(())
    /// ```
    pub fn claims(&self) -> Vec<Claim<'_>> {
        let named = self.named_clusters().into_iter();
        let named = named.map(|(field, name)| (field, Some(name)));
        let entries = self.clusters.iter().enumerate();
        let selected = entries.filter(|(_, entry)| entry.selector.is_some());
        let selected = selected.map(|(index, _)| (format!("spec.clusters[{index}].selector"), None));
        // An original manifest: callers are Pods of every member, and own what is in theirs.
        let anywhere = self.caller_clusters.is_empty();
        let anywhere = anywhere.then(|| ("spec.callerClusters, which is absent".to_owned(), None));
        let claims = named.chain(selected).chain(anywhere);
        claims.map(|(field, cluster)| Claim { field, cluster }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed<const N: usize>(yaml: &str) -> [(String, Option<String>); N] {
        let spec: ShardingConfigSpec = serde_yaml_ng::from_str(yaml).unwrap();
        let claims = spec.claims().into_iter();
        let claims = claims.map(|claim| (claim.field, claim.cluster.map(str::to_owned)));
        claims.collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn a_spec_that_names_no_member_claims_all() {
        let [(field, cluster)] = claimed("selector: {}");
        assert!(field.contains("callerClusters") && cluster.is_none(), "{field}");
    }

    #[test]
    fn callers_and_primary_are_claims_too() {
        let claims = claimed("{selector: {}, callerClusters: [east], primaryCluster: west}");
        let claim = |field: &str, cluster: &str| (field.to_owned(), Some(cluster.to_owned()));
        assert_eq!(
            claims,
            [
                claim("spec.callerClusters[0]", "east"),
                claim("spec.primaryCluster", "west")
            ]
        );
    }
}
