//! Ranks as processes of MPI: [`world`] is this process among those that `mpirun` has started.
//!
//! What ranks exchange, and in which order numbers are added, is the runtime's ([`Group`]); this
//! crate carries bytes, so that processes compute the same bits as threads. All calls of MPI come
//! from one thread.
//!
//! ```no_run
//! use std::time::Duration;
//! use tracecast::nn::{Linear, Module};
//! use tracecast::prelude::*;
//!
//! let ranks = tracecast_mpi::world(Duration::from_secs(60))?;
//! let step = TrainStep::new(Linear::new(4, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
//!     .optimizer(Sgd::new(0.1))
//!     .build()?
//!     .data_parallel(ranks);
//! println!("rank {} of {}", step.rank(), step.size());
//! # Ok::<(), tracecast::Error>(())
//! ```

mod transport;

use std::time::Duration;
use tracecast_runtime::Result;
use tracecast_runtime::collective::Group;
use transport::Processes;

/// This process among all that `mpirun` has started with it; alone if it was started without. Each
/// exchange has `deadline` from the moment at which this rank is ready for it.
///
/// If an exchange fails, the processes of MPI cannot be ended in order any more: end this one with
/// an exit code that is not 0, and `mpirun` ends the others.
///
/// # Errors
/// If MPI has been initialised by somebody else in this process, or was before: there is one world.
pub fn world(deadline: Duration) -> Result<Group> {
    Group::new(Processes::new, deadline)
}
