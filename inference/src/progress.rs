//! How far long work is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How far long work is, for somebody who looks at it from another thread. One thing is done after another; of some it is
/// known how many bytes there are.
#[derive(Debug, Default)]
pub struct Progress {
    doing: Mutex<Doing>,
    done: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Doing {
    what: &'static str,
    total: Option<u64>,
}

/// Where work was when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressNow {
    /// What is being done (`writing`, `syncing`, `comparing tensors`, `running the checkpoint`, …), for people; empty
    /// before anything is.
    pub what: &'static str,
    /// Bytes that are done of it.
    pub done: u64,
    /// All of its bytes, where that is known.
    pub total: Option<u64>,
}

impl Progress {
    pub(crate) fn start(&self, what: &'static str, total: Option<u64>) {
        let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        self.done.store(0, Ordering::Relaxed);
        *doing = Doing { what, total };
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How far it is.
    pub fn now(&self) -> ProgressNow {
        let Doing { what, total } = *self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        ProgressNow { what, done: self.done.load(Ordering::Relaxed), total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_counts_from_zero() {
        let progress = Progress::default();
        assert_eq!(progress.now(), ProgressNow::default());
        progress.start("writing", Some(10));
        progress.add(4);
        progress.add(3);
        assert_eq!(progress.now(), ProgressNow { what: "writing", done: 7, total: Some(10) });
        progress.start("syncing", None);
        assert_eq!(progress.now(), ProgressNow { what: "syncing", done: 0, total: None });
    }
}
