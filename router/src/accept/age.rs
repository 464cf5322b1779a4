//! How long a client's connection is used for new requests. Operators keep one for days, so that routers that are started later
//! would get none of what comes by it; told to go, a client connects anew, and whatever balances connections chooses again.
//!
//! Nothing that runs is ended for it: over HTTP/2 the client is told by GOAWAY, and watches go on to their own end; over HTTP/1.1 the
//! next answer says `connection: close`. A connection without a request is left alone: closed under a request, that one fails.
//! Caller: `accept`.

use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Response, StatusCode};
use tokio::time::Instant;

/// So much more or less, so that clients that came at once do not come again at once.
const JITTER: f64 = 0.1;

/// When a connection is old.
#[derive(Debug, Clone, Copy)]
pub(super) struct Age(Option<Instant>);

impl Age {
    /// The age of a connection that begins now and may become about so old; `None`: as old as it likes.
    pub(super) fn from_now(about: Option<Duration>) -> Self {
        Self(about.map(|about| Instant::now() + jittered(about, rand::random_range(-1.0..=1.0))))
    }

    /// Ends when it is old.
    pub(super) async fn over(self) {
        match self.0 {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Tells an HTTP/1.1 client to make its next request on another connection, if this one is old or the router `drains`.
    pub(super) fn tell<B>(self, drains: bool, answer: &mut Response<B>) {
        if (drains || self.is_over()) && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            answer
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// `drawn`: from -1 to 1.
fn jittered(about: Duration, drawn: f64) -> Duration {
    about.mul_f64(1.0 + JITTER * drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_moment_do_not_end_at_one() {
        let about = Duration::from_mins(10);
        let drawn = [-1.0, 0.0, 1.0].map(|drawn| jittered(about, drawn).as_secs());
        assert_eq!(drawn, [540, 600, 660]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_says_close_once_the_connection_is_old_and_an_upgrade_never() {
        let age = Age::from_now(Some(Duration::from_secs(10)));
        let told_by = |age: Age, drains, status| {
            let mut answer = Response::builder().status(status).body(()).unwrap();
            age.tell(drains, &mut answer);
            answer.headers().contains_key(CONNECTION)
        };
        let told = |age: Age, status| told_by(age, false, status);
        assert!(!told(age, 200) && told_by(age, true, 200) && !told_by(age, true, 101));
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!([200, 404, 101].map(|status| told(age, status)), [true, true, false]);
        assert!(!told(Age::from_now(None), 200));
    }
}
