//! Lines into a buffer, spans to a collector on loopback or to none at all.

use super::*;
use clap::Parser;
use opentelemetry_sdk::error::OTelSdkError;
use std::io::Write;

mod collector;

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

fn parse(args: &[&str]) -> Result<TelemetryArgs, clap::Error> {
    Ok(Program::try_parse_from([&["program"], args].concat())?.telemetry)
}

/// A sink that tests can read.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone())
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn output(&self) -> line::Output {
        line::Output {
            lines: batch::Lines::new(self.clone()),
            colours: false,
        }
    }
}

fn with_buffer(args: &TelemetryArgs) -> (Telemetry, Dispatch, Buffer) {
    let buffer = Buffer::default();
    let (telemetry, dispatch) = build_with("portolan-test", args, buffer.output()).unwrap();
    (telemetry, dispatch, buffer)
}

#[test]
fn flags_have_defaults_and_are_checked() {
    let args = parse(&[]).unwrap();
    assert_eq!(args, TelemetryArgs::default());
    assert_eq!(args.endpoint(), None);
    let args = parse(&["--otlp-endpoint=", "--otel-exporter-otlp-endpoint=http://b:4317"]).unwrap();
    assert_eq!(args.endpoint(), None, "given as empty is off");
    assert_eq!(
        parse(&["--otel-exporter-otlp-endpoint=http://b:1"]).unwrap().endpoint(),
        Some("http://b:1")
    );
    assert_eq!(
        parse(&["--trace-sample-ratio=1"])
            .unwrap()
            .trace_sample_ratio
            .to_string(),
        "1"
    );
    for bad in [
        "--trace-sample-ratio=1.1",
        "--trace-sample-ratio=-1",
        "--trace-sample-ratio=NaN",
        "--log-format=xml",
    ] {
        assert!(parse(&[bad]).is_err(), "{bad}");
    }
    assert!(
        build(
            "portolan-test",
            &TelemetryArgs {
                log_level: "a=b=c".into(),
                ..TelemetryArgs::default()
            }
        )
        .is_err()
    );
}

#[test]
fn the_filter_is_changed_while_running_and_events_are_counted_regardless() {
    let (telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs {
        log_level: "warn".into(),
        ..TelemetryArgs::default()
    });
    let registry = crate::metrics::Registry::new("test");
    registry.root(|root| telemetry.register(root));
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info!("unseen");
        telemetry.set_log_level("info").unwrap();
        tracing::info!("seen");
        assert!(matches!(
            telemetry.set_log_level("="),
            Err(TelemetryError::Filter { .. })
        ));
        tracing::warn!("seen too");
    });
    assert_eq!(telemetry.log_level(), "info");
    assert_eq!(buffer.lines().len(), 2, "{:?}", buffer.lines());
    let text = registry.encode().unwrap();
    for line in [
        "log_events_total{level=\"info\"} 2",
        "log_events_total{level=\"warn\"} 1",
        "level=\"error\"} 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn json_lines_are_flat_and_carry_the_span() {
    let (_telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs::default());
    tracing::dispatcher::with_default(&dispatch, || {
        let _entered = tracing::info_span!("request", shard = 3).entered();
        tracing::info!(cluster = "east", "routed");
    });
    let line: serde_json::Value = serde_json::from_str(&buffer.lines()[0]).unwrap();
    assert_eq!(
        (&line["message"], &line["cluster"], &line["level"]),
        (&"routed".into(), &"east".into(), &"INFO".into())
    );
    assert_eq!(
        (&line["span"]["name"], &line["span"]["shard"]),
        (&"request".into(), &3.into())
    );
    assert!(line.get("trace_id").is_none(), "no collector, no trace: {line}");
}

#[test]
fn fields_that_a_span_learns_later_stand_in_its_lines() {
    use tracing::field::{Empty, display};
    let (_telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs::default());
    tracing::dispatcher::with_default(&dispatch, || {
        let span = tracing::info_span!("request", verb = Empty, code = Empty, why = Empty, ratio = Empty);
        span.record("why", display("said \"no\"\\ \n\u{1} ünd {"));
        span.record("verb", "get").record("code", 404).record("code", -1);
        span.record("ratio", f64::NAN);
        span.in_scope(|| tracing::info!("told"));
        tracing::info_span!("bare").in_scope(|| tracing::info!("told"));
    });
    let lines = buffer.lines();
    let told = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["span"].clone();
    let expected = serde_json::json!({
        "name": "request", "verb": "get", "code": -1, "why": "said \"no\"\\ \n\u{1} ünd {", "ratio": null,
    });
    assert_eq!(told(&lines[0]), expected);
    assert_eq!(told(&lines[1]), serde_json::json!({"name": "bare"}));
}

#[tokio::test]
async fn an_access_line_is_as_any_other() {
    let (telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs::default());
    tracing::dispatcher::with_default(&dispatch, || {
        let (path, shard, bytes) = ("/a\"b\\c\u{1}ü", None::<&str>, u64::MAX);
        tracing::info!(target: ACCESS, path, shard, status = Some(200), bytes, audited = true, "request");
        tracing::info!(target: "other", path, shard, status = Some(200), bytes, audited = true, "request");
    });
    telemetry.shutdown().await;
    let lines = buffer.lines();
    let line =
        |number: usize| -> serde_json::Map<String, serde_json::Value> { serde_json::from_str(&lines[number]).unwrap() };
    let (mut access, mut other) = (line(0), line(1));
    let names = |line: &str| line.matches("\":").count();
    assert_eq!(names(&lines[0]), names(&lines[1]), "{lines:?}");
    assert_eq!(access.remove("target").unwrap(), "access");
    assert_eq!(other.remove("target").unwrap(), "other");
    let times = [&mut access, &mut other].map(|line| line.remove("timestamp").unwrap().to_string());
    assert!(times[0] <= times[1] && times[0].len() == times[1].len(), "{times:?}");
    assert_eq!(access, other);
}

#[tokio::test]
async fn access_lines_wait_for_company_and_keep_their_place() {
    let (telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs::default());
    let access = |n| tracing::dispatcher::with_default(&dispatch, || tracing::info!(target: ACCESS, n, "request"));
    let told = || -> Vec<serde_json::Value> {
        let number = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].clone();
        buffer.lines().iter().map(number).collect()
    };
    access(1);
    access(2);
    tracing::dispatcher::with_default(&dispatch, || tracing::warn!(n = 3, "at once"));
    assert_eq!(told(), [1, 2, 3]);
    access(4);
    telemetry.shutdown().await;
    assert_eq!(told(), [1, 2, 3, 4]);
    access(5);
    let later = async {
        while told().len() < 5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let late = tokio::time::timeout(Duration::from_secs(10), later).await;
    assert!(late.is_ok(), "the line that waits alone is written too");
    // More than may wait.
    (6..4000).for_each(access);
    telemetry.shutdown().await;
    assert_eq!(told(), (1..4000).collect::<Vec<_>>());
}

/// A full pipe: whoever writes to it waits for ever.
#[derive(Clone, Default)]
struct Pipe {
    buffer: Buffer,
    stuck: Arc<Mutex<()>>,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _read = self.stuck.lock();
        self.buffer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nobody_and_loses_what_finds_no_room() {
    const LINES: usize = 60_000;
    let pipe = Pipe::default();
    let output = line::Output {
        lines: batch::Lines::new(pipe.clone()),
        colours: false,
    };
    let (telemetry, dispatch) = build_with("portolan-test", &TelemetryArgs::default(), output).unwrap();
    let registry = crate::metrics::Registry::new("test");
    registry.root(|root| telemetry.register(root));
    let stuck = pipe.stuck.lock();
    tracing::dispatcher::with_default(&dispatch, || {
        for n in 0..LINES {
            tracing::info!(target: ACCESS, n, path = "/api/v1/namespaces/default/pods", "request");
        }
        tracing::warn!("it has room of its own");
        let begun = std::time::Instant::now();
        tracing::warn!("nor does it wait");
        assert!(begun.elapsed() < Duration::from_millis(900), "as nobody reads the log");
    });
    drop(stuck);
    telemetry.shutdown().await;
    let lines = pipe.buffer.lines();
    let access = lines.iter().filter(|line| line.contains("\"access\"")).count();
    let text = registry.encode().unwrap();
    assert!(
        access < LINES && lines.len() == access + 2,
        "{access} of {}",
        lines.len()
    );
    let dropped = format!("log_lines_dropped_total {}", LINES - access);
    assert!(text.contains(&dropped), "{dropped}: {text}");
    tracing::dispatcher::with_default(&dispatch, || tracing::warn!("at once again"));
    assert!(pipe.buffer.lines().last().unwrap().contains("at once again"));
}

#[test]
fn text_lines_have_no_colours_in_a_file() {
    let (_telemetry, dispatch, buffer) = with_buffer(&TelemetryArgs {
        log_format: LogFormat::Text,
        ..TelemetryArgs::default()
    });
    tracing::dispatcher::with_default(&dispatch, || tracing::info!(cluster = "east", "routed"));
    let line = &buffer.lines()[0];
    assert!(
        line.contains("INFO") && line.contains("routed cluster=\"east\"") && !line.contains('\x1b'),
        "{line}"
    );
}

#[tokio::test]
async fn a_bad_endpoint_is_told_at_once() {
    let args = TelemetryArgs {
        otlp_endpoint: Some("not a url".into()),
        ..TelemetryArgs::default()
    };
    let error = build("portolan-test", &args).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, TelemetryError::Exporter { endpoint, .. } if endpoint == "not a url"),
        "{error}"
    );
}

#[test]
fn shutdown_twice_is_no_error() {
    let provider = SdkTracerProvider::builder().build();
    provider.shutdown().unwrap();
    assert!(matches!(provider.shutdown(), Err(OTelSdkError::AlreadyShutdown)));
}
