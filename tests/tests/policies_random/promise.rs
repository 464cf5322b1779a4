//! A policy that says of each request by which of its versions the request was judged: its rules are always edited together,
//! and name the version.

use std::sync::atomic::{AtomicU32, Ordering};

use http::Method;
use portolan_tests::door::{Answer, Line, request};
use serde_json::{Value, json};

use crate::{Kind, NAMESPACE};

/// One policy, about one namespace.
pub(crate) struct Promise {
    pub(crate) kind: Kind,
    pub(crate) namespace: &'static str,
    shard: &'static str,
    /// The newest version that was written and is good.
    good: AtomicU32,
}

impl Promise {
    pub(crate) fn new(kind: Kind, shard: &'static str, namespace: &'static str) -> Self {
        Self {
            kind,
            namespace,
            shard,
            good: AtomicU32::new(0),
        }
    }

    /// The newest good version.
    pub(crate) fn good(&self) -> u32 {
        self.good.load(Ordering::SeqCst)
    }

    /// The next good version, which may be heard of from now on.
    pub(crate) fn next(&self) -> Value {
        self.spec(self.good.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// As a spec that lets everything pass.
    pub(crate) fn void(&self) -> Value {
        let mut spec = self.spec(self.good());
        for list in ["rateLimitings", "httpFault"] {
            for rule in spec[list].as_array_mut().into_iter().flatten() {
                let (word, _) = rule["name"].as_str().unwrap().split_once('-').unwrap();
                rule["name"] = json!(format!("void-{word}"));
                match self.kind {
                    Kind::CircuitBreaker => rule["triggerPolicy"] = json!("ForceClosed"),
                    Kind::FaultInjection => {
                        rule["match"]["resources"][0]["verbs"] = json!(["delete"]);
                    }
                }
            }
        }
        spec
    }

    /// Of two limits one refuses: which of them, changes with each version. Both faults hit every request.
    fn spec(&self, version: u32) -> Value {
        let resources =
            json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": [self.namespace]}]);
        let mut spec = json!({"selector": {"matchLabels": {"shard": self.shard}}});
        match self.kind {
            Kind::CircuitBreaker => {
                let limit = |name: &str, refuses: bool| {
                    json!({
                        "name": format!("{name}-{version}"), "resourceRules": resources,
                        "triggerPolicy": if refuses { "ForceOpened" } else { "ForceClosed" },
                    })
                };
                let even = version.is_multiple_of(2);
                spec["rateLimitings"] = json!([limit("even", even), limit("odd", !even)]);
            }
            Kind::FaultInjection => {
                spec["httpFault"] = json!([
                    {"name": format!("late-{version}"), "delay": {"fixedDelay": "1ms"}, "match": {"resources": resources}},
                    {"name": format!("fails-{version}"), "abort": {"httpStatus": status(version)}, "match": {"resources": resources}},
                ]);
            }
        }
        spec
    }

    /// What it is about.
    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps/nothing", self.namespace)
    }

    /// Asks for it once; by which version that was judged.
    pub(crate) async fn asked(&self, line: &Line) -> anyhow::Result<Result<u32, String>> {
        let answer = line.ask(request(Method::GET, &self.path(), &[], &[])?).await?;
        let version = match self.kind {
            Kind::CircuitBreaker => self.refused_by(&answer),
            Kind::FaultInjection => self.failed_by(&answer),
        };
        Ok(version.ok_or_else(|| {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            format!(
                "{}: {} {:?} {body}",
                self.namespace,
                answer.status,
                answer.header("portolan-fault")
            )
        }))
    }

    /// By the one rule of its version that refuses.
    fn refused_by(&self, answer: &Answer) -> Option<u32> {
        let body = answer.json();
        let cause = body["details"]["causes"][0]["message"].as_str()?;
        let of_object = format!("CircuitBreaker/{NAMESPACE}/{}/", self.namespace);
        let (rule, _) = cause.strip_prefix(&of_object)?.split_once(':')?;
        let (word, version) = rule.split_once('-')?;
        let version: u32 = version.parse().ok()?;
        let expected = if version.is_multiple_of(2) { "even" } else { "odd" };
        (answer.status == 503 && word == expected).then_some(version)
    }

    /// By both faults of one version, with its code. Whose order was taken back while the request was late fails no more; its
    /// header still names both.
    fn failed_by(&self, answer: &Answer) -> Option<u32> {
        let of_object = format!("{NAMESPACE}/{}/", self.namespace);
        let (late, fails) = answer.header("portolan-fault").split_once(", ")?;
        let version = late.strip_prefix(&of_object)?.strip_prefix("late-")?;
        let both = fails == format!("{of_object}fails-{version}");
        let version: u32 = version.parse().ok()?;
        let coded = answer.status == status(version) || (answer.status == 404 && version < self.good());
        (both && coded).then_some(version)
    }
}

/// The code that a version fails with: neighbours have different ones, and none is one that a router says by itself.
fn status(version: u32) -> u16 {
    let of = u16::try_from(version % 50).expect("it is below 50");
    540 + of
}
