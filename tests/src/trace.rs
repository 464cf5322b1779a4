//! A trace as Jaeger's query API tells it, read into a tree.

use std::fmt::Write as _;

use serde_json::Value;

/// One span with its children, oldest first.
#[derive(Debug, Clone)]
pub struct Span {
    /// `service.name` of its program.
    pub service: String,
    /// Operation name.
    pub name: String,
    /// Attributes as text.
    pub tags: Vec<(String, String)>,
    /// Microseconds since the epoch.
    pub start: u64,
    /// Microseconds.
    pub duration: u64,
    /// Its trace and itself, in hex.
    pub id: (String, String),
    /// Spans of other traces, or of none, that it names: their trace and themselves.
    pub links: Vec<(String, String)>,
    /// What happened within it, by name.
    pub events: Vec<String>,
    /// Spans it is the parent of.
    pub children: Vec<Span>,
}

impl Span {
    /// An attribute's value.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    }

    /// The first below it, or itself, of this name.
    pub fn named(&self, name: &str) -> Option<&Self> {
        self.walk().into_iter().find(|span| span.name == name)
    }

    /// This span and everything below it.
    pub fn walk(&self) -> Vec<&Self> {
        std::iter::once(self)
            .chain(self.children.iter().flat_map(Self::walk))
            .collect()
    }

    /// The tree as indented lines: service, operation, duration, the attributes that are asked for.
    pub fn render(&self, tags: &[&str]) -> String {
        let mut text = String::new();
        self.render_into(&mut text, 0, tags);
        text
    }

    fn render_into(&self, text: &mut String, depth: usize, tags: &[&str]) {
        let shown = tags
            .iter()
            .filter_map(|key| self.tag(key).map(|value| format!("{key}={value}")));
        let shown = shown.collect::<Vec<_>>().join(" ");
        let milliseconds = format!("{}.{:03}", self.duration / 1000, self.duration % 1000);
        let _ = writeln!(
            text,
            "{:indent$}{} {} {milliseconds} ms {shown}",
            "",
            self.service,
            self.name,
            indent = depth * 2
        );
        for child in &self.children {
            child.render_into(text, depth + 1, tags);
        }
    }
}

/// All trees of an answer with several traces.
pub fn trees(answer: &Value) -> Vec<Span> {
    let traces = answer["data"].as_array().into_iter().flatten();
    traces
        .flat_map(|trace| roots(&serde_json::json!({"data": [trace]})))
        .collect()
}

/// The roots of `/api/traces/{id}`: spans whose parent is not in the trace.
pub fn roots(answer: &Value) -> Vec<Span> {
    let trace = &answer["data"][0];
    let spans: Vec<&Value> = trace["spans"].as_array().into_iter().flatten().collect();
    let known = |id: &str| spans.iter().any(|span| span["spanID"] == id);
    let mut roots: Vec<Span> = spans
        .iter()
        .filter(|span| parent(span).is_none_or(|id| !known(&id)))
        .map(|span| build(span, &spans, &trace["processes"]))
        .collect();
    roots.sort_by_key(|span| span.start);
    roots
}

fn build(span: &Value, all: &[&Value], processes: &Value) -> Span {
    let id = span["spanID"].as_str().unwrap_or_default();
    let mut children: Vec<Span> = all
        .iter()
        .filter(|other| parent(other).as_deref() == Some(id))
        .map(|child| build(child, all, processes))
        .collect();
    children.sort_by_key(|child| child.start);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let tags = span["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|tag| (text(&tag["key"]), text(&tag["value"])))
        .collect();
    let process = span["processID"].as_str().unwrap_or_default();
    Span {
        service: text(&processes[process]["serviceName"]),
        name: text(&span["operationName"]),
        tags,
        start: span["startTime"].as_u64().unwrap_or_default(),
        duration: span["duration"].as_u64().unwrap_or_default(),
        id: (text(&span["traceID"]), id.to_owned()),
        links: links(span),
        events: events(span),
        children,
    }
}

fn links(span: &Value) -> Vec<(String, String)> {
    let references = span["references"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    references
        .filter(|reference| reference["refType"] == "FOLLOWS_FROM")
        .map(|reference| (text(&reference["traceID"]), text(&reference["spanID"])))
        .collect()
}

fn events(span: &Value) -> Vec<String> {
    let logs = span["logs"].as_array().into_iter().flatten();
    let fields = logs.flat_map(|log| log["fields"].as_array().into_iter().flatten());
    fields
        .filter(|field| field["key"] == "event")
        .filter_map(|field| field["value"].as_str().map(ToOwned::to_owned))
        .collect()
}

fn parent(span: &Value) -> Option<String> {
    let references = span["references"].as_array()?;
    let parent = references.iter().find(|reference| reference["refType"] == "CHILD_OF")?;
    parent["spanID"].as_str().map(ToOwned::to_owned)
}
