//! The form of log lines, with the ids of the current trace in JSON so that a line leads to its trace.
//!
//! Access lines are written by `access`: there is one for each request. Caller: `telemetry::build`; tests bring a writer of
//! their own.

use std::fmt;
use std::io::IsTerminal;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer as fmt_layer};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::batch::{ACCESS, Lines};
use super::fields::SpanFields;
use super::{LogFormat, access};

pub(super) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Where lines go, and whether colours are understood there.
pub(super) struct Output {
    pub(super) lines: Lines,
    pub(super) colours: bool,
}

/// stdout belongs to what a program prints as its result.
pub(super) fn stderr() -> Output {
    Output {
        lines: Lines::new(std::io::stderr()),
        colours: std::io::stderr().is_terminal(),
    }
}

pub(super) fn layer(format: LogFormat, output: Output) -> BoxedLayer {
    let layer = fmt_layer().with_writer(output.lines);
    match format {
        LogFormat::Text => layer.with_ansi(output.colours).boxed(),
        LogFormat::Json => {
            let json = format::format().json().flatten_event(true).with_span_list(false);
            layer
                .with_ansi(false)
                .fmt_fields(SpanFields)
                .event_format(WithTrace(json))
                .boxed()
        }
    }
}

/// A JSON format whose object is given `trace_id` and `span_id` when a span is recorded.
struct WithTrace<F>(F);

impl<S, N, F> FormatEvent<S, N> for WithTrace<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if event.metadata().target() == ACCESS {
            return writer.write_str(&access::line(event));
        }
        // The span layer makes the entered span's context the current one.
        let context = Context::current();
        let span = context.span();
        let span = span.span_context();
        if !span.is_valid() {
            return self.0.format_event(ctx, writer, event);
        }
        let mut line = String::with_capacity(512);
        self.0.format_event(ctx, Writer::new(&mut line), event)?;
        match line.trim_end().strip_suffix('}') {
            Some(object) => {
                let (trace_id, span_id) = (span.trace_id(), span.span_id());
                writeln!(
                    writer,
                    "{object},\"trace_id\":\"{trace_id}\",\"span_id\":\"{span_id}\"}}"
                )
            }
            None => writer.write_str(&line),
        }
    }
}
