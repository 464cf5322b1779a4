//! What the members hold of the shard, read past stages and routers: the only judge of what a client's cache holds.

use portolan_tests::watch::{Held, held};

use crate::clients::Report;
use crate::ground::{Ground, KINDS};

/// Of each kind, what the shard has of it.
pub(crate) struct Truth(Vec<(&'static str, Held)>);

impl Ground {
    /// Each object of the shard, in the member that owns its namespace.
    pub(crate) async fn truth(&self) -> anyhow::Result<Truth> {
        let owns = self.share.owned().await;
        let mut all = Vec::new();
        for (root, plural) in KINDS {
            let mut of_shard = Held::new();
            for (member, namespaces) in &owns {
                let list = self.lines.get(member, &format!("{root}/{plural}")).await?;
                for (key, version) in held(&list)? {
                    self.ledger.found(&version.0, member);
                    if key
                        .split_once('/')
                        .is_some_and(|(namespace, _)| namespaces.contains(namespace))
                    {
                        of_shard.insert(key, version);
                    }
                }
            }
            all.push((plural, of_shard));
        }
        Ok(Truth(all))
    }
}

impl Truth {
    /// What each client lacks, and what it has that is not so.
    pub(crate) fn differences(&self, reports: &[Report]) -> Vec<String> {
        reports.iter().filter_map(|report| self.difference(report)).collect()
    }

    fn difference(&self, report: &Report) -> Option<String> {
        let (_, all) = self.0.iter().find(|(plural, _)| *plural == report.resource)?;
        let within = |key: &String| {
            let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
            report.namespace.is_empty() || report.namespace == namespace
        };
        let wanted: Held = all
            .iter()
            .filter(|(key, _)| within(key))
            .map(|(key, version)| (key.clone(), version.clone()))
            .collect();
        let held = report.held();
        let differs = |one: &Held, other: &Held| -> Vec<String> {
            let odd = one.iter().filter(|(key, version)| other.get(*key) != Some(*version));
            odd.map(|(key, (uid, version))| format!("{key} {uid}@{version}"))
                .collect()
        };
        let (lacks, odd) = (differs(&wanted, &held), differs(&held, &wanted));
        let same = lacks.is_empty() && odd.is_empty();
        (!same).then(|| {
            format!(
                "{} lacks {lacks:?}, has {odd:?}; said: {:?}",
                report.name, report.expired
            )
        })
    }
}
