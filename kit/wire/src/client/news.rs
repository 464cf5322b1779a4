//! What the hub says of its CAs, on its way from the stream to the applicant, which keeps it.

use tokio::sync::watch;

use crate::v1::Trust;

/// Holds the last word until it is taken.
#[derive(Debug, Default)]
pub struct CaNews(watch::Sender<Option<Trust>>);

impl CaNews {
    /// Replaces what was not taken yet.
    pub fn put(&self, trust: Trust) {
        self.0.send_replace(Some(trust));
    }

    /// Waits for a word. Safe to cancel: what is not returned is not taken.
    pub async fn take(&self) -> Trust {
        let mut last = self.0.subscribe();
        loop {
            // The sender is here, so this cannot fail.
            let _ = last.wait_for(Option::is_some).await.is_ok();
            if let Some(trust) = self.0.send_replace(None) {
                return trust;
            }
        }
    }
}
