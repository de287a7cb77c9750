//! [`Counts`]: what a chip was asked for.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a chip was asked for since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, being counted.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn now(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::SeqCst),)* }
            }
        }

        impl Counts {
            /// What came since then.
            #[must_use]
            pub fn since(self, then: Counts) -> Counts {
                Counts { $($name: self.$name - then.$name,)* }
            }
        }
    };
}

counts! {
    /// Kernels that began to run.
    launches,
    /// Those of them that can raise a check.
    checked,
    /// Copies from the host.
    uploads,
    /// Copies to the host.
    downloads,
    /// Copies within its memory.
    copies,
    /// Pieces of memory that were asked for.
    allocations,
    /// How often the host waited.
    waits,
    /// Calls on a thread that had not [entered](tracecast_runtime::Device::enter) the device.
    strangers,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}
