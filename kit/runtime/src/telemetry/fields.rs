//! A span's fields as one JSON object that grows at its end.
//!
//! tracing-subscriber's own `JsonFields` parses and rewrites the whole object for each field that is recorded later,
//! which cost the router a fifth of its CPU: its request span learns eight. A field that is recorded twice stands there
//! twice, and readers take the later one, as JSON readers do. Caller: `line`.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormattedFields;
use tracing_subscriber::fmt::format::{FormatFields, Writer};

/// Room for the later fields of a request, so that its text moves once.
const ROOM: usize = 384;

/// The format. Only for spans: events are written by the JSON format itself.
pub(super) struct SpanFields;

impl<'writer> FormatFields<'writer> for SpanFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut object = Object::new("{".to_owned());
        fields.record(&mut object);
        object.text.push('}');
        writer.write_str(&object.text)
    }

    fn add_fields(&self, current: &'writer mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        let mut object = Object::new(std::mem::take(&mut current.fields));
        object.text.reserve(ROOM.saturating_sub(object.text.len()));
        // What this format wrote ends with its brace.
        object.text.pop();
        fields.record(&mut object);
        object.text.push('}');
        current.fields = object.text;
        Ok(())
    }
}

/// The inside of an object, without its closing brace.
pub(super) struct Object {
    pub(super) text: String,
}

impl Object {
    pub(super) fn new(text: String) -> Self {
        Self { text }
    }

    /// A name that needs no quoting, and its value.
    pub(super) fn told(&mut self, name: &str, value: &str) {
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
        self.string(value);
    }

    /// `"name":`, after a comma if it is not the first.
    fn name(&mut self, field: &Field) {
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        // An identifier, which needs no quoting.
        self.text.push('"');
        self.text.push_str(field.name());
        self.text.push_str("\":");
    }

    fn string(&mut self, value: &str) {
        self.text.push('"');
        // All bytes are looked at, whatever the first ones are: so they are looked at many at a time.
        let special = |byte: u8| u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\');
        if value.bytes().fold(0, |any, byte| any | special(byte)) == 0 {
            self.text.push_str(value);
        } else {
            for character in value.chars() {
                self.escaped(character);
            }
        }
        self.text.push('"');
    }

    fn escaped(&mut self, character: char) {
        match character {
            '"' => self.text.push_str("\\\""),
            '\\' => self.text.push_str("\\\\"),
            '\n' => self.text.push_str("\\n"),
            control if control < ' ' => self.write(format_args!("\\u{:04x}", u32::from(control))),
            other => self.text.push(other),
        }
    }

    fn write(&mut self, value: fmt::Arguments<'_>) {
        // Writing to a String does not fail; a broken Debug ends its own value early.
        let _ = self.text.write_fmt(value);
    }
}

impl Visit for Object {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        let text = format!("{value:?}");
        self.string(&text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.string(value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.write(format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        self.text.push_str(itoa::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        self.text.push_str(itoa::Buffer::new().format(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        if value.is_finite() {
            self.write(format_args!("{value}"));
        } else {
            // JSON has no word for it.
            self.text.push_str("null");
        }
    }
}
