//! Proves that `src/gen` is what `proto/` says. `PORTOLAN_BLESS=1 cargo test -p portolan-wire` writes it anew.

use std::fs;
use std::path::Path;

const PROTOS: [&str; 5] = ["protocol", "enroll", "router", "agent", "bucket"];
const GENERATED: &str = "portolan.wire.v1.rs";

#[test]
#[allow(clippy::disallowed_methods, reason = "the one switch of a test that writes")]
fn generated_code_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = PROTOS.map(|name| root.join(format!("proto/portolan/wire/v1/{name}.proto")));
    let descriptors = protox::compile(files, [root.join("proto")]).expect("the protocol compiles");
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_transport(false) // its `connect` would clash with the streams of that name; channels are built by hand anyway
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("code is generated");
    let fresh = fs::read_to_string(out.path().join(GENERATED)).unwrap();
    let kept_path = root.join("src/gen").join(GENERATED);
    if std::env::var("PORTOLAN_BLESS").is_ok() {
        fs::write(&kept_path, &fresh).unwrap();
    }
    let kept = fs::read_to_string(&kept_path).unwrap();
    assert!(
        kept == fresh,
        "kit/wire/src/gen is stale: run PORTOLAN_BLESS=1 cargo test -p portolan-wire"
    );
}
