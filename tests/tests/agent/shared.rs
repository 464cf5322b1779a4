//! One value that the scripted hub writes and a test reads, behind a lock that is never held across an await.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct Shared<T>(Arc<watch::Sender<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    /// Changes the value.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut result = None;
        self.0.send_modify(|value| result = Some(change(value)));
        result.expect("send_modify calls its function")
    }

    /// Reads the value.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.borrow())
    }
}
