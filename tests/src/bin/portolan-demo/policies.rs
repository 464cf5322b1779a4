//! An operator that runs wild is held by a CircuitBreaker, and a FaultInjection shows that it survives an outage: what each
//! says of itself, and what the traces say of both.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff::Timestamp;
use portolan_tests::kubectl::Kubectl;

use crate::account::{head, quote};
use crate::args::Args;
use crate::operator::Operator;
use crate::steps::{Demo, WEST};
use crate::wait::wait_for;
use crate::{traced, workload};

const BREAKER: &str = "\
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: runaway, namespace: operators}
spec:
  selector: {matchLabels: {shard: demo}}
  rateLimitings:
  - name: writes
    bucket: {burst: 10, interval: 1s, limit: 2}
    triggerPolicy: Normal
    recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 8s}
    resourceRules:
    - {apiGroups: [''], resources: [configmaps], verbs: [create, update, patch], namespaces: ['*']}
";
const FAULTS: &str = "\
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: FaultInjection
metadata: {name: rehearsal, namespace: operators}
spec:
  selector: {matchLabels: {shard: demo}}
  until: 'UNTIL'
  httpFault:
  - name: half-of-writes
    abort: {httpStatus: 503, percent: '50'}
    match:
      resources:
      - {apiGroups: [''], resources: [configmaps], verbs: [create, update, patch], namespaces: [], clusters: [west]}
";
/// Changes that its users make while it runs wild, and how far apart.
const CHANGES: usize = 60;
const APART: Duration = Duration::from_millis(50);
/// After which nothing of the rehearsal happens, whoever forgets it.
const LASTS: Duration = Duration::from_mins(10);
/// Changes of the rehearsal: that none of their writes is hit is unlikely.
const REHEARSED: usize = 8;

impl Demo {
    pub(crate) async fn show_policies(&self, operator: &mut Operator, args: &Args) -> anyhow::Result<()> {
        self.run_wild().await?;
        operator.check()?;
        println!("   one of its reconciles that was refused:");
        traced::show_told(&self.jaeger, args.operator.reconcile(), "portolan.policy").await?;
        self.rehearse().await?;
        operator.check()?;
        println!("   one of its reconciles that met an ordered fault:");
        traced::show_told(&self.jaeger, args.operator.reconcile(), "portolan.fault").await
    }

    async fn run_wild(&self) -> anyhow::Result<()> {
        head("An operator runs wild, and a CircuitBreaker holds it");
        self.apply("runaway.yaml", BREAKER).await?;
        let namespace = WEST[0];
        let started = Instant::now();
        let message = |number: usize| format!("change {number}");
        for number in 1..=CHANGES {
            workload::greet(&self.west, namespace, &message(number)).await?;
            tokio::time::sleep(APART).await;
        }
        println!(
            "   {CHANGES} changes of a Greeting in {} ms, each of which the operator follows",
            started.elapsed().as_millis()
        );
        self.tell("operators/runaway", &["writes", "LimitExceeded"]).await?;
        self.wait_said(&message(CHANGES), &[namespace]).await?;
        println!(
            "   the last change was followed {} ms after the first, with no hand laid on: the rule closed by itself",
            started.elapsed().as_millis()
        );
        self.delete("circuitbreaker", "runaway").await
    }

    async fn rehearse(&self) -> anyhow::Result<()> {
        head("Practising an outage: half of the operator's writes to west fail, and it must come through");
        let until = Timestamp::now().saturating_add(LASTS)?;
        let manifest = FAULTS.replace("UNTIL", &format!("{until:.0}"));
        self.apply("rehearsal.yaml", &manifest).await?;
        let namespace = WEST[0];
        for number in 1..=REHEARSED {
            let message = format!("rehearsal {number}");
            workload::greet(&self.west, namespace, &message).await?;
            self.wait_said(&message, &[namespace]).await?;
        }
        println!("   {REHEARSED} changes of a Greeting, and the operator has followed all of them");
        self.tell("operators/rehearsal", &["half-of-writes", "Injected"])
            .await?;
        println!("   $ portolanctl faults stop --reason 'the demo is over'");
        let stop = ["faults", "stop", "--reason", "the demo is over"];
        quote(&self.portolanctl(&stop).await?);
        self.portolanctl(&["faults", "resume"]).await?;
        self.delete("faultinjection", "rehearsal").await
    }

    /// Applies a manifest, and waits until the router holds its caller by it.
    async fn apply(&self, name: &str, manifest: &str) -> anyhow::Result<()> {
        quote(manifest);
        let file = self.fleet.dir().join(name);
        std::fs::write(&file, manifest)?;
        println!("   $ portolanctl apply -f {name}");
        quote(&self.portolanctl(&["apply", "-f", &file.to_string_lossy()]).await?);
        let policy = format!("operators/{}", name.trim_end_matches(".yaml"));
        let listed = wait_for("the policy is in force", || async {
            let listed = self.portolanctl(&["get", "policies"]).await?;
            let line = listed
                .lines()
                .find(|line| line.contains(&policy))
                .context("no such policy")?;
            let cells: Vec<_> = line.split_whitespace().collect();
            ensure!(
                cells.get(2..5) == Some(&["True", "True", "1"][..]),
                "it is not: {listed}"
            );
            Ok(listed)
        })
        .await?;
        println!("   $ portolanctl get policies");
        quote(&listed);
        Ok(())
    }

    /// Waits until the status says these words of a policy, and shows it.
    async fn tell(&self, policy: &str, words: &[&str]) -> anyhow::Result<()> {
        let told = wait_for("the status tells of it", || async {
            let told = self.portolanctl(&["policies", "status", policy]).await?;
            let said = told.lines().any(|line| words.iter().all(|word| line.contains(word)));
            ensure!(said, "it says {told}");
            Ok(told)
        })
        .await?;
        println!("   $ portolanctl policies status {policy}");
        quote(&told);
        Ok(())
    }

    async fn delete(&self, kind: &str, name: &str) -> anyhow::Result<()> {
        let hub = Kubectl::new(&self.hub);
        hub.ok(&["delete", kind, name, "-n", "operators"]).await.map(drop)
    }

    async fn portolanctl(&self, words: &[&str]) -> anyhow::Result<String> {
        let dir = self.fleet.dir().to_string_lossy();
        let words: Vec<String> = [words, &["--dir", &dir]]
            .concat()
            .into_iter()
            .map(ToOwned::to_owned)
            .collect();
        self.fleet.run(&words).await
    }
}
