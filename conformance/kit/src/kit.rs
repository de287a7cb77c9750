//! [`Kit`]: what a device is held to, and how.

use crate::level::Level;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tracecast_ir::policy::PolicyTable;

/// Returns the device that the calling thread works with, in the words of its driver.
pub type Current = dyn Fn() -> String + Send + Sync;

/// What a device is held to, and how.
#[derive(Clone)]
pub struct Kit {
    pub(crate) level: Level,
    pub(crate) limit: Duration,
    pub(crate) table: Option<Arc<PolicyTable>>,
    pub(crate) current: Option<Arc<Current>>,
}

impl Kit {
    /// All cases up to a level, 10 seconds for each.
    pub fn new(level: Level) -> Self {
        Kit { level, limit: Duration::from_secs(10), table: None, current: None }
    }

    /// The same with another time limit for a case.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The same with the autocast lists that the device is meant to have. Its own rules
    /// ([`AmpSupport::rules`](tracecast_runtime::AmpSupport::rules)) lie over them.
    #[must_use]
    pub fn table(mut self, table: Arc<PolicyTable>) -> Self {
        self.table = Some(table);
        self
    }

    /// The same for a driver that has a current device on each thread: it must be the same before
    /// and after every case.
    #[must_use]
    pub fn current(mut self, current: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.current = Some(Arc::new(current));
        self
    }
}

impl fmt::Debug for Kit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kit({}, {:?})", self.level, self.limit)
    }
}
