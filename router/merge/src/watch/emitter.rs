//! What the client gets: members' frames as they came or nearly so, and the events that no member sent.

use super::compose::{EventTemplate, Stub};
use super::event::{Event, around};
use super::frame::Frame;
use super::leg::Leg;
use super::output::Output;
use super::pending::PendingDelete;
use super::table::SentColumns;
use super::{Counts, WatchFormat};

/// Writes frames into an [`Output`].
pub(super) struct Emitter {
    pub(super) format: WatchFormat,
    pub(super) counts: Counts,
    /// Of what type the objects are; known from the first word of any member on.
    template: Option<EventTemplate>,
    columns: SentColumns,
}

impl Emitter {
    pub(super) fn new(format: WatchFormat, cluster_column: bool) -> Self {
        Self {
            format,
            counts: Counts::default(),
            template: None,
            columns: SentColumns::new(cluster_column),
        }
    }

    /// Rows of Tables lose their objects.
    pub(super) fn hide_objects(&mut self) {
        self.columns.hide_objects();
    }

    /// True if it was not known before.
    pub(super) fn learn_type(&mut self, event: &Event<'_>) -> bool {
        let learns = self.template.is_none() && !event.meta.kind.is_empty();
        if learns {
            let template = EventTemplate::new(self.format, &event.meta.kind, &event.meta.api_version);
            self.template = Some(template);
        }
        learns
    }

    /// Whether bookmarks and deletions can be written.
    pub(super) fn knows_type(&self) -> bool {
        self.template.is_some()
    }

    /// Whether no client misses anything in an object of metadata alone: it gets no more of any, or decodes protobuf, whose fields
    /// may all be missing.
    pub(super) fn tells_metadata(&self) -> bool {
        self.format != WatchFormat::Json || self.template.as_ref().is_some_and(EventTemplate::is_of_metadata)
    }

    /// A frame that the client does not get: only a Table's columns may be in it.
    pub(super) fn skip(&mut self, leg: &mut Leg, frame: &Frame<'_>) {
        if self.format == WatchFormat::Table {
            self.columns.read(&mut leg.stream.columns, frame.bytes());
        }
    }

    /// A frame as it came, unless it is to be another event or another Table.
    pub(super) fn forward(
        &mut self,
        leg: &mut Leg,
        frame: &Frame<'_>,
        event_type: Option<&'static str>,
        out: &mut Output,
    ) {
        let Frame {
            chunk, range, event, ..
        } = frame;
        self.counts.events += 1;
        if self.format == WatchFormat::Table {
            let aligned = self
                .columns
                .align(&mut leg.stream.columns, &leg.cluster, frame.bytes(), event_type);
            out.push(aligned.unwrap_or_else(|| chunk.slice(range.clone())));
        } else if let Some(event_type) = event_type {
            let (before, after) = around(self.format, event_type, event.object.len());
            out.push(before);
            out.forward(chunk, range.start + event.object.start..range.start + event.object.end);
            if !after.is_empty() {
                out.push(after);
            }
        } else {
            out.forward(chunk, range.clone());
        }
    }

    /// False if nothing is known of the objects' type.
    pub(super) fn bookmark(&mut self, version: &str, initial_events_end: bool, out: &mut Output) -> bool {
        let Some(template) = &self.template else {
            return false;
        };
        out.push(template.bookmark(version, initial_events_end, self.columns.stub("")));
        self.counts.bookmarks += 1;
        true
    }

    /// A DELETED of what nobody has any more, and its length. `None` if it cannot be written.
    pub(super) fn deleted(&mut self, key: &str, object: &PendingDelete, out: &mut Output) -> Option<usize> {
        let (namespace, name) = key.split_once('/')?;
        let stub = Stub {
            namespace,
            name,
            uid: &object.uid.text(),
            version: &object.version.to_string(),
            initial_events_end: false,
        };
        let template = self.template.as_ref()?;
        let event = template.event("DELETED", stub, self.columns.stub(name));
        let length = event.len();
        out.push(event);
        self.counts.events += 1;
        Some(length)
    }
}
