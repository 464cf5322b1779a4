//! Where the events of a watch end, so that a stream can be ended between two of them.
//!
//! Bytes pass unread but for this: JSON events end with a newline, protobuf events are framed by a four-byte length.
//! A client that sees a stream end inside an event reports an error and lists again. Callers: `edge` for a drain, `inject`
//! for faults that come between events.

use crate::value::media::Media;
use http::HeaderMap;

/// Follows one watch's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventBoundary {
    /// Events end with a newline, and no newline is inside one.
    Lines { between: bool },
    /// Length-delimited: bytes of the length read so far, then bytes of the frame left.
    Frames { head: [u8; 4], read: usize, left: u64 },
    /// Not known: such a stream is cut at the deadline.
    Unknown,
}

impl EventBoundary {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Media::of(headers).map_or(Self::Unknown, Self::of_media)
    }

    pub(crate) fn of_media(media: Media) -> Self {
        match media {
            Media::Json => Self::Lines { between: true },
            Media::Protobuf => Self::Frames {
                head: [0; 4],
                read: 0,
                left: 0,
            },
        }
    }

    pub(crate) fn is_between_events(self) -> bool {
        match self {
            Self::Lines { between } => between,
            Self::Frames { read, left, .. } => read == 0 && left == 0,
            Self::Unknown => false,
        }
    }

    /// How many of these bytes belong to events that end with them.
    pub(crate) fn first_end(mut self, data: &[u8]) -> Option<usize> {
        if let Self::Lines { .. } = self {
            return data.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        }
        let mut at = 0;
        while at < data.len() {
            let step = match self {
                Self::Frames { left, .. } if left > 0 => usize::try_from(left).unwrap_or(usize::MAX),
                Self::Frames { .. } => 1,
                _ => return None,
            };
            let next = at.saturating_add(step).min(data.len());
            self.pass(&data[at..next]);
            at = next;
            if self.is_between_events() {
                return Some(at);
            }
        }
        None
    }

    /// For an event of our own.
    pub(crate) fn format(self) -> Media {
        match self {
            Self::Lines { .. } | Self::Unknown => Media::Json,
            Self::Frames { .. } => Media::Protobuf,
        }
    }

    /// These bytes were passed on.
    pub(crate) fn pass(&mut self, mut data: &[u8]) {
        match self {
            Self::Lines { between } => {
                if let Some(last) = data.last() {
                    *between = *last == b'\n';
                }
            }
            Self::Frames { head, read, left } => {
                while !data.is_empty() {
                    if *left > 0 {
                        let skip = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                        data = &data[skip..];
                        *left -= skip as u64;
                        continue;
                    }
                    head[*read] = data[0];
                    data = &data[1..];
                    *read += 1;
                    if *read == head.len() {
                        *left = u64::from(u32::from_be_bytes(*head));
                        *read = 0;
                    }
                }
            }
            Self::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;
    use proptest::prelude::*;

    fn of(kind: &str) -> EventBoundary {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        EventBoundary::of(&headers)
    }

    #[test]
    fn lines_end_events() {
        let mut boundary = of("application/json");
        assert!(boundary.is_between_events());
        boundary.pass(b"{\"type\":");
        assert!(!boundary.is_between_events());
        boundary.pass(b"\"ADDED\"}\n");
        assert!(boundary.is_between_events());
        assert_eq!(boundary.first_end(b"{}\n{}\n"), Some(3));
        assert_eq!(boundary.first_end(b"{}"), None);
        assert!(!of("text/plain").is_between_events());
    }

    proptest! {
        #[test]
        fn frames_end_where_they_end_however_they_are_cut(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..10),
            cuts in proptest::collection::vec(1_usize..20, 1..50),
        ) {
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for frame in &frames {
                bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
                bytes.extend(frame);
                ends.push(bytes.len());
            }
            let mut boundary = of("application/vnd.kubernetes.protobuf;stream=watch");
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                prop_assert_eq!(boundary.is_between_events(), ends.contains(&at), "at {}", at);
                if at == bytes.len() {
                    break;
                }
                let end = (at + cut).min(bytes.len());
                let expected = ends.iter().find(|&&event| event > at && event <= end).map(|event| event - at);
                prop_assert_eq!(boundary.first_end(&bytes[at..end]), expected, "at {}", at);
                boundary.pass(&bytes[at..end]);
                at = end;
            }
        }
    }
}
