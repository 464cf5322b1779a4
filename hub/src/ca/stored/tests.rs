//! Steps of a rotation on a scripted Secret.

use serde_json::json;

use super::*;
use crate::ca::load_or_create;
use crate::testing::{Objects, faulty_api, scripted_api};

const SECRET: &str = "/api/v1/namespaces/n/secrets/portolan-ca";

/// From where the Secret is.
async fn advance(client: &Client, namespace: &str, step: Step) -> Result<Roots, StepError> {
    let from = load_or_create(client, namespace).await.unwrap().phase();
    super::advance(client, namespace, (from, step)).await
}

async fn refusal(client: &Client, step: Step) -> String {
    advance(client, "n", step).await.unwrap_err().to_string()
}

fn keys(objects: &Objects) -> Vec<String> {
    objects.lock()[SECRET]["data"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

#[tokio::test]
async fn each_step_is_kept_may_be_repeated_and_needs_the_one_before() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let old = load_or_create(&client, "n").await.unwrap();
    assert!(
        refusal(&client, Step::Issue)
            .await
            .contains("portolanctl ca rotate first")
    );

    let both = advance(&client, "n", Step::Begin).await.unwrap();
    assert_eq!((both.phase(), both.issuing.pem()), (Phase::Both, old.issuing.pem()));
    let again = advance(&client, "n", Step::Begin).await.unwrap();
    assert_eq!(again.bundle(), both.bundle(), "no third CA");
    assert!(refusal(&client, Step::Finish).await.contains("--issue first"));
    // A hub that starts goes on.
    assert_eq!(load_or_create(&client, "n").await.unwrap().bundle(), both.bundle());

    let new = advance(&client, "n", Step::Issue).await.unwrap();
    assert_eq!(new.phase(), Phase::New);
    assert_ne!(new.issuing.pem(), old.issuing.pem());
    assert_eq!(
        keys(&objects),
        ["previous.crt", "tls.crt", "tls.key"],
        "the old key is gone"
    );
    let trusted = |roots: &Roots| TrustStore::from_pem(&roots.bundle()).unwrap().fingerprint();
    assert_eq!(trusted(&new), trusted(&both), "the same two");
    assert_eq!(advance(&client, "n", Step::Issue).await.unwrap().bundle(), new.bundle());
    assert!(refusal(&client, Step::Begin).await.contains("--finish"));
    assert!(refusal(&client, Step::Abort).await.contains("--finish"));

    let one = advance(&client, "n", Step::Finish).await.unwrap();
    assert_eq!((one.phase(), one.bundle()), (Phase::One, new.issuing.pem().to_owned()));
    assert_eq!(advance(&client, "n", Step::Finish).await.unwrap().phase(), Phase::One);
    assert_eq!(load_or_create(&client, "n").await.unwrap().bundle(), one.bundle());
}

#[tokio::test]
async fn a_rotation_that_is_aborted_leaves_no_trace() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let old = load_or_create(&client, "n").await.unwrap();
    advance(&client, "n", Step::Begin).await.unwrap();
    assert_eq!(advance(&client, "n", Step::Abort).await.unwrap().bundle(), old.bundle());
    assert_eq!(keys(&objects), ["tls.crt", "tls.key"]);
}

#[tokio::test]
async fn a_ca_of_ones_own_is_replaced_by_one_of_ones_own() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let [mine, next] = ["corp CA", "corp CA 2"].map(|name| CertificateAuthority::generate(name).unwrap());
    let mut secret = serde_json::to_value(secret_of(&mine)).unwrap();
    secret["metadata"]["resourceVersion"] = json!("1");
    objects.lock().insert(SECRET.to_owned(), secret);
    let why = refusal(&client, Step::Begin).await;
    assert!(
        why.contains("corp CA") && why.contains("next.crt and next.key"),
        "{why}"
    );

    let put = |certificate: &str, key: &str| {
        let data = json!({"next.crt": ByteString(certificate.as_bytes().to_vec()), "next.key": ByteString(key.as_bytes().to_vec())});
        let mut objects = objects.lock();
        let kept = objects.get_mut(SECRET).unwrap()["data"].as_object_mut().unwrap();
        kept.extend(data.as_object().unwrap().clone());
    };
    // A key of another one: nothing that the hub could start with is lost by it.
    put(next.pem(), mine.key_pem().expose());
    assert_eq!(load_or_create(&client, "n").await.unwrap().phase(), Phase::One);
    assert!(refusal(&client, Step::Begin).await.contains("no CA that can be used"));
    put(next.pem(), next.key_pem().expose());
    assert_eq!(advance(&client, "n", Step::Begin).await.unwrap().phase(), Phase::Both);
    assert_eq!(
        advance(&client, "n", Step::Issue).await.unwrap().issuing.pem(),
        next.pem()
    );
}

#[tokio::test]
async fn a_step_whose_answer_is_lost_is_taken_once() {
    let (objects, faults) = (Objects::default(), crate::testing::SharedFaults::default());
    let client = faulty_api(objects, faults.clone());
    load_or_create(&client, "n").await.unwrap();
    faults.lock().lost_after = Some(0);
    assert!(super::advance(&client, "n", (Phase::One, Step::Begin)).await.is_err());
    let kept = load_or_create(&client, "n").await.unwrap();
    assert_eq!(kept.phase(), Phase::Both);
    assert_eq!(
        advance(&client, "n", Step::Begin).await.unwrap().bundle(),
        kept.bundle()
    );
}

#[tokio::test]
async fn who_judged_another_phase_takes_no_step() {
    let client = scripted_api(Objects::default());
    load_or_create(&client, "n").await.unwrap();
    advance(&client, "n", Step::Begin).await.unwrap();
    advance(&client, "n", Step::Issue).await.unwrap();
    // A hub that has not heard of the last step yet, and so did not look who has which certificate.
    for stale in [Phase::One, Phase::Both] {
        let refused = super::advance(&client, "n", (stale, Step::Finish)).await.unwrap_err();
        assert!(refused.to_string().contains("another hub"), "{refused}");
    }
    assert_eq!(load_or_create(&client, "n").await.unwrap().phase(), Phase::New);
}
