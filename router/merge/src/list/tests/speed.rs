//! How fast: `cargo test --release -p portolan-merge speed -- --ignored --nocapture`.

#![expect(clippy::cast_precision_loss, reason = "rates")]

use std::time::Instant;

use super::*;
use crate::wire;

/// About a pod: 3 KB, a quarter of it managed fields.
fn pod(index: usize) -> String {
    let env: Vec<_> = (0..14)
        .map(|at| format!(r#"{{"name":"VARIABLE_{at}","value":"some value {at}"}}"#))
        .collect();
    let fields = r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{}}}}}"#;
    let manager =
        format!(r#"{{"manager":"kubelet","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#);
    let conditions =
        r#"{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-11-01T10:00:00Z"}"#;
    format!(
        r#"{{"metadata":{{"name":"web-{index:05}","namespace":"ns-{}","uid":"0f6c1c2e-6f0e-4a44-9f3e-{index:012}","resourceVersion":"{index}","managedFields":[{}]}},"spec":{{"containers":[{{"name":"web","image":"registry.example.com/team/web:1.2.3","env":[{}]}}]}},"status":{{"conditions":[{}]}}}}"#,
        index % 50,
        [manager.clone(), manager.clone(), manager.clone(), manager].join(","),
        env.join(","),
        [conditions; 8].join(","),
    )
}

fn chunks(body: Vec<u8>) -> Body {
    let mut body = Bytes::from(body);
    let mut pieces = VecDeque::new();
    while !body.is_empty() {
        pieces.push_back(body.split_to(body.len().min(16 << 10)));
    }
    Body { pieces, filter: None }
}

fn measure(what: &str, format: ListFormat, body: impl Fn() -> Body) {
    let bodies: Vec<_> = (0..5).map(|_| body()).collect();
    let bytes: usize = bodies.iter().flat_map(|body| &body.pieces).map(Bytes::len).sum();
    let legs = bodies.iter().map(|body| ListLeg {
        cluster: "east".into(),
        filter: body.filter.clone(),
    });
    let mut merge = ListMerge::new(format, legs.collect(), options());
    let mut out = VecDeque::new();
    let mut bodies = bodies;
    let (before, mut passed) = (cpu(), 0);
    loop {
        match merge.wants() {
            Wants::Leg(leg) => match bodies[leg].pieces.pop_front() {
                Some(piece) => merge.push(leg, piece, &mut out).unwrap(),
                None => merge.end(leg, &mut out).unwrap(),
            },
            Wants::Meta => merge.set_meta(meta(), &mut out).unwrap(),
            Wants::Done => break,
        }
        passed += out.drain(..).map(|piece| piece.len()).sum::<usize>();
    }
    let seconds = (cpu() - before) / 1e9;
    println!(
        "{what}: {:.0} MB/s of {} MB, {} MB out",
        bytes as f64 / 1e6 / seconds,
        bytes >> 20,
        passed >> 20
    );
}

/// Nanoseconds on a processor, where that can be told: other work on the machine does not count.
fn cpu() -> f64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let own = own.and_then(|text| text.split(' ').next()?.parse().ok());
    own.unwrap_or_else(|| BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as f64)
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let pods: Vec<_> = (0..10_000).map(pod).collect();
    let json = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
        pods.join(",")
    );
    println!("{} bytes per pod", json.len() / pods.len());
    let names: Vec<_> = (0..25).map(|index| format!("ns-{index}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut list = Vec::new();
    wire::put(&mut list, 1, b"");
    for (index, pod) in pods.iter().enumerate() {
        let (mut meta, mut object) = (Vec::new(), Vec::new());
        wire::put(&mut meta, wire::META_NAME, format!("web-{index}").as_bytes());
        wire::put(&mut meta, wire::META_NAMESPACE, format!("ns-{}", index % 50).as_bytes());
        wire::put(&mut object, 1, &meta);
        wire::put(&mut object, 2, &pod.as_bytes()[..pod.len() / 2]);
        wire::put(&mut list, 2, &object);
    }
    let mut protobuf = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod".to_vec();
    wire::put(&mut protobuf, 2, &list);
    for _ in 0..3 {
        measure("json", ListFormat::Json, || chunks(json.clone().into_bytes()));
        measure("json filtered", ListFormat::Json, || {
            chunks(json.clone().into_bytes()).only(&names)
        });
        measure("protobuf", ListFormat::Protobuf, || chunks(protobuf.clone()));
        measure("protobuf filtered", ListFormat::Protobuf, || {
            chunks(protobuf.clone()).only(&names)
        });
    }
}
