//! Saving: rank 0 writes, and lets the others know that it still does, so that the deadline of
//! exchanges does not limit how long that takes.

use super::{DataParallel, SAVE};
use crate::error::Result;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use tracecast_runtime::collective::{Label, gather_texts};
use tracecast_runtime::{Error, Store};

/// How often rank 0 tells the others that it still writes.
const BEAT: Duration = Duration::from_millis(50);

/// What it tells them; no error says that.
const WRITING: &str = "\u{0}";

impl DataParallel {
    /// As [`TrainStep::save`](crate::TrainStep::save): rank 0 writes the file, and all ranks wait
    /// for it, however long that takes: the deadline holds for what ranks hear of each other
    /// meanwhile. The file says nothing of the number of ranks, and any number goes on from it.
    /// State that a step writes from the rows of each rank, as running means are, is that of rank
    /// 0.
    ///
    /// # Errors
    /// As there, on every rank; if a rank is late or has left.
    pub fn save(&self, store: &Store, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.rank() {
            0 => self.while_writing(|| self.evaluation.save(store, path)),
            _ => self.until_written(),
        }
    }

    /// Rank 0: writes, while the others are told that it does.
    fn while_writing(&self, write: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        std::thread::scope(|scope| {
            let (done, written) = channel();
            scope.spawn(move || {
                // Nobody listens any more if an exchange has failed.
                let _ = done.send(write());
            });
            for beat in 0.. {
                match written.recv_timeout(BEAT) {
                    Err(RecvTimeoutError::Timeout) => drop(self.told(beat, WRITING)?),
                    Ok(saved) => {
                        let told = saved.as_ref().err().map(ToString::to_string);
                        self.told(beat, &told.unwrap_or_default())?;
                        return saved;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        self.told(beat, "it has panicked")?;
                        break;
                    }
                }
            }
            // The scope hands the panic on.
            Ok(())
        })
    }

    fn until_written(&self) -> Result<()> {
        let mut beat = 0;
        loop {
            let told = self.told(beat, "")?;
            if told == WRITING {
                beat += 1;
                continue;
            }
            return match told.is_empty() {
                true => Ok(()),
                false => Err(Error::Parallel(format!("rank 0 could not save: {told}"))),
            };
        }
    }

    /// What rank 0 tells the others in this beat.
    fn told(&self, beat: u64, own: &str) -> Result<String> {
        let label = Label { bucket: 2 * beat, ..self.label(SAVE, self.next_step()) };
        Ok(gather_texts(&*self.ranks, label, own)?.swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Linear;
    use crate::prelude::*;
    use tracecast_runtime::collective::threads;

    const DEADLINE: Duration = Duration::from_millis(200);

    /// What both ranks say, of which the first writes for longer than the deadline.
    fn saved(write: impl Fn() -> Result<()> + Sync) -> Vec<Result<()>> {
        let step = TrainStep::new(Linear::new(4, 1), |t, model| {
            model.forward(t.input("x")).mean_squared_error(t.input("y"))
        })
        .optimizer(Sgd::new(0.1))
        .options(Options::new().threads(1))
        .build()
        .unwrap();
        std::thread::scope(|scope| {
            let (step, write) = (&step, &write);
            let of_rank = |rank| {
                scope.spawn(move || {
                    let step = step.data_parallel(rank);
                    match step.rank() {
                        0 => step.while_writing(|| {
                            std::thread::sleep(DEADLINE * 3);
                            write()
                        }),
                        _ => step.until_written(),
                    }
                })
            };
            let started: Vec<_> = threads(2, DEADLINE).into_iter().map(of_rank).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn writing_may_take_longer_than_the_deadline() {
        assert!(saved(|| Ok(())).iter().all(Result::is_ok));
        let failed = saved(|| Err(Error::Parallel("the disk is full".to_owned())));
        for error in failed {
            assert!(error.unwrap_err().to_string().contains("the disk is full"));
        }
    }
}
