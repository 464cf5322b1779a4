//! Holds what clients were told against the [`Ledger`]: every DELETED must have a reason of its own, from before it was told.

use std::collections::{BTreeMap, HashMap};

use crate::clients::Report;
use crate::ledger::Ledger;

/// What was heard so far.
#[derive(Default)]
pub(crate) struct Judge {
    /// By client and uid, how many reasons are used up.
    told: HashMap<(String, String), usize>,
    pub(crate) deletes: u64,
    pub(crate) false_deletes: Vec<String>,
    /// DELETED of what a client did not hold any more.
    pub(crate) repeats: BTreeMap<String, (u64, Vec<String>)>,
    /// Lists and lists by stream, of each client.
    pub(crate) lists: BTreeMap<String, u64>,
    /// 410s of each client by message.
    pub(crate) expired: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Judge {
    pub(crate) fn hear(&mut self, reports: &[Report], ledger: &Ledger) {
        for report in reports {
            self.lists.insert(report.name.clone(), report.lists);
            self.expired.insert(report.name.clone(), report.expired.clone());
            if report.repeats > 0 {
                self.repeats
                    .insert(report.name.clone(), (report.repeats, report.trace.clone()));
            }
            for gone in &report.gone {
                self.deletes += 1;
                let namespace = gone.key.split_once('/').map_or("", |(namespace, _)| namespace);
                let reasons = ledger.gone(&gone.uid, namespace);
                let used = self.told.entry((report.name.clone(), gone.uid.clone())).or_default();
                if reasons.get(*used).is_none_or(|reason| *reason > gone.at) {
                    self.false_deletes.push(format!(
                        "{} was told at {} that {} {} is gone; reasons: {reasons:?}, {used} used before",
                        report.name, gone.at, gone.key, gone.uid
                    ));
                }
                *used += 1;
            }
        }
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let unnamed = crate::causes::unnamed(&self.expired);
        self.false_deletes.iter().cloned().chain(unnamed).collect()
    }
}
