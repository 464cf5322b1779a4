//! The programs of a testbed and where they are kept: built once from the Go modules beside this crate, into a cache
//! outside the source tree whose name is a hash of everything that decides what comes out.
//!
//! When everything is built, asking for a tool costs one `stat` and no Go.

mod build;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tokio::process::Command;

/// Programs that are built together, from one go.mod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    ldflags: &'static str,
    /// Build tags, separated by commas.
    tags: &'static str,
    /// A main package of our own beside go.mod, in place of the tools that go.mod names: a program whose parts are chosen by imports.
    main: &'static str,
    /// `go install` names a program after its folder; some deserve a better name.
    rename: (&'static str, &'static str),
    /// Files wanted from modules' sources: the module, and paths in it.
    extras: &'static [(&'static str, &'static [&'static str])],
}

impl Bundle {
    /// etcd, the Kubernetes programs, kubectl and KWOK.
    pub const CONTROL_PLANE: Self = Self {
        name: "control plane",
        go_mod: include_str!("../tools/go.mod"),
        go_sum: include_str!("../tools/go.sum"),
        // Without the version stamp clients refuse the server's version.
        ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
                  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
        rename: ("server", "etcd"),
        extras: &[(
            "sigs.k8s.io/kwok",
            &[
                "kustomize/stage/node/fast/node-initialize.yaml",
                "kustomize/stage/pod/fast/pod-ready.yaml",
                "kustomize/stage/pod/fast/pod-complete.yaml",
                "kustomize/stage/pod/fast/pod-delete.yaml",
            ],
        )],
        ..Self::NONE
    };

    /// Jaeger, apart because its dependencies clash with those of Kubernetes.
    pub const JAEGER: Self = Self {
        name: "Jaeger",
        go_mod: include_str!("../jaeger/go.mod"),
        go_sum: include_str!("../jaeger/go.sum"),
        ldflags: "-s -w",
        rename: ("all-in-one", "jaeger"),
        ..Self::NONE
    };

    /// Helm, which tries the charts of `deploy/charts`.
    pub const HELM: Self = Self {
        name: "Helm",
        go_mod: include_str!("../helm/go.mod"),
        go_sum: include_str!("../helm/go.sum"),
        ldflags: "-s -w",
        ..Self::NONE
    };

    /// The Helm of before, which many still have: `make helm3` alone builds it.
    pub const HELM_3: Self = Self {
        name: "Helm 3",
        go_mod: include_str!("../helm3/go.mod"),
        go_sum: include_str!("../helm3/go.sum"),
        // As its releases are built: charts that name no cluster are rendered for this version.
        ldflags: "-s -w -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36 \
                  -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
        rename: ("helm", "helm3"),
        ..Self::NONE
    };

    /// CustomResourceDefinitions of kinds that charts have objects of and operators of others serve: those of prometheus-operator and of
    /// the Gateway API. No program comes with them.
    pub const KINDS: Self = Self {
        name: "kinds of others",
        go_mod: include_str!("../kinds/go.mod"),
        go_sum: include_str!("../kinds/go.sum"),
        extras: &[
            (
                "github.com/prometheus-operator/prometheus-operator",
                &[
                    "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
                    "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
                ],
            ),
            (
                "sigs.k8s.io/gateway-api",
                &["config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml"],
            ),
        ],
        ..Self::NONE
    };

    /// What runs Pods on a Node, in three bundles whose dependencies clash: kubelet and kube-proxy, containerd, CoreDNS.
    pub const NODE: [Self; 3] = [Self::KUBELET, Self::CONTAINERD, Self::COREDNS];

    /// kubelet and kube-proxy, of the control plane's version.
    pub(crate) const KUBELET: Self = Self {
        name: "kubelet and kube-proxy",
        go_mod: include_str!("../node/kubernetes/go.mod"),
        go_sum: include_str!("../node/kubernetes/go.sum"),
        ldflags: Self::CONTROL_PLANE.ldflags,
        ..Self::NONE
    };

    /// containerd, its shim for runc, and `ctr`.
    pub(crate) const CONTAINERD: Self = Self {
        name: "containerd",
        go_mod: include_str!("../node/containerd/go.mod"),
        go_sum: include_str!("../node/containerd/go.sum"),
        ldflags: "-s -w",
        // Snapshotters that nobody here uses.
        tags: "no_btrfs,no_zfs,no_devmapper",
        ..Self::NONE
    };

    /// CoreDNS with the two plugins that a cluster's names take: with all, its clients of clouds are compiled for minutes.
    pub(crate) const COREDNS: Self = Self {
        name: "CoreDNS",
        go_mod: include_str!("../node/coredns/go.mod"),
        go_sum: include_str!("../node/coredns/go.sum"),
        ldflags: "-s -w",
        main: include_str!("../node/coredns/main.go"),
        ..Self::NONE
    };

    /// API servers of other versions of Kubernetes than the control plane's, by version; nothing else comes with them.
    pub const API_SERVERS: [(&'static str, Self); 3] = [
        (
            "1.34",
            Self {
                name: "API server of v1.34.4",
                go_mod: include_str!("../skew/v1.34/go.mod"),
                go_sum: include_str!("../skew/v1.34/go.sum"),
                ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 \
                          -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34",
                ..Self::API_SERVER
            },
        ),
        (
            "1.35",
            Self {
                name: "API server of v1.35.4",
                go_mod: include_str!("../skew/v1.35/go.mod"),
                go_sum: include_str!("../skew/v1.35/go.sum"),
                ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.35.4 \
                          -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35",
                ..Self::API_SERVER
            },
        ),
        (
            "1.37",
            Self {
                name: "API server of v1.37.2",
                go_mod: include_str!("../skew/v1.37/go.mod"),
                go_sum: include_str!("../skew/v1.37/go.sum"),
                ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 \
                          -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
                ..Self::API_SERVER
            },
        ),
    ];

    /// Operators of others, unmodified, each apart because their dependencies clash: Argo Rollouts and prometheus-operator.
    pub const OPERATORS: [Self; 2] = [Self::ROLLOUTS, Self::PROMETHEUS_OPERATOR];

    /// `rollouts-controller` of Argo Rollouts, and its CustomResourceDefinitions.
    pub const ROLLOUTS: Self = Self {
        name: "Argo Rollouts controller",
        go_mod: include_str!("../operators/rollouts/go.mod"),
        go_sum: include_str!("../operators/rollouts/go.sum"),
        ldflags: "-s -w",
        rename: ("rollouts-controller", "rollouts-controller"),
        extras: &[(
            "github.com/argoproj/argo-rollouts",
            &[
                "manifests/crds/analysis-run-crd.yaml",
                "manifests/crds/analysis-template-crd.yaml",
                "manifests/crds/cluster-analysis-template-crd.yaml",
                "manifests/crds/experiment-crd.yaml",
                "manifests/crds/rollout-crd.yaml",
            ],
        )],
        ..Self::NONE
    };

    /// `prometheus-operator`, and its CustomResourceDefinitions.
    pub const PROMETHEUS_OPERATOR: Self = Self {
        name: "prometheus-operator",
        go_mod: include_str!("../operators/prometheus/go.mod"),
        go_sum: include_str!("../operators/prometheus/go.sum"),
        ldflags: "-s -w",
        rename: ("operator", "prometheus-operator"),
        extras: &[(
            "github.com/prometheus-operator/prometheus-operator",
            &[
                "example/prometheus-operator-crd/monitoring.coreos.com_alertmanagerconfigs.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_alertmanagers.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_probes.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_prometheusagents.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_prometheuses.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_scrapeconfigs.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
                "example/prometheus-operator-crd/monitoring.coreos.com_thanosrulers.yaml",
            ],
        )],
        ..Self::NONE
    };

    const API_SERVER: Self = Self {
        rename: ("kube-apiserver", "kube-apiserver"),
        ..Self::NONE
    };

    const NONE: Self = Self {
        name: "",
        go_mod: "",
        go_sum: "",
        ldflags: "",
        tags: "",
        main: "",
        rename: ("", ""),
        extras: &[],
    };

    /// The bundle with a program that people and tests use by its name.
    pub fn of(tool: &str) -> Self {
        match tool {
            "jaeger" => Self::JAEGER,
            "helm" => Self::HELM,
            "helm3" => Self::HELM_3,
            _ => Self::CONTROL_PLANE,
        }
    }

    /// The folder of what is built, if it is.
    pub fn built(&self) -> Result<Option<PathBuf>> {
        let folder = cache_dir()?.join("testbed").join(self.key());
        Ok(folder.is_dir().then_some(folder))
    }

    /// Builds what is missing and returns the folder with `bin/` and `extras/`. Blocks, for minutes the first time,
    /// and tells its progress on stderr.
    pub fn ensure(&self) -> Result<PathBuf> {
        let folder = cache_dir()?.join("testbed").join(self.key());
        if self.built()?.is_none() {
            build::build(self, &folder).with_context(|| format!("building the {} of the testbed", self.name))?;
        }
        Ok(folder)
    }

    /// [`Bundle::ensure`] for async callers.
    pub(crate) async fn ready(self) -> Result<PathBuf> {
        tokio::task::spawn_blocking(move || self.ensure())
            .await
            .context("the build was aborted")?
    }

    fn key(&self) -> String {
        let mut hash = Sha256::new();
        let more = [self.tags, self.main].into_iter().filter(|part| !part.is_empty());
        for part in [self.go_mod, self.go_sum, self.ldflags].into_iter().chain(more) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let head = digest.first_chunk().expect("SHA-256 has more than eight bytes");
        format!("{:016x}", u64::from_be_bytes(*head))
    }
}

/// `$PORTOLAN_CACHE`, else `portolan` in the user's cache folder.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let user_cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let folder = set("PORTOLAN_CACHE").or_else(|| Some(user_cache()?.join("portolan")));
    let folder = folder.context("no place for the cache: set PORTOLAN_CACHE or HOME")?;
    std::path::absolute(&folder).with_context(|| format!("the cache folder {}", folder.display()))
}

/// The path of `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubectl`, `kwok`, `helm`, `helm3` or `jaeger`,
/// built if need be (which blocks for minutes the first time). Panics when that fails, as a test must.
pub fn tool(name: &str) -> PathBuf {
    match Bundle::of(name).ensure() {
        Ok(folder) => folder.join("bin").join(name),
        #[expect(clippy::panic, reason = "this is the tests' shorthand; programs call Bundle::ensure")]
        Err(error) => panic!("{error:#}"),
    }
}

/// kubectl for `kubeconfig`, blind to the user's own; killed when its handle is dropped.
pub fn kubectl(kubeconfig: &Path) -> Command {
    let mut command = Command::new(tool("kubectl"));
    // Its discovery cache is keyed by host and port, and ports come back with other servers behind them.
    let cache = kubeconfig.with_extension("cache");
    command
        .env_remove("KUBECONFIG")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--cache-dir")
        .arg(cache);
    command.kill_on_drop(true);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_follows_every_input() {
        let mut other = Bundle::JAEGER;
        assert_eq!(other.key(), Bundle::JAEGER.key());
        other.ldflags = "-s";
        assert_ne!(other.key(), Bundle::JAEGER.key());
        assert_ne!(Bundle::CONTROL_PLANE.key(), Bundle::JAEGER.key());
    }

    #[test]
    fn the_version_stamp_is_the_version_built() {
        let others = Bundle::API_SERVERS.iter().map(|(minor, bundle)| (*minor, bundle));
        for (minor, bundle) in others.chain([("1.36", &Bundle::CONTROL_PLANE)]) {
            let version = bundle.go_mod.lines().find_map(|line| {
                let (_, version) = line.split_once("k8s.io/kubernetes v")?;
                version.split_whitespace().next()
            });
            let version = version.unwrap();
            assert!(version.starts_with(&format!("{minor}.")), "{minor}: {version}");
            assert!(bundle.ldflags.contains(&format!("gitVersion=v{version} ")), "{minor}");
            let (_, staging) = version.split_once('.').unwrap();
            assert!(
                bundle
                    .go_mod
                    .contains(&format!("k8s.io/api => k8s.io/api v0.{staging}\n")),
                "{minor}"
            );
        }
    }
}
