//! PyTorch's autocast state as it is, defects included, for those who must reproduce a recorded run.
//!
//! Three things that [`Region`] and the passes do right go wrong there:
//!
//! | What | PyTorch | Here |
//! |---|---|---|
//! | a region object that is entered twice | keeps one saved state: after the last exit autocast stays on | regions are values: leaving one restores what was before |
//! | a weight that changes in place inside a region | keeps its stale cast until the outermost exit | every version has its own cast |
//! | one weight under regions of two low dtypes | the cache is keyed without dtype: the op gets the outer region's cast | the key has the dtype |

use std::collections::HashMap;

use super::{DeviceType, PolicyError, Region};
use crate::DType;

/// A region object as PyTorch has it: it saves the outer state in itself.
#[derive(Clone, Debug)]
pub struct RegionObject {
    device: DeviceType,
    inner: Region,
    saved: Option<Region>,
    warning: Option<String>,
}

impl RegionObject {
    /// The warning with which the region was switched off when it was made.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

/// The autocast state of one thread, with PyTorch's cast cache.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    region: Region,
    depth: u32,
    cache: HashMap<u64, DType>,
    inference: bool,
}

impl Thread {
    /// The current state.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Makes a region object; dtype and cache flag that are not given are the current ones.
    ///
    /// # Errors
    /// Those of [`Region::enter`].
    pub fn object(
        &self,
        device: DeviceType,
        dtype: Option<DType>,
        enabled: bool,
        cache: Option<bool>,
    ) -> Result<RegionObject, PolicyError> {
        let (inner, warning) = self.region.enter(device, dtype, enabled, cache)?;
        Ok(RegionObject { device, inner, saved: None, warning })
    }

    /// Enters a region, and overwrites what the object saved when it was entered before.
    pub fn enter(&mut self, object: &mut RegionObject) {
        object.saved = Some(self.region.clone());
        self.region = set(&self.region, object.device, &object.inner);
        self.depth += 1;
    }

    /// Leaves a region: restores what the object saved last, and clears the cache after the outermost exit.
    pub fn exit(&mut self, object: &RegionObject) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            self.cache.clear();
        }
        if let Some(saved) = &object.saved {
            self.region = set(&self.region, object.device, saved);
        }
    }

    /// Switches inference mode, in which nothing is cached.
    pub fn set_inference(&mut self, inference: bool) {
        self.inference = inference;
    }

    /// Casts an operand as [`Decision::casts`](super::Decision::casts) says, and returns the dtype that the op gets and whether
    /// a cast was made. `leaf` names the tensor if it is a leaf that requires a gradient and is no view; only such casts of f32
    /// to the low dtype of the region are cached.
    pub fn cast(
        &mut self,
        device: DeviceType,
        leaf: Option<u64>,
        from: DType,
        to: DType,
    ) -> (DType, bool) {
        let to_low = to == self.region.low(device) && from == DType::F32;
        match leaf.filter(|_| to_low && self.region.cache() && !self.inference) {
            None => (to, true),
            Some(leaf) => match self.cache.get(&leaf) {
                Some(stale) => (*stale, false),
                None => {
                    self.cache.insert(leaf, to);
                    (to, true)
                }
            },
        }
    }
}

/// `region` with the state of `device` and the cache flag of `from`.
fn set(region: &Region, device: DeviceType, from: &Region) -> Region {
    let region = region.clone().with_device(device, from.is_enabled(device), from.low(device));
    region.with_cache(from.cache())
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{BF16, F16, F32};
    use DeviceType::Cpu;

    #[test]
    fn an_object_that_is_entered_twice_leaves_autocast_on() {
        let mut thread = Thread::default();
        let mut object = thread.object(Cpu, None, true, None).unwrap();
        for _ in 0..2 {
            thread.enter(&mut object);
        }
        for _ in 0..2 {
            thread.exit(&object);
        }
        assert!(thread.region().is_enabled(Cpu));
        assert_eq!(object.warning(), None);
    }

    #[test]
    fn the_cache_forgets_dtype_and_version() {
        let mut thread = Thread::default();
        let mut outer = thread.object(Cpu, None, true, None).unwrap();
        thread.enter(&mut outer);
        assert_eq!(thread.cast(Cpu, Some(1), F32, BF16), (BF16, true));
        let mut inner = thread.object(Cpu, Some(F16), true, None).unwrap();
        thread.enter(&mut inner);
        assert_eq!(thread.cast(Cpu, Some(1), F32, F16), (BF16, false));
        assert_eq!(thread.cast(Cpu, None, F32, F16), (F16, true));
        thread.exit(&inner);
        thread.exit(&outer);
        assert!(thread.region().is_off() && thread.cache.is_empty());
    }
}
