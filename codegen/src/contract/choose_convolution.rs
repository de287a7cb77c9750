//! [`Correlation::choose`]: the schedule of a convolution, from a padded copy or in place.

use super::implicit_gemm::{Correlation, Loops};
use super::macrokernel::tile;
use super::micro::{Elementwise, Engine};
use super::schedule::{Axis, Chosen, Layout, Load, Pass, Schedule, Store};
use smallvec::smallvec;

impl Correlation<'_> {
    /// The schedule of the part.
    pub(super) fn choose<E: Engine>(&self) -> Chosen {
        let (whole, windows) = (self.image(None), self.windows.len());
        let rows = |count: usize| ("output rows", count.min(windows));
        let (schedule, right, tile, block) = match self.loops() {
            #[cfg(target_arch = "x86_64")]
            Loops::InPlace => {
                let schedule = Schedule::Depthwise(Pass::Forward, Layout::InPlace);
                (schedule, Load::InPlace, None, ("channels", self.planes_together(&whole)))
            }
            Loops::Few(_) => {
                let schedule = Schedule::Depthwise(Pass::WeightGrad, Layout::Blocked);
                let tile = [E::LANES, whole.windows().iter().product()];
                (schedule, Load::Padded, Some(tile), ("channels", E::LANES))
            }
            Loops::Lines(_) => {
                let schedule = Schedule::Depthwise(Pass::Forward, Layout::Blocked);
                let (tile, most) = ([E::LANES, E::Singly::LINE], self.most_lines::<E>(&whole));
                (schedule, Load::Padded, Some(tile), rows(most))
            }
            Loops::Across => {
                let (vectors, store) = (Axis::Channels, Store::Staged);
                let (tile, most) = ([2 * E::LANES, E::SPOTS], self.most::<E>(&whole));
                (Schedule::ImplicitGemm { vectors, store }, Load::Padded, Some(tile), rows(most))
            }
            Loops::Columns => {
                let most = windows.min(self.most::<E>(&whole));
                let image = self.laid_out(&self.image(Some(0..most)));
                let is_stored = self.stored.is_some() && self.is_direct::<E>(&image);
                let store = if is_stored { Store::InPlace } else { Store::Staged };
                let schedule = Schedule::ImplicitGemm { vectors: Axis::Columns, store };
                let load = if whole.has_phases() { Load::PaddedByPhase } else { Load::Padded };
                (schedule, load, Some(tile::<E>(self.rows)), rows(most))
            }
        };
        let is_read = matches!(self.loops(), Loops::Columns) && self.in_place::<E>().is_some();
        let loads = [self.a.load(is_read), right];
        let (pairs, blocks) = (E::DEPTH == 2, smallvec![block]);
        Chosen { pairs, tile, blocks, ..Chosen::new(schedule, loads) }
    }
}
