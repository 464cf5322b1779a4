//! A member is cut off and comes back: what goes on, what waits, and that nobody is told of anything being deleted.

use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use portolan_testbed::Fault;
use serde_json::Value;

use crate::account::{head, quote};
use crate::operator::Operator;
use crate::steps::{Demo, EAST, WEST};
use crate::view::Watch;
use crate::wait::wait_for;
use crate::workload;

const LATER: &str = "good evening";

impl Demo {
    pub(crate) async fn cut_and_heal(&self, operator: &mut Operator, watch: &mut Watch) -> anyhow::Result<()> {
        head("Cutting west: its port resets every connection");
        let west = self.testbed.cluster("west");
        west.fault(Fault::Reset).await?;
        let started = Instant::now();
        workload::greet(&self.east, EAST[0], LATER).await?;
        workload::greet(&self.west, WEST[0], LATER).await?;
        self.wait_said(LATER, &EAST[..1]).await?;
        println!(
            "   east goes on: {} was reconciled {} ms after a change while west is cut",
            EAST[0],
            started.elapsed().as_millis()
        );
        let line = watch.sees(&[EAST[0], LATER]).await?;
        println!("   kubectl's watch from before the cut goes on too:");
        quote(&line);
        println!("   {}", self.wait_breaker("west", "open").await?);
        let open = self.show_open_watches().await?;
        ensure!(open.contains("held"), "no leg of west is held");
        operator.check()?;
        watch.check()?;
        self.not_said(LATER).await?;
        println!(
            "   west waits: {} was not reconciled, nothing of it was deleted, and the watch was told nothing of it",
            WEST[0]
        );
        self.heal(operator, watch).await
    }

    async fn heal(&self, operator: &mut Operator, watch: &mut Watch) -> anyhow::Result<()> {
        head("Healing west");
        self.testbed.cluster("west").fault(Fault::None).await?;
        let started = Instant::now();
        self.wait_said(LATER, &WEST).await?;
        println!(
            "   {} was reconciled {} ms after the port came back",
            WEST[0],
            started.elapsed().as_millis()
        );
        let line = watch.sees(&["MODIFIED", WEST[0], LATER]).await?;
        println!("   and the same watch, never interrupted, was told:");
        quote(&line);
        println!("   {}", self.wait_breaker("west", "closed").await?);
        watch.check()?;
        operator.check()
    }

    async fn not_said(&self, message: &str) -> anyhow::Result<()> {
        match workload::is_said(&self.west, WEST[0], message).await {
            Ok(()) => bail!("{} was reconciled although west is cut", WEST[0]),
            Err(error) if error.to_string().contains("no ConfigMap") => Err(error),
            Err(_) => Ok(()),
        }
    }

    /// Waits until the router's breakers for a member are all closed, or one of them is open; says which.
    async fn wait_breaker(&self, member: &str, state: &str) -> anyhow::Result<String> {
        let admin = self.fleet.process("router")?.admin;
        wait_for(&format!("a breaker of {member} that is {state}"), || async {
            let all: Value = serde_json::from_str(&portolan_tests::programs::admin_get(&admin, "/breakers").await?)?;
            let all = all.as_array().into_iter().flatten();
            let of_member: Vec<&Value> = all.filter(|breaker| breaker["cluster"] == member).collect();
            let mut matching = of_member.iter().filter(|breaker| breaker["state"] == state);
            let found = match state {
                "closed" => (matching.count() == of_member.len()).then(|| format!("breakers of {member}: closed")),
                _ => matching.next().map(|breaker| told(member, breaker)),
            };
            found.with_context(|| format!("breakers are {of_member:?}"))
        })
        .await
    }
}

fn told(member: &str, breaker: &Value) -> String {
    let text = |key: &str| breaker[key].as_str().unwrap_or_default().to_owned();
    format!(
        "breaker of {member} for {}: {} ({})",
        text("class"),
        text("state"),
        text("reason")
    )
}
