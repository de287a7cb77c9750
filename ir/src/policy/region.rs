//! [`Region`]: the autocast state that a node was recorded under, and what entering a region makes
//! of it.
//!
//! Regions are values: entering one makes a new value, and leaving it is going back to the old one.
//! So nothing can leak out of a region, however it is left and however often one is entered. The
//! scope number tells cast caches apart; who opens the outermost region picks a fresh one with
//! [`Region::with_scope`].

use std::fmt;
use std::str::FromStr;

use super::{Accepted, DeviceType, PolicyError};
use crate::DType;

/// The autocast state of every device type, the cache flag and the cache scope.
///
/// In text: `{cpu: bf16, cuda: off f32} cache on scope 3`. Devices that nobody has named are left
/// out: they are off, with their default dtype. A device that was switched off is printed and is
/// not equal to one that nobody has named, so that an island is told from what lies in no region.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// One bit per device type.
    enabled: u16,
    /// One bit per device type that is off because somebody said so.
    switched_off: u16,
    low: [DType; DeviceType::ALL.len()],
    cache: bool,
    scope: u32,
}

impl Default for Region {
    /// Everything off, default dtypes, the cache on, scope 0: what a thread starts with.
    fn default() -> Self {
        Region {
            enabled: 0,
            switched_off: 0,
            low: DeviceType::ALL.map(DeviceType::default_low),
            cache: true,
            scope: 0,
        }
    }
}

impl Region {
    /// True if autocast is on for `device`.
    pub fn is_enabled(&self, device: DeviceType) -> bool {
        self.enabled & device.bit() != 0
    }

    /// True if autocast is off for every device.
    pub fn is_off(&self) -> bool {
        self.enabled == 0
    }

    /// True if autocast is off for `device` because it was switched off, and not because nobody
    /// switched it on.
    pub fn is_switched_off(&self, device: DeviceType) -> bool {
        self.switched_off & device.bit() != 0
    }

    /// The low dtype of `device`, also while it is off.
    pub fn low(&self, device: DeviceType) -> DType {
        self.low[device as usize]
    }

    /// True if it is the low dtype of a device that is on.
    pub fn computes_in(&self, dtype: DType) -> bool {
        DeviceType::ALL.into_iter().any(|d| self.is_enabled(d) && self.low(d) == dtype)
    }

    /// True if casts of weights are shared within the scope.
    pub fn cache(&self) -> bool {
        self.cache
    }

    /// The number of the cache scope: casts are shared only between nodes of equal scope.
    pub fn scope(&self) -> u32 {
        self.scope
    }

    /// The device types that are on, one bit each.
    pub(super) fn enabled_bits(&self) -> u16 {
        self.enabled
    }

    /// The same state in another cache scope.
    #[must_use]
    pub fn with_scope(mut self, scope: u32) -> Region {
        self.scope = scope;
        self
    }

    /// The same state with the cache flag set.
    #[must_use]
    pub fn with_cache(mut self, cache: bool) -> Region {
        self.cache = cache;
        self
    }

    /// The same state with one device set, unchecked: any dtype passes.
    #[must_use]
    pub fn with_device(mut self, device: DeviceType, enabled: bool, low: DType) -> Region {
        if enabled {
            self.enabled |= device.bit();
            self.switched_off &= !device.bit();
        } else {
            self = self.without(device);
        }
        self.low[device as usize] = low;
        self
    }

    /// The same state with another low dtype for regions of `device` that name none.
    #[must_use]
    pub fn with_low(mut self, device: DeviceType, low: DType) -> Region {
        self.low[device as usize] = low;
        self
    }

    /// The same state with all about one device as in `from`.
    pub(super) fn with_device_of(mut self, device: DeviceType, from: &Region) -> Region {
        let bit = device.bit();
        self.enabled = self.enabled & !bit | from.enabled & bit;
        self.switched_off = self.switched_off & !bit | from.switched_off & bit;
        self.low[device as usize] = from.low(device);
        self
    }

    /// The same state with `device` off: what the parts of an op see that this device's table
    /// lists.
    #[must_use]
    pub fn without(mut self, device: DeviceType) -> Region {
        self.enabled &= !device.bit();
        self.switched_off |= device.bit();
        self
    }

    /// The same state with every device off.
    #[must_use]
    pub fn off(mut self) -> Region {
        self.switched_off |= self.enabled;
        self.enabled = 0;
        self
    }

    /// The state inside a region of `device` opened here, and a warning if the region had to be
    /// switched off.
    ///
    /// Without a dtype the current one holds, without a cache flag the current one. A dtype that
    /// the device does not take switches the region off but is remembered as its dtype, as PyTorch
    /// does.
    ///
    /// # Errors
    /// If the device type has no autocast, which is so for a device from outside: those have
    /// [`Region::enter_accepting`].
    pub fn enter(
        &self,
        device: DeviceType,
        dtype: Option<DType>,
        enabled: bool,
        cache: Option<bool>,
    ) -> Result<(Region, Option<String>), PolicyError> {
        self.enter_accepting(device.accepted(), device, dtype, enabled, cache)
    }

    /// [`Region::enter`] with the dtypes that the device at hand takes.
    ///
    /// # Errors
    /// If nobody registered them, or the device refuses the dtype.
    pub fn enter_accepting(
        &self,
        accepted: Accepted<'_>,
        device: DeviceType,
        dtype: Option<DType>,
        enabled: bool,
        cache: Option<bool>,
    ) -> Result<(Region, Option<String>), PolicyError> {
        if accepted == Accepted::Unregistered {
            return Err(PolicyError::Unregistered { device });
        }
        let low = dtype.unwrap_or(self.low(device));
        let warning = if enabled { refuse(accepted, device, low)? } else { None };
        let inner = self.clone().with_device(device, enabled && warning.is_none(), low);
        Ok((inner.with_cache(cache.unwrap_or(self.cache)), warning))
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// If `text` is not `{device: dtype, …} cache on|off scope NUMBER`.
    pub fn parse(text: &str) -> Result<Region, PolicyError> {
        parse(text).map_err(|message| PolicyError::Region { text: text.to_string(), message })
    }
}

/// The warning with which an enabled region of `low` is switched off; `None` if it stays on.
fn refuse(
    accepted: Accepted<'_>,
    device: DeviceType,
    low: DType,
) -> Result<Option<String>, PolicyError> {
    match accepted {
        Accepted::AnyBut(refused) if refused == low => {
            Err(PolicyError::Unsupported { device, dtype: low })
        }
        Accepted::Only(list) if !list.contains(&low) => {
            let names: Vec<_> = list.iter().map(|dtype| dtype.name()).collect();
            Ok(Some(format!(
                "autocast on {device} takes {}, not {low}: this region is switched off",
                names.join(" or ")
            )))
        }
        Accepted::Unavailable => Ok(Some(format!(
            "autocast on {device} needs a usable device: this region is switched off"
        ))),
        _ => Ok(None),
    }
}

fn parse(text: &str) -> Result<Region, String> {
    let rest = text.trim().strip_prefix('{').ok_or("expected `{` first")?;
    let (devices, rest) = rest.split_once('}').ok_or("expected `}` after the devices")?;
    let mut region = Region::default();
    let mut seen = 0;
    for entry in devices.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (device, state) = entry
            .split_once(':')
            .ok_or_else(|| format!("expected `device: dtype`, found `{entry}`"))?;
        let device: DeviceType =
            device.trim().parse().map_err(|error: PolicyError| error.to_string())?;
        if seen & device.bit() != 0 {
            return Err(format!("{device} is named twice"));
        }
        seen |= device.bit();
        let state = state.trim();
        if let Some((number, _)) = state.split_once(':') {
            let one = format!("`{device}:{}`", number.trim());
            return Err(format!("{one} is one device, and a region is of all devices of a type"));
        }
        region = match state.strip_prefix("off").map(str::trim) {
            Some("") => region.without(device),
            Some(low) => region.with_device(device, false, low.parse()?),
            None => region.with_device(device, true, state.parse()?),
        };
    }
    let words: Vec<_> = rest.split_whitespace().collect();
    let ["cache", cache @ ("on" | "off"), "scope", scope] = words[..] else {
        return Err(format!(
            "expected `cache on|off scope NUMBER` after the devices, found `{}`",
            rest.trim()
        ));
    };
    let scope =
        scope.parse().map_err(|_| format!("expected the number of a scope, found `{scope}`"))?;
    Ok(region.with_cache(cache == "on").with_scope(scope))
}

impl FromStr for Region {
    type Err = PolicyError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Region::parse(s)
    }
}

impl Region {
    /// True if it says something of a device type.
    pub(crate) fn speaks_of(&self, device: DeviceType) -> bool {
        self.is_enabled(device) || self.is_switched_off(device)
    }

    /// Its text, with these names for device types.
    pub(crate) fn named<'a>(
        &'a self,
        name: &'a dyn Fn(DeviceType) -> &'a str,
    ) -> impl fmt::Display + use<'a> {
        fmt::from_fn(move |f| {
            f.write_str("{")?;
            let mut separator = "";
            for device in DeviceType::ALL.into_iter().filter(|device| self.speaks_of(*device)) {
                let (low, off) =
                    (self.low(device), if self.is_enabled(device) { "" } else { "off " });
                write!(f, "{separator}{}: {off}{low}", name(device))?;
                separator = ", ";
            }
            write!(f, "}} cache {} scope {}", if self.cache { "on" } else { "off" }, self.scope)
        })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named(&|device| device.name()).fmt(f)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceType::{Cpu, Cuda, PrivateUse1};

    fn on(outer: &Region, device: DeviceType, dtype: Option<DType>) -> Region {
        let (region, warning) = outer.enter(device, dtype, true, None).unwrap();
        assert_eq!(warning, None);
        region
    }

    #[test]
    fn no_dtype_means_the_current_one() {
        let outer = on(&Region::default(), Cpu, Some(DType::F16));
        assert_eq!(on(&outer, Cpu, None), outer);
        let (island, _) = outer.enter(Cpu, None, false, None).unwrap();
        assert!(!island.is_enabled(Cpu));
        assert_eq!(on(&island, Cpu, None), outer);
        assert_eq!(on(&Region::default(), Cuda, None).low(Cuda), DType::F16);
    }

    #[test]
    fn a_refused_dtype_warns_switches_off_and_is_remembered() {
        let outer = on(&Region::default(), Cpu, None);
        let (inner, warning) = outer.enter(Cpu, Some(DType::F32), true, None).unwrap();
        assert!(warning.unwrap().contains("bf16 or f16, not f32"));
        assert!(!inner.is_enabled(Cpu) && inner.low(Cpu) == DType::F32);
        let (_, silent) = outer.enter(Cpu, Some(DType::F64), false, None).unwrap();
        assert_eq!(silent, None);
        assert!(on(&outer, Cuda, Some(DType::I32)).is_enabled(Cuda));
    }

    #[test]
    fn devices_answer_for_themselves() {
        let start = Region::default();
        assert!(start.enter(PrivateUse1, None, false, None).is_err());
        let only_bf16 = Accepted::Only(&[DType::BF16]);
        let (npu, warning) =
            start.enter_accepting(only_bf16, PrivateUse1, None, true, None).unwrap();
        assert!(warning.is_some() && npu.is_off(), "the default f16 is not supported");
        let (npu, _) =
            start.enter_accepting(only_bf16, PrivateUse1, Some(DType::BF16), true, None).unwrap();
        assert!(npu.is_enabled(PrivateUse1));
        let old_card = Accepted::AnyBut(DType::BF16);
        assert!(start.enter_accepting(old_card, Cuda, Some(DType::BF16), true, None).is_err());
        assert!(start.enter_accepting(old_card, Cuda, Some(DType::BF16), false, None).is_ok());
        let (off, warning) =
            start.enter_accepting(Accepted::Unavailable, Cuda, None, true, None).unwrap();
        assert!(warning.is_some() && off.is_off());
    }

    #[test]
    fn the_cache_flag_is_inherited() {
        let (off, _) = Region::default().enter(Cpu, None, true, Some(false)).unwrap();
        assert!(!off.cache() && !on(&off, Cuda, None).cache());
    }

    #[test]
    fn text_round_trips() {
        let region = on(&on(&Region::default(), Cpu, None), Cuda, Some(DType::BF16)).with_scope(3);
        assert_eq!(region.to_string(), "{cpu: bf16, cuda: bf16} cache on scope 3");
        let (island, _) = region.enter(Cuda, Some(DType::F32), false, Some(false)).unwrap();
        assert_eq!(island.to_string(), "{cpu: bf16, cuda: off f32} cache off scope 3");
        for region in [Region::default(), region, island] {
            assert_eq!(Region::parse(&region.to_string()), Ok(region));
        }
        let explicit = Region::parse("{cpu: bf16, cuda: off} cache on scope 3").unwrap();
        assert_eq!(explicit.to_string(), "{cpu: bf16, cuda: off f16} cache on scope 3");
    }

    #[test]
    fn an_island_is_told_from_what_nobody_switched_on() {
        let outer = on(&Region::default(), Cpu, None);
        let (island, _) = outer.enter(Cpu, None, false, None).unwrap();
        assert!(island.is_switched_off(Cpu) && !island.is_switched_off(Cuda));
        assert_eq!((&island, &island), (&outer.clone().off(), &outer.clone().without(Cpu)));
        assert_ne!(island, Region::default());
        assert!(!on(&island, Cpu, None).is_switched_off(Cpu));
        let back = island.with_device_of(Cpu, &Region::default());
        assert_eq!(back, Region::default());
    }

    #[test]
    fn bad_text_is_an_error_that_says_what_is_wrong() {
        for (text, says) in [
            ("cpu: bf16", "`{`"),
            ("{cpu: bf16 cache on scope 1", "`}`"),
            ("{tpu: bf16} cache on scope 1", "`tpu`"),
            ("{cpu: b16} cache on scope 1", "`b16`"),
            ("{cpu} cache on scope 1", "`cpu`"),
            ("{cpu: bf16, cpu: f16} cache on scope 1", "twice"),
            ("{cpu: bf16} cache maybe scope 1", "cache on|off"),
            ("{cpu: bf16} cache on scope x", "`x`"),
        ] {
            let error = Region::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
