//! PyTorch's autocast state as it is, defects included, for those who must reproduce a recorded
//! run.
//!
//! Three things that [`Region`] and the passes do right go wrong there. A policy set with
//! [`set_parity`](super::PolicySet::set_parity), in a file `parity = true`, brings them back: a
//! [`Tracer`](crate::Tracer) under it records what PyTorch does.
//!
//! | What | PyTorch, and parity | Here |
//! |---|---|---|
//! | a region object that is entered twice | keeps one saved state: after the last exit autocast stays on | regions are values: leaving one restores what was before |
//! | a weight that changes in place inside a region | keeps its stale cast until the outermost exit | every version has its own cast |
//! | one weight under regions of two low dtypes | the cache is keyed without dtype: the op gets the outer region's cast | the key has the dtype |
//!
//! In a trace, a weight changes in place when [`update`](crate::Tracer::update) gives it its next
//! value, or where [`changed_in_place`](crate::Tracer::changed_in_place) says so: from then on that
//! value is the weight.

use std::collections::HashMap;

use super::{DeviceType, PolicyError, Region};
use crate::DType;

/// A region object as PyTorch has it: it saves the outer state in itself.
#[derive(Clone, Debug)]
pub struct RegionObject {
    device: DeviceType,
    inner: Region,
    saved: Option<Region>,
}

impl RegionObject {
    /// An object that gives this device its state in `inner`, and all devices its cache flag.
    pub fn new(device: DeviceType, inner: Region) -> Self {
        RegionObject { device, inner, saved: None }
    }
}

/// A tensor as the cast cache knows it: a leaf that requires a gradient and is no view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Which tensor it is; the same after a change in place.
    pub id: u64,
    /// Which contents it has now.
    pub version: u64,
}

/// What an op gets for an operand that is to be cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The dtype.
    pub dtype: DType,
    /// True if a cast was made for it, false if it came from the cache.
    pub made: bool,
    /// The contents that were cast; `None` for what is no leaf.
    pub version: Option<u64>,
}

/// The autocast state of one thread, with PyTorch's cast cache.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    region: Region,
    depth: u32,
    /// By cache scope and leaf, so that what is recorded in a scope of its own finds its own casts.
    cache: HashMap<(u32, u64), (DType, u64)>,
    inference: bool,
}

impl Thread {
    /// The current state.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Makes a region object, and the warning if it had to be switched off; dtype and cache flag
    /// that are not given are the current ones.
    ///
    /// # Errors
    /// Those of [`Region::enter`].
    pub fn object(
        &self,
        device: DeviceType,
        dtype: Option<DType>,
        enabled: bool,
        cache: Option<bool>,
    ) -> Result<(RegionObject, Option<String>), PolicyError> {
        let (inner, warning) = self.region.enter(device, dtype, enabled, cache)?;
        Ok((RegionObject::new(device, inner), warning))
    }

    /// Enters a region, and overwrites what the object saved when it was entered before.
    pub fn enter(&mut self, object: &mut RegionObject) {
        object.saved = Some(self.region.clone());
        self.region = set(&self.region, object.device, &object.inner);
        self.depth += 1;
    }

    /// Leaves a region: restores what the object saved last. After the outermost exit the cache is
    /// cleared: casts made from then on are of this cache scope.
    pub fn exit(&mut self, object: &RegionObject, scope: u32) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            self.cache.clear();
            self.region = self.region.clone().with_scope(scope);
        }
        if let Some(saved) = &object.saved {
            self.region = set(&self.region, object.device, saved);
        }
    }

    /// Puts another state in the place of the current one, which is returned; the cache stays.
    pub(crate) fn swap(&mut self, region: Region) -> Region {
        std::mem::replace(&mut self.region, region)
    }

    /// Switches inference mode, in which nothing is cached.
    pub fn set_inference(&mut self, inference: bool) {
        self.inference = inference;
    }

    /// What an op gets for an operand that [`Decision::casts`](super::Decision::casts) wants cast.
    /// Only casts of an f32 leaf to the low dtype of the region are cached.
    pub fn cast(
        &mut self,
        device: DeviceType,
        leaf: Option<Leaf>,
        from: DType,
        to: DType,
    ) -> Given {
        let to_low = to == self.region.low(device) && from == DType::F32;
        match leaf.filter(|_| to_low && self.region.cache() && !self.inference) {
            None => Given { dtype: to, made: true, version: leaf.map(|leaf| leaf.version) },
            Some(leaf) => {
                let key = (self.region.scope(), leaf.id);
                let made = !self.cache.contains_key(&key);
                let (dtype, version) = *self.cache.entry(key).or_insert((to, leaf.version));
                Given { dtype, made, version: Some(version) }
            }
        }
    }
}

/// `region` with the state of `device` and the cache flag of `from`.
fn set(region: &Region, device: DeviceType, from: &Region) -> Region {
    region.clone().with_device_of(device, from).with_cache(from.cache())
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{BF16, F16, F32};
    use DeviceType::Cpu;

    #[test]
    fn an_object_that_is_entered_twice_leaves_autocast_on() {
        let mut thread = Thread::default();
        let (mut object, warning) = thread.object(Cpu, None, true, None).unwrap();
        for _ in 0..2 {
            thread.enter(&mut object);
        }
        for _ in 0..2 {
            thread.exit(&object, 1);
        }
        assert!(thread.region().is_enabled(Cpu));
        assert_eq!(warning, None);
    }

    #[test]
    fn the_cache_forgets_dtype_and_version() {
        let mut thread = Thread::default();
        let (mut outer, _) = thread.object(Cpu, None, true, None).unwrap();
        thread.enter(&mut outer);
        let weight = |version| Some(Leaf { id: 1, version });
        let given = |dtype, made, version| Given { dtype, made, version };
        assert_eq!(thread.cast(Cpu, weight(7), F32, BF16), given(BF16, true, Some(7)));
        assert_eq!(thread.cast(Cpu, weight(8), F32, BF16), given(BF16, false, Some(7)));
        let (mut inner, _) = thread.object(Cpu, Some(F16), true, None).unwrap();
        thread.enter(&mut inner);
        assert_eq!(thread.cast(Cpu, weight(8), F32, F16), given(BF16, false, Some(7)));
        assert_eq!(thread.cast(Cpu, None, F32, F16), given(F16, true, None));
        thread.exit(&inner, 1);
        assert_eq!(thread.region().scope(), 0);
        thread.exit(&outer, 2);
        assert!(thread.region().is_off() && thread.cache.is_empty());
        assert_eq!(thread.region().scope(), 2, "the next casts are others");
    }
}
