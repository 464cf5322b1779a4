//! The real place over several members: ConfigMaps on the testbed's control planes, listed and watched in JSON and
//! protobuf. Direct, explicit and merged see the same objects; the writers are this program.

use anyhow::Context as _;
use http::HeaderValue;
use http::header::ACCEPT;
use kube::api::{Api, Patch, PatchParams};
use portolan_testbed::Testbed;
use portolan_tests::{Fleet, FleetOptions, shard};
use serde_json::json;

use crate::federated::{self, Amount, Events, Views};
use crate::lists::{self, Form};
use crate::place::bearer;
use crate::real::{person, route, trusting};
use crate::report::FederatedSection;
use crate::writers::{Writers, fill, namespace};

const COLLECTION: &str = "/api/v1/configmaps";
const SHARD: &str = "bench";
const CALLER: (&str, &str) = ("operators", "portolan-dev-bench");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");

pub(crate) async fn run(amount: Amount, step: fn(&str)) -> anyhow::Result<FederatedSection> {
    step(&format!(
        "API servers: starting {} members, hub, agents and router",
        amount.members
    ));
    let names: Vec<String> = (0..amount.members).map(|number| format!("member-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let testbed = Testbed::start(&[&["hub"], names.as_slice()].concat()).await?;
    let owns: Vec<_> = names.iter().map(|name| (*name, [namespace(name)])).collect();
    let owns: Vec<_> = owns
        .iter()
        .map(|(name, [namespace])| (*name, [namespace.as_str()]))
        .collect();
    let owns: Vec<_> = owns
        .iter()
        .map(|(name, namespaces)| (*name, namespaces.as_slice()))
        .collect();
    let options = FleetOptions {
        hub: "hub",
        members: &names,
        manifests: &shard::federated(SHARD, names[0], &owns),
        past_stage: true,
        ..FleetOptions::default()
    };
    for name in &names {
        create_namespace(&testbed, name).await?;
    }
    let fleet = Fleet::start(&testbed, options).await?;
    step(&format!("API servers: {} ConfigMaps in each", amount.pods));
    let writers = fill(&testbed, &names, amount.pods).await?;
    let mut views = views(&testbed, &fleet, &names, writers).await?;
    step("API servers: lists");
    let mut tables = Vec::new();
    for form in [Form::WHOLE_JSON, Form::PAGED_JSON] {
        tables.push(lists::run(views.ways(), form, amount.rounds).await?);
    }
    accept(&mut views, &PROTOBUF);
    for form in [Form::WHOLE_PROTOBUF, Form::PAGED_PROTOBUF] {
        tables.push(lists::run(views.ways(), form, amount.rounds).await?);
    }
    accept(&mut views, &HeaderValue::from_static("application/json"));
    step(&format!("API servers: {} events a second", amount.rate));
    let events = federated::bursts(&views, amount, amount.rate).await?;
    step(&format!("API servers: {} idle merged watches", amount.watches));
    let legs = federated::legs(&views, amount).await?;
    Ok(FederatedSection {
        of: format!(
            "{} ConfigMaps of 3 KB at each of {} API servers",
            amount.pods, amount.members
        ),
        lists: tables,
        events,
        legs,
    })
}

async fn create_namespace(testbed: &Testbed, member: &str) -> anyhow::Result<()> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(testbed.cluster(member).client().await?);
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(member)}});
    let by = PatchParams::apply("portolan-bench");
    namespaces.patch(&namespace(member), &by, &Patch::Apply(&body)).await?;
    Ok(())
}

async fn views(testbed: &Testbed, fleet: &Fleet, members: &[&str], writers: Writers) -> anyhow::Result<Views> {
    let (router, hub_ca) = (fleet.router_url()?, fleet.ca_pem()?);
    let person = trusting(&hub_ca, Some(person(fleet)?))?;
    let json = bearer("none")?.remove(ACCEPT).context("an Accept header")?;
    let (mut direct, mut explicit, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for name in members {
        let member = testbed.cluster(name);
        // Who the router acts as in the home cluster; elsewhere `dev up` has made the same account.
        let own = bearer(&member.issue_token(CALLER.0, CALLER.1, &[], None).await?)?;
        direct.push(route(&member.direct_url(), trusting(member.ca_pem(), None)?, "", &own)?);
        let headers = http::HeaderMap::from_iter([(ACCEPT, json.clone())]);
        explicit.push(route(&router, person.clone(), &format!("/clusters/{name}"), &headers)?);
        servers.push(member.apiserver_pid().context("no API server")?);
    }
    let merged = bearer(&fleet.merged_token(SHARD)?)?;
    Ok(Views {
        direct,
        explicit,
        merged: route(&router, trusting(&hub_ca, None)?, "", &merged)?,
        forwarder: None,
        router: fleet.process("router")?.pid,
        servers,
        collection: COLLECTION,
        events: Events::Writers(writers),
    })
}

fn accept(views: &mut Views, value: &HeaderValue) {
    let Views {
        direct,
        explicit,
        merged,
        ..
    } = views;
    for route in direct.iter_mut().chain(explicit).chain([merged]) {
        route.headers.insert(ACCEPT, value.clone());
    }
}
