//! The same question to the API server and to `Selector`: is this text a selector, and which objects does it select?

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use portolan_crds::Selector;
use serde_json::json;

/// Labels of the objects that the selectors below are asked about.
fn objects() -> BTreeMap<String, BTreeMap<String, String>> {
    const LABELS: &str =
        "|k=|k=a|k=b|k=in|k=1|k=5|k=07|k=9223372036854775807|k=a,l=b|l=a|k=a,x.y/z=1|in=in|x.y/z=2,k=5|k=1.5";
    let pair = |pair: &str| {
        pair.split_once('=')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    let labels = LABELS.split('|').map(|text| text.split(',').filter_map(pair).collect());
    labels
        .enumerate()
        .map(|(index, labels)| (format!("object-{index:02}"), labels))
        .collect()
}

/// Taken and refused ones, between bars.
const SELECTORS: &str = concat!(
    "| |k|!k|k=|k==a|k=a|k!=a|k!=|k in (a,b)|k in (,a)|k in (a,,b)|k in (a,)|k in (,)|k notin (a)|",
    "k notin (a,b,)|k=a,l|k=a,l=b,!m|k>1|k>4,k<8|k<07|k > 1 , k|in in (in)|in|!in|x.y/z|x.y/z>1|k=in|",
    "k in(a)|k,k|k=a,k=b|k=,l|! k|k\t=\na|k in ()|k in (|k in a|k in (a b)|k in (a,,)|k in (,,)|k notin|",
    ",|k,|,k|k,,l|=a|k=a=b|k===a|k=!a|k l|!k=a|!!k|!k in (a)|k>|k>a|k>1.5|k>-1|-k|k-|k/|/k|a/b/c|A.b/c|",
    "K.b/c|k=a/b|k=-a|k=ä|k=(a)|k>9223372036854775808|k in (a))|(|k=a;l=b|k>9223372036854775806|k<0|",
    "k notin (),l|notin notin (notin)|k = in , l|k==|k==,l",
);

/// Texts thrown together from the grammar's own tokens, besides the ones above.
const SCRIBBLES: usize = 400;

fn scribbles(count: usize) -> impl Iterator<Item = String> {
    const TOKENS: [&str; 16] = [
        "k", "l", "in", "notin", "=", "==", "!=", "!", "(", ")", ",", ">", "<", " ", "a", "5",
    ];
    // A fixed sequence (Knuth's MMIX generator), so that a failure comes back.
    let mut state = 1_u64;
    let mut draw = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % below
    };
    (0..count).map(move |index| {
        let tokens = draw(9) + 1;
        let tail: String = (0..tokens).map(|_| TOKENS[draw(TOKENS.len())]).collect();
        // Half of them begin well, or hardly any would be taken.
        if index % 2 == 0 {
            tail
        } else {
            format!("k in (a{tail})")
        }
    })
}

/// Every selector is taken or refused by the API server as it is here, and selects the same objects; so does what we
/// print.
pub(super) async fn mean_the_same(client: &Client) {
    let objects = objects();
    create_objects(client, &objects).await;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "selectors");
    let written = SELECTORS.split('|').map(str::to_owned);
    for text in written.chain(scribbles(SCRIBBLES)) {
        let (theirs, ours) = (ask(&maps, &text).await, Selector::parse(&text));
        let (Ok(names), Ok(selector)) = (&theirs, &ours) else {
            assert_eq!(
                theirs.is_ok(),
                ours.is_ok(),
                "{text:?}: the API server {theirs:?}, we {ours:?}"
            );
            continue;
        };
        let matched = objects
            .iter()
            .filter(|(_, labels)| selector.matches(labels))
            .map(|(name, _)| name.clone());
        assert_eq!(*names, matched.collect::<Vec<_>>(), "{text:?}");
        assert_eq!(
            ask(&maps, &selector.to_string()).await.as_ref(),
            Ok(names),
            "{text:?} as {selector}"
        );
    }
}

async fn create_objects(client: &Client, objects: &BTreeMap<String, BTreeMap<String, String>>) {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "selectors"}})).unwrap();
    let (params, namespaces) = (PostParams::default(), Api::<Namespace>::all(client.clone()));
    namespaces.create(&params, &namespace).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "selectors");
    for (name, labels) in objects {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
        maps.create(&params, &map).await.unwrap();
    }
}

/// Names of our objects that the API server finds. The namespace's own (kube-root-ca.crt) comes when it comes.
async fn ask(maps: &Api<ConfigMap>, selector: &str) -> Result<Vec<String>, String> {
    let found = maps
        .list(&ListParams::default().labels(selector))
        .await
        .map_err(|error| error.to_string())?;
    let names = found.items.into_iter().filter_map(|map| map.metadata.name);
    Ok(names.filter(|name| name.starts_with("object-")).collect())
}
