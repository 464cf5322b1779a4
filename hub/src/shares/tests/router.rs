//! A router, as far as it has to do with shares.

use std::collections::VecDeque;

use super::tokens::Tokens;
use super::*;

/// How a router behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Conduct {
    #[default]
    Loyal,
    /// Of a release that says neither the revision of its shares nor uids, and uses shares before they are on disk.
    Older,
    /// It does not heed what it is told.
    Deaf,
    /// It says that it has so much, whatever it has.
    Claims(u32),
}

/// One router, as it is: it keeps to the last shares that it heard, whole, of what grows once it is on disk; and says what it
/// would have after a restart.
#[derive(Debug, Default)]
pub(super) struct SimRouter {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) registered: bool,
    pub(super) serves: bool,
    pub(super) conduct: Conduct,
    pub(super) sees: Option<BTreeSet<PolicyName>>,
    /// What it uses.
    pub(super) shares: BTreeMap<SharedLimit, u32>,
    /// What it was told last.
    pub(super) told: BTreeMap<SharedLimit, u32>,
    pub(super) revision: u64,
    /// Of these a restart would know: on disk.
    pub(super) kept: (BTreeMap<SharedLimit, u32>, u64),
    /// Rules of policies that it has.
    pub(super) has: BTreeSet<SharedLimit>,
    pub(super) asked: u64,
    pub(super) tokens: Tokens,
    /// The hub's end of its stream.
    pub(super) epoch: Option<u64>,
    /// Its own end is open.
    pub(super) is_open: bool,
    pub(super) to_say: VecDeque<v1::PolicyReport>,
    pub(super) to_hear: VecDeque<v1::Shares>,
}

impl SimRouter {
    /// What is on disk, and no more.
    pub(super) fn remember(&mut self) {
        (self.told, self.revision) = self.kept.clone();
        self.shares = self.told.clone();
        self.tokens.give_up(&self.told);
        self.tokens.follow(&self.shares);
    }

    pub(super) fn restart(&mut self) {
        self.tokens = Tokens::default();
        self.has.clear();
        self.remember();
    }

    /// What it lets pass now, in millionths of the bucket.
    pub(super) fn holds(&self, rule: &SharedLimit) -> u64 {
        self.tokens.of(rule)
    }

    pub(super) fn is_old(&self) -> bool {
        self.conduct == Conduct::Older
    }

    pub(super) fn share_said(&self, rule: &SharedLimit) -> u32 {
        match self.conduct {
            Conduct::Claims(share) => share,
            _ => self.kept.0.get(rule).copied().unwrap_or_default(),
        }
    }

    pub(super) fn may_have(&self, rule: &SharedLimit) -> bool {
        self.sees.as_ref().is_none_or(|sees| sees.contains(&rule.policy))
    }

    pub(super) fn say(&mut self) {
        if !self.is_open {
            return;
        }
        let demands = self.has.iter().map(|rule| v1::SharedDemand {
            policy: rule.policy.to_string(),
            rule: rule.rule.clone(),
            share_millionths: self.share_said(rule),
            revision: self.kept.1,
            asked_per_second_thousandths: self.asked,
            uid: if self.is_old() { String::new() } else { rule.uid.clone() },
        });
        let demands = if self.serves { demands.collect() } else { Vec::new() };
        self.to_say.push_back(v1::PolicyReport {
            rules: Vec::new(),
            demands,
            shares_revision: if self.is_old() { 0 } else { self.kept.1 },
            ..v1::PolicyReport::default()
        });
    }
}
