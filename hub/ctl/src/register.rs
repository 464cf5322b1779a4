//! `portolanctl register`: the whole joining of a member with one kubeconfig, until it serves.
//!
//! What can be refused is checked before the first write: the way to the API server (`reached`), who the cluster is, the rights in
//! both clusters (`rights`). Then each step is written and told, and repeated it changes nothing (`serving` waits). Several clusters
//! of one kubeconfig: `contexts`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject};
use portolan_crds::MemberCluster;

use crate::apply;
use crate::cli::RegisterArgs;
use crate::connect::{Cluster, connect, connect_to};
use crate::grant::Grants;
use crate::join::{Checked, Join, member_rbac};
use crate::label_kinds::LabelKinds;
use crate::rights;
use crate::steps::Steps;
use crate::unregister;

mod agent;
mod contexts;
mod hub;
mod others;
mod reached;
mod serving;

use serving::Failure;

/// Long enough for an image to be pulled.
const TOKEN_TTL: Duration = Duration::from_hours(1);

pub(crate) async fn run(args: &RegisterArgs) -> anyhow::Result<()> {
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    match &args.name {
        None => contexts::run(args, &hub).await,
        Some(name) => one(args, &hub, name, args.context.as_deref()).await,
    }
}

/// Registers one cluster.
async fn one(args: &RegisterArgs, hub: &Cluster, name: &str, context: Option<&str>) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    let what = format!("member cluster {name}");
    let mut member = connect_to(&what, Some(&args.kubeconfig), context).await?;
    let clusters: Api<MemberCluster> = Api::all(hub.client.clone());
    let present = clusters.get_opt(name).await;
    let present = present.context("cannot read MemberClusters of the hub; has `portolanctl install` been run?")?;
    reached::check(args, &mut member, present.as_ref())?;
    let registration = Registration {
        grants: Grants::parse(&args.membership.grants)?,
        label_kinds: LabelKinds::parse(&args.membership.label_kinds)?,
        hub_address: match &args.hub_address {
            Some(address) => address.clone(),
            None => hub::address(&hub.client).await?,
        },
        agent: match &args.agent_image {
            _ if args.without_agent => None,
            Some(image) => Some(agent::deployment(image)?),
            None => Some(agent::deployment(&hub::agent_image(&hub.client).await?)?),
        },
        is_new: present.is_none(),
        is_heard: present
            .as_ref()
            .is_some_and(|member| ["Joined", "Available"].iter().all(|type_| serving::has(member, type_))),
        args,
        name,
        hub,
        member,
    };
    let checked = registration.check(&mut steps).await?;
    if args.dry_run.is_some() {
        return registration.tell();
    }
    registration.write(&mut steps, &checked).await?;
    registration.wait(&mut steps).await
}

struct Registration<'a> {
    args: &'a RegisterArgs,
    name: &'a str,
    hub: &'a Cluster,
    member: Cluster,
    grants: Grants,
    label_kinds: LabelKinds,
    hub_address: String,
    /// `None`: somebody else installs it.
    agent: Option<DynamicObject>,
    /// There was no MemberCluster of that name.
    is_new: bool,
    /// Its agent has a certificate, and is heard: it needs no other token.
    is_heard: bool,
}

impl Registration<'_> {
    fn join(&self) -> Join<'_> {
        Join {
            name: self.name,
            hub_address: &self.hub_address,
            endpoint: self.args.endpoint.as_deref(),
            accept: true,
            labels: &self.args.membership.labels,
            token_ttl: TOKEN_TTL,
            grants: &self.grants,
            label_kinds: &self.label_kinds,
            label_prefix: self.args.membership.label_prefix.as_deref(),
            gateway: self.args.membership.gateway.as_ref(),
        }
    }

    async fn check(&self, steps: &mut Steps) -> anyhow::Result<Checked> {
        let checked = self.join().check(self.hub, &self.member).await?;
        others::check(&self.member.client, &self.hub_address, checked.hub_ca()).await?;
        let namespaces: Api<Namespace> = Api::all(self.member.client.clone());
        for name in self.grants.namespaces() {
            let found = namespaces.get_opt(name).await;
            if found
                .with_context(|| format!("cannot read namespace {name} of the member"))?
                .is_none()
            {
                bail!("nothing was written: --allow {name}/…: the member has no namespace {name}; create it first");
            }
        }
        steps.done(&format!("{} answers, and is no other member", self.member.url));
        let mut missing = rights::missing_in_hub(&self.hub.client).await?;
        let objects: Vec<_> = member_rbac()?.into_iter().chain(self.agent.clone()).collect();
        missing.extend(self.missing_in_member(&objects).await?);
        if !missing.is_empty() {
            bail!(
                "nothing was written, as rights are missing:\n  {}",
                missing.join("\n  ")
            );
        }
        steps.done("the rights for it are there, on the hub and in the member");
        Ok(checked)
    }

    async fn missing_in_member(&self, objects: &[DynamicObject]) -> anyhow::Result<Vec<String>> {
        let has_gateway = self.args.membership.gateway.is_some();
        rights::missing_in_member(self.name, &self.member.client, objects, &self.grants, has_gateway).await
    }

    /// Says what a registration would write.
    fn tell(&self) -> anyhow::Result<()> {
        println!("would apply in {}:", self.member.url);
        for object in member_rbac()?.iter().chain(&self.agent) {
            println!("  {}", apply::describe(object));
        }
        println!("  the admission policies portolan-…, and what --allow and --label-kind add");
        println!("would apply on the hub:\n  MemberCluster {}, accepted", self.name);
        if !self.is_heard {
            println!("  a bootstrap token for its agent");
        }
        Ok(())
    }

    async fn write(&self, steps: &mut Steps, checked: &Checked) -> anyhow::Result<()> {
        let join = self.join();
        let member = &self.member.client;
        let written = join.write_member(member, checked).await;
        written.with_context(|| goes_on("the member's half is written in part"))?;
        steps.done("the member has ServiceAccounts, RBAC and admission policies");
        let registered = join.register(&self.hub.client, checked).await;
        registered.with_context(|| goes_on("the member's half is written, without the agent"))?;
        steps.done(&format!("MemberCluster {} is registered and accepted", self.name));
        if !self.is_heard {
            let invited = join.invite(self.hub, &self.member, checked).await;
            invited.with_context(|| goes_on("the cluster is registered, and its agent has no bootstrap token"))?;
            steps.done("the agent has a bootstrap token");
        }
        if let Some(agent) = &self.agent {
            let applied = apply::apply_one(member, agent).await;
            applied.with_context(|| goes_on("the cluster is registered, without an agent"))?;
            steps.done(&format!("the agent is installed, {}", agent::image(agent)));
        }
        Ok(())
    }

    async fn wait(&self, steps: &mut Steps) -> anyhow::Result<()> {
        let has_agent = self.agent.is_some();
        match serving::wait(self, has_agent, steps).await {
            Ok(()) => {
                println!("member cluster {} serves", self.name);
                if self.grants.is_empty() {
                    println!(
                        "routers act there as nobody that was named now: portolanctl allow --member-kubeconfig … \
                         NAMESPACE/SERVICEACCOUNT adds callers"
                    );
                }
                Ok(())
            }
            Err(Failure::Unreachable(reason))
                if self.is_new && !unregister::is_held(&self.hub.client, self.name).await? =>
            {
                println!("routers do not reach the API server: taking back what was written");
                unregister::take_back(self.hub, self.name, &self.member, self.args.timeout).await?;
                bail!("{}; nothing is left behind", self.unreachable(&reason))
            }
            Err(Failure::Unreachable(reason)) => bail!("{}", self.unreachable(&reason)),
            Err(Failure::Refused(reason)) => bail!(
                "the hub refuses the agent of {}: {reason}; portolanctl unregister {} takes back what was written",
                self.name,
                self.name
            ),
            Err(Failure::Late(missing)) => {
                bail!(
                    "{}",
                    goes_on(&format!("all is written, and the member does not serve yet: {missing}"))
                )
            }
            Err(Failure::Hub(error)) => Err(error).with_context(|| goes_on("all is written")),
        }
    }

    fn unreachable(&self, reason: &str) -> String {
        format!(
            "routers do not reach {} at {}: {reason}; say by --endpoint and --ca-file how they do",
            self.name,
            self.args.endpoint.as_deref().unwrap_or(&self.member.url)
        )
    }
}

/// What stands, and how to go on.
fn goes_on(stands: &str) -> String {
    format!("{stands} (the same command goes on from here)")
}
