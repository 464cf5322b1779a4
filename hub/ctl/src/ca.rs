//! `portolanctl ca`: shows the hub's CAs, and has the hub replace its CA by another. The hub takes the steps and knows whom they
//! wait for; here is what a person wants, and what the hub may not write itself (which CAs the API server trusts where it asks
//! the hub). No key is read here.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{CONFIG_MAP_CA_ROTATION, SYSTEM_NAMESPACE};
use portolan_crds::rotation::CaRotation;
use portolan_runtime::pki;

use crate::cli::{FleetHubArgs, RotateArgs, StepArgs};
use crate::connect::connect;
use crate::{hub, hub_ca, injection, install};

const POLL: Duration = Duration::from_millis(200);

/// A step, in the hub's word for it.
fn wanted(step: &StepArgs) -> &'static str {
    match (step.issue, step.finish, step.abort) {
        (true, _, _) => "issue",
        (_, true, _) => "finish",
        (_, _, true) => "abort",
        _ => "begin",
    }
}

pub(crate) async fn rotate(args: &RotateArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    let members = Members::connect(&args.member_kubeconfigs).await?;
    let (step, deadline) = (wanted(&args.step), Instant::now() + args.timeout);
    // Of a step before that was interrupted: nothing is issued by a CA that the API server does not trust yet.
    trust_published(&hub).await?;
    if step == "issue" || step == "finish" {
        until_nobody_waits(&hub, args.drop_absent, deadline).await?;
    }
    let state = take(&hub, step, args.drop_absent, deadline).await?;
    if let Some(why) = state.refused {
        bail!("the hub does not take this step: {why}");
    }
    trust_published(&hub).await?;
    members.trust(&hub_ca::awaited(&hub).await?).await?;
    if step == "begin" || step == "issue" {
        until_nobody_waits(&hub, args.drop_absent, deadline).await?;
    }
    println!("{}", next_step(step));
    Ok(())
}

/// What is done, and what is next.
fn next_step(step: &str) -> &'static str {
    match step {
        "begin" => {
            "the hub has a new CA; it, its agents and its routers trust both.\nNow give both to people and to operators' Pods \
             (ca.crt of ConfigMap portolan-system/portolan-ca has both); routers show certificates of the new one after\n  \
             portolanctl ca rotate --issue"
        }
        "issue" => {
            "the hub, its agents and its routers have certificates of the new CA.\nWhen nobody needs a certificate of the old one \
             any more (people's last a day, a week at most), drop it:\n  portolanctl ca rotate --finish"
        }
        "finish" => "the old CA is trusted no more; take it out of what people and operators' Pods trust",
        _ => "the new CA is dropped, and nothing has changed",
    }
}

/// Members whose Pods are pointed at a gateway.
struct Members(Vec<(String, Client)>);

impl Members {
    /// All of them, before anything is written.
    async fn connect(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut members = Vec::new();
        for file in files {
            let name = format!("the member of {}", file.display());
            let client = connect(&name, Some(file)).await?.client;
            members.push((name, client));
        }
        Ok(Self(members))
    }

    /// Their Pods trust these CAs.
    async fn trust(&self, bundle: &str) -> anyhow::Result<()> {
        for (name, client) in &self.0 {
            let pods = injection::trust(client, bundle).await.with_context(|| name.clone())?;
            let told = match pods {
                Some(pods) => format!("{pods} Pods have been given these CA certificates, and new ones get them"),
                None => "it names no gateway for its Pods, so there is nothing to change".to_owned(),
            };
            println!("{name}: {told}");
        }
        Ok(())
    }
}

/// The API server of the hub trusts what the hub publishes.
async fn trust_published(hub: &Client) -> anyhow::Result<()> {
    let bundle = hub_ca::awaited(hub).await?;
    if !install::trust(hub, &bundle).await? {
        println!("the API server does not ask the hub about ShardingConfigs: run portolanctl install if it should");
    }
    Ok(())
}

/// Tells the hub what is wanted; returns what it says when it has answered.
async fn take(hub: &Client, step: &str, drop_absent: bool, deadline: Instant) -> anyhow::Result<CaRotation> {
    want(hub, step, drop_absent).await?;
    loop {
        let state = read(hub).await?.unwrap_or_default();
        if state.wanted.is_none() {
            return Ok(state);
        }
        if Instant::now() > deadline {
            bail!("the hub does not answer: does it run, and is it of this release? The step is taken when it does");
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn want(hub: &Client, step: &str, drop_absent: bool) -> anyhow::Result<()> {
    let maps = maps(hub);
    let failed = || format!("cannot write ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_CA_ROTATION}");
    loop {
        let present = get(hub).await?;
        let before = present.as_ref().and_then(|map| map.data.as_ref());
        let mut state = before.map(CaRotation::from_data).unwrap_or_default();
        state.wanted = Some(step.to_owned());
        state.drop_absent = drop_absent;
        state.refused = None;
        let named = ObjectMeta {
            name: Some(CONFIG_MAP_CA_ROTATION.to_owned()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata: present.as_ref().map_or(named, |present| present.metadata.clone()),
            data: Some(state.to_data()),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = match present {
            Some(_) => maps.replace(CONFIG_MAP_CA_ROTATION, &params, &map).await,
            None => maps.create(&params, &map).await,
        };
        match written {
            // The hub wrote meanwhile.
            Err(KubeError::Api(status)) if status.code == 409 => {}
            outcome => return outcome.map(drop).with_context(failed),
        }
    }
}

/// Waits until the hub waits for nobody, or says for whom it does.
async fn until_nobody_waits(hub: &Client, drop_absent: bool, deadline: Instant) -> anyhow::Result<()> {
    loop {
        let state = read(hub).await?.unwrap_or_default();
        let waiting: Vec<_> = state
            .waiting
            .iter()
            .filter(|line| !(drop_absent && is_absent(line)))
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let names = waiting
                .iter()
                .map(|line| line.as_str())
                .collect::<Vec<_>>()
                .join("\n  ");
            bail!(
                "this step is not over, it waits for\n  {names}\nRun it again; agents and routers that are gone for good are \
                 left behind by --drop-absent"
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// In the hub's words.
fn is_absent(line: &str) -> bool {
    line.ends_with("(is not connected)")
}

pub(crate) async fn show(args: &FleetHubArgs) -> anyhow::Result<()> {
    let hub = hub::of(args).await?;
    let bundle = hub_ca::awaited(&hub).await?;
    let state = read(&hub).await?.unwrap_or_default();
    print!("{}", shown(&bundle, &state)?);
    Ok(())
}

fn shown(bundle: &str, state: &CaRotation) -> anyhow::Result<String> {
    let mut text = String::new();
    let roles = match state.phase.as_str() {
        "both" => ["issues", "new, trusted by the hub"],
        "new" => ["issues", "old, still trusted"],
        _ => ["issues", "trusted"],
    };
    let certificates = pki::certificates(bundle).context("the published CA cannot be read")?;
    for (number, certificate) in certificates.iter().enumerate() {
        let until = jiff::Timestamp::try_from(certificate.subject.not_after)?.strftime("%Y-%m-%d");
        let (name, role) = (&certificate.subject.common_name, roles[number.min(1)]);
        writeln!(text, "{name}, until {until}: {role}\n  SHA-256 {}", certificate.sha256)?;
    }
    if !state.waiting.is_empty() {
        writeln!(text, "the next step waits for")?;
        for line in &state.waiting {
            writeln!(text, "  {line}")?;
        }
    }
    match state.phase.as_str() {
        "both" => writeln!(text, "next: portolanctl ca rotate --issue")?,
        "new" => writeln!(text, "next: portolanctl ca rotate --finish")?,
        _ => {}
    }
    Ok(text)
}

async fn read(hub: &Client) -> anyhow::Result<Option<CaRotation>> {
    let data = get(hub).await?.and_then(|map| map.data);
    Ok(data.map(|data| CaRotation::from_data(&data)))
}

async fn get(hub: &Client) -> anyhow::Result<Option<ConfigMap>> {
    let map = maps(hub).get_opt(CONFIG_MAP_CA_ROTATION).await;
    map.with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_CA_ROTATION}"))
}

fn maps(hub: &Client) -> Api<ConfigMap> {
    Api::namespaced(hub.clone(), SYSTEM_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use portolan_runtime::pki::CertificateAuthority;

    use super::*;

    #[test]
    fn two_cas_are_told_apart_and_who_is_waited_for_is_named() {
        let [old, new] = [(); 2].map(|()| CertificateAuthority::generate("portolan hub CA").unwrap());
        let state = CaRotation {
            phase: "both".to_owned(),
            waiting: vec!["agent east (is not connected)".to_owned()],
            ..CaRotation::default()
        };
        let text = shown(&format!("{}{}", old.pem(), new.pem()), &state).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].ends_with(": issues") && lines[2].ends_with("new, trusted by the hub"),
            "{text}"
        );
        assert_ne!(lines[1], lines[3], "{text}");
        assert!(
            text.contains("  agent east (is not connected)\nnext: portolanctl ca rotate --issue"),
            "{text}"
        );
        let alone = shown(old.pem(), &CaRotation::default()).unwrap();
        assert_eq!(alone.lines().count(), 2, "{alone}");
    }
}
