//! [`PackedWeights`]: the packed right operand of contractions, from one run to the next. All
//! bindings of a device to the same memory share one copy, whatever kernels and programs they are
//! of, if it lies alike for them.

use super::memory::{Address, address_of};
use crate::contract::{Panels, Source};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tracecast_ir::DType;
use tracecast_runtime::{Arg, HostMemory, Memory};

/// How a contraction keeps its right operand.
pub(crate) struct Packing {
    /// How a batch of it lies.
    pub(crate) panels: Panels,
    /// The batches that differ.
    pub(crate) batches: usize,
    /// The operands of the kernel that it is made of.
    pub(crate) inputs: Vec<usize>,
    /// Where its elements lie in the one operand that it is; `None` if they are computed, as the
    /// sizes of the binding say.
    pub(crate) place: Option<Place>,
}

/// Where elements lie that are packed as they are.
#[derive(PartialEq)]
pub(crate) struct Place {
    /// The dtype of the operand.
    pub(crate) dtype: DType,
    /// The 16-bit float to whose values they are rounded first.
    pub(crate) round: Option<DType>,
    /// Offset and strides, and how many columns they are in: the last panel has room for more.
    pub(crate) numbers: Vec<i64>,
}

impl Packing {
    /// True if the same operands give the same copy.
    fn lies_as(&self, other: &Packing) -> bool {
        (self.panels, self.batches, &self.place) == (other.panels, other.batches, &other.place)
    }

    /// The bytes of a batch, in whole cache lines.
    fn batch_bytes(&self) -> usize {
        self.panels.bytes().checked_next_multiple_of(64).unwrap_or(usize::MAX)
    }

    /// The bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.batch_bytes().saturating_mul(self.batches)
    }
}

/// The run that packs a version, counted from the first that finds it. Writing a copy takes as long
/// as up to eight runs that make do without (a row times a matrix in f32), so that a version which
/// changes before it pays has cost little.
pub(crate) const RUNS: u32 = 4;

/// A right operand of a bound contraction that is kept packed.
pub(crate) struct PackedWeights {
    shared: Arc<Shared>,
    /// The copy that this binding has used last: it asks the others only when the version has
    /// changed.
    own: Mutex<Option<Arc<Copy>>>,
}

/// The turn of a thread to pack, which ends with it.
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).is_packing = false;
    }
}

/// What all bindings share.
struct Shared {
    packing: Packing,
    /// The code that computes the elements, and the sizes of its binding; `None` if they lie there.
    code: Option<(usize, Vec<i64>)>,
    /// The operands that it is made of: their memory, and where in it.
    made_of: Vec<(Memory, usize)>,
    state: Mutex<State>,
}

/// Versions are those of what it is made of: every change makes the greatest of them greater.
#[derive(Default)]
struct State {
    /// That of the last run; 0 before it.
    seen: u64,
    /// How many runs have found it.
    runs: u32,
    /// True while a thread packs.
    is_packing: bool,
    copy: Option<Arc<Copy>>,
    /// The one before it, if bindings still had it when it was replaced: they let go of it in their
    /// next run, and the one after `copy` is made in its room.
    before: Option<Arc<Copy>>,
}

/// A packed copy.
struct Copy {
    room: HostMemory,
    /// What it was made of.
    version: u64,
    /// The least of its numbers, as packing finds it.
    least: u16,
}

/// What a run does about the copy.
enum Way {
    Use(Arc<Copy>),
    /// Make it, in the room of an earlier one.
    Pack(Option<Arc<Copy>>),
    Without,
}

/// Where packed batches lie.
#[derive(Clone, Copy)]
pub(crate) struct PackedOperand {
    base: Address,
    batch_bytes: usize,
    /// The batches that differ.
    pub(super) batches: usize,
    /// The layout of a batch.
    pub(super) panels: Panels,
    least: u16,
}

impl PackedOperand {
    /// Where a batch lies.
    pub(super) fn place(&self, batch: usize) -> Address {
        let batch = if self.batches == 1 { 0 } else { batch };
        self.base.offset((batch * self.batch_bytes) as isize)
    }

    /// A batch as an operand.
    pub(super) fn operand(&self, batch: usize) -> Source<'static> {
        let base = self.place(batch).pointer();
        Source::Packed { base, panels: self.panels, least: self.least }
    }
}

/// What is kept packed on a device, by the address of the first operand that it is made of.
#[derive(Default)]
pub(crate) struct AllPacked(Mutex<Known>);

#[derive(Default)]
struct Known {
    shared: HashMap<usize, Vec<Weak<Shared>>>,
    /// Addresses in the table from which on those without kept weights are removed.
    full: usize,
}

/// This number of addresses is never too large.
const FEW: usize = 64;

impl Known {
    /// What is kept at an address.
    fn at(&mut self, address: usize) -> &mut Vec<Weak<Shared>> {
        let is_kept = |shared: &Weak<Shared>| shared.strong_count() > 0;
        if self.shared.len() >= self.full.max(FEW) {
            self.shared.retain(|_, kept| kept.iter().any(is_kept));
            self.full = 2 * self.shared.len();
        }
        let kept = self.shared.entry(address).or_default();
        kept.retain(is_kept);
        kept
    }
}

impl AllPacked {
    /// That of a binding to these operands of a kernel with this code, which there may be already.
    pub(crate) fn of(
        &self,
        packing: Packing,
        (code, sizes): (usize, &[i64]),
        args: &[Arg],
    ) -> PackedWeights {
        // Code that computes the elements is that of one kernel; what only lies there is the same
        // for all.
        let code = packing.place.is_none().then(|| (code, sizes.to_vec()));
        let made_of: Vec<(Memory, usize)> =
            packing.inputs.iter().map(|i| (args[*i].memory.clone(), args[*i].offset)).collect();
        let same = |shared: &Arc<Shared>| {
            let pairs = shared.made_of.iter().zip(&made_of);
            shared.packing.lies_as(&packing)
                && shared.code == code
                && shared.made_of.len() == made_of.len()
                && pairs.into_iter().all(|((a, at), (b, to))| at == to && a.same(b))
        };
        let first = made_of.first().and_then(|(memory, _)| memory.find::<HostMemory>());
        let address = first.map_or(0, |memory| memory.as_ptr().addr());
        let mut known = locked(&self.0);
        let kept = known.at(address);
        let shared = kept.iter().filter_map(Weak::upgrade).find(same).unwrap_or_else(|| {
            let made = Arc::new(Shared { packing, code, made_of, state: Mutex::default() });
            kept.push(Arc::downgrade(&made));
            made
        });
        PackedWeights { shared, own: Mutex::default() }
    }
}

#[cfg(test)]
impl AllPacked {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let known = locked(&self.0);
        known.shared.values().flatten().filter(|shared| shared.strong_count() > 0).count()
    }
}

impl PackedWeights {
    /// Runs `run`, with the packed operand from the run on that is worth a copy of this version:
    /// that one calls `pack`, which writes all batches and returns the least of their numbers.
    /// Others that run meanwhile do without.
    pub(crate) fn with(
        &self,
        pack: impl FnOnce(&PackedOperand) -> u16,
        run: impl FnOnce(Option<&PackedOperand>),
    ) {
        let mut own = locked(&self.own);
        let version = self.shared.version();
        if own.as_ref().is_none_or(|copy| copy.version != version) {
            *own = None;
            *own = match self.shared.way(version) {
                Way::Use(copy) => Some(copy),
                Way::Pack(earlier) => self.shared.pack(version, earlier, pack),
                Way::Without => None,
            };
        }
        let packed = own.as_ref().map(|copy| self.shared.operand(&copy.room, copy.least));
        run(packed.as_ref());
    }
}

impl Shared {
    fn version(&self) -> u64 {
        self.made_of.iter().map(|(memory, _)| memory.version()).max().unwrap_or(0)
    }

    /// What a run that finds this version does.
    fn way(&self, version: u64) -> Way {
        let mut state = locked(&self.state);
        if state.seen != version {
            (state.seen, state.runs) = (version, 0);
        }
        state.runs = state.runs.saturating_add(1);
        match &state.copy {
            Some(copy) if copy.version == version => Way::Use(copy.clone()),
            _ if state.runs < RUNS || state.is_packing => Way::Without,
            _ => {
                state.is_packing = true;
                let earlier = match state.copy.take() {
                    Some(copy) if Arc::strong_count(&copy) == 1 => Some(copy),
                    copy => std::mem::replace(&mut state.before, copy),
                };
                Way::Pack(earlier)
            }
        }
    }

    /// A copy of this version; `None` if there is no memory for it.
    fn pack(
        &self,
        version: u64,
        earlier: Option<Arc<Copy>>,
        pack: impl FnOnce(&PackedOperand) -> u16,
    ) -> Option<Arc<Copy>> {
        let turn = Turn(self);
        let unused = earlier.filter(|copy| Arc::strong_count(copy) == 1);
        let mut copy = unused.or_else(|| {
            let room = HostMemory::new(self.packing.bytes()).ok()?;
            Some(Arc::new(Copy { room, version: 0, least: u16::MAX }))
        });
        match copy.as_mut().and_then(Arc::get_mut) {
            Some(copy) => {
                copy.least = pack(&self.operand(&copy.room, u16::MAX));
                copy.version = version;
            }
            None => copy = None,
        }
        let mut state = locked(&self.state);
        // Without memory it is tried again after as many runs.
        state.runs = 0;
        state.copy.clone_from(&copy);
        drop(state);
        drop(turn);
        copy
    }

    fn operand(&self, room: &HostMemory, least: u16) -> PackedOperand {
        let Packing { panels, batches, .. } = self.packing;
        let batch_bytes = self.packing.batch_bytes();
        PackedOperand { base: address_of(room), batch_bytes, batches, panels, least }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
