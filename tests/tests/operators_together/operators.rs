//! The three operators, as they are: what their programs are called with, and what they write.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use portolan_testbed::Bundle;
use portolan_tests::programs::program;

use crate::places::NAMESPACES;

pub(crate) struct Operator {
    /// Of its root, its account and `spec.operator`.
    pub(crate) name: &'static str,
    /// Of its leader election, if it has one.
    pub(crate) lock: Option<&'static str>,
    /// Of each of its two shards.
    pub(crate) replicas: usize,
    /// Every how many of the namespaces are the canary's at first.
    every: usize,
    /// Kinds that it writes where it works, `group/plural`.
    pub(crate) writes: &'static [&'static str],
}

pub(crate) const ROLLOUTS: Operator = Operator {
    name: "rollouts",
    lock: Some("argo-rollouts-controller-lock"),
    replicas: 2,
    every: 2,
    writes: &["argoproj.io/rollouts", "apps/replicasets", "/pods", "/events"],
};
pub(crate) const MONITORING: Operator = Operator {
    name: "monitoring",
    lock: None,
    replicas: 1,
    every: 3,
    writes: &[
        "monitoring.coreos.com/prometheuses",
        "apps/statefulsets",
        "/secrets",
        "/configmaps",
        "/services",
        "/events",
    ],
};
pub(crate) const GREETINGS: Operator = Operator {
    name: "greetings",
    lock: Some("greeting-operator"),
    replicas: 2,
    every: 1,
    writes: &[
        "example.com/greetings",
        "/configmaps",
        "apps/deployments",
        "events.k8s.io/events",
    ],
};
pub(crate) const OPERATORS: [Operator; 3] = [ROLLOUTS, MONITORING, GREETINGS];

impl Operator {
    /// Its canary, and the shard that has what the canary has not.
    pub(crate) fn shards(&self) -> [String; 2] {
        [self.shard(true), self.shard(false)]
    }

    pub(crate) fn shard(&self, canary: bool) -> String {
        let child = if canary { "0-canary" } else { "1-normal" };
        format!("{}-{child}", self.name)
    }

    /// What the canary has at first.
    pub(crate) fn first(&self) -> Vec<&'static str> {
        NAMESPACES.into_iter().step_by(self.every).collect()
    }

    /// Its program and arguments, for a replica that finds its API server by this kubeconfig; `KUBECONFIG` names it, too.
    pub(crate) fn command(&self, kubeconfig: &Path) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let built = |bundle: Bundle, name: &str| {
            let folder = bundle.built()?.context("it is built")?;
            anyhow::Ok(folder.join("bin").join(name))
        };
        Ok(match self.name {
            "rollouts" => (
                built(Bundle::ROLLOUTS, "rollouts-controller")?,
                vec![
                    format!("--kubeconfig={}", kubeconfig.display()),
                    "--metricsPort=0".to_owned(),
                    "--healthzPort=0".to_owned(),
                    "--logformat=json".to_owned(),
                ],
            ),
            "monitoring" => (
                built(Bundle::PROMETHEUS_OPERATOR, "prometheus-operator")?,
                vec!["--web.listen-address=127.0.0.1:0".to_owned()],
            ),
            _ => (program("greeting-operator")?, Vec::new()),
        })
    }
}
