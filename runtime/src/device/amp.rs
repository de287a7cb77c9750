//! [`AmpSupport`]: what a kind of device says about autocast; [`ScalerRecorder`]: how it has loss
//! scaling recorded.

use crate::error::{Error, Result};
use std::fmt::Debug;
use std::sync::Arc;
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, PolicyTable, Target};
use tracecast_ir::{DType, Var};

/// What autocast may do on a kind of device: the dtypes of its regions, the table it takes over,
/// and rules of its own.
///
/// Devices of several kinds have a say in one program, so this is no whole [`PolicySet`] but what
/// one kind [adds](AmpSupport::add_to) to it.
///
/// ```
/// use tracecast_ir::DType;
/// use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Target};
/// use tracecast_runtime::{AmpSupport, Base};
///
/// let amp = AmpSupport::new([DType::BF16])
///     .base(Base::Of(DeviceType::Cuda))
///     .rule(Target::Op("softmax".to_owned()), Policy::LowerPrecisionFp);
/// let mut policies = PolicySet::standard();
/// amp.add_to(&mut policies, DeviceType::PrivateUse1);
/// assert_eq!(policies.rules().count(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct AmpSupport {
    /// The low dtypes that regions take; another one switches the region off, with a warning.
    pub dtypes: Vec<DType>,
    /// That of a region that names none and is inside no other.
    pub default: DType,
    /// What holds for ops of which the rules say nothing.
    pub base: Base,
    /// Rules of this device alone; later ones are stronger.
    pub rules: Vec<(Target, Policy)>,
    /// How loss scaling is recorded for these devices; `None`: as everywhere.
    pub recorder: Option<Arc<dyn ScalerRecorder>>,
}

/// How the steps of a loss scaler are recorded for devices of a kind, by ops of its choice: for
/// devices that have an op of their own for it, or lack what the ops of everywhere need. Eager and
/// recorded scalers ask it, and texts have what it records.
///
/// What is recorded here is taken on trust: the checks of programs that scale speak of the ops of
/// everywhere.
pub trait ScalerRecorder: Debug + Send + Sync {
    /// A gradient times `inverse`, one f32, in the type of the gradient; and one f32 that is not
    /// zero if an element of the gradient was not finite before. `None`, the default: the ops
    /// `unscale` and `nonfinite`.
    fn unscale_and_check<'t>(&self, _grad: Var<'t>, _inverse: Var<'t>) -> Option<[Var<'t>; 2]> {
        None
    }

    /// The next scale and the next count of good steps, of the types that they have. `None`, the
    /// default: the op `update_scale`, which counts in i32.
    fn update_scale<'t>(&self, _now: ScaleUpdate<'t>) -> Option<[Var<'t>; 2]> {
        None
    }

    /// The dtype in which good steps are counted. `None` if the device keeps neither scale nor
    /// count: an eager scaler then has them on the host, and a recorded one, which is part of the
    /// device's program, is an error.
    fn tracker(&self) -> Option<DType> {
        Some(DType::I32)
    }
}

/// What a loss scaler knows at the end of a step.
#[derive(Clone, Copy, Debug)]
pub struct ScaleUpdate<'t> {
    /// The scale of the step, one f32.
    pub scale: Var<'t>,
    /// How many steps in a row were good.
    pub tracker: Var<'t>,
    /// Not zero if a gradient was not finite, one f32.
    pub found_inf: Var<'t>,
    /// What the scale grows by.
    pub growth_factor: f64,
    /// What it is multiplied by if a gradient was not finite.
    pub backoff_factor: f64,
    /// The number of good steps after which it grows.
    pub growth_interval: i64,
}

/// The table that a device starts with.
#[derive(Clone, Debug, Default)]
pub enum Base {
    /// None: every op falls through.
    #[default]
    Nothing,
    /// That of another device type, as in the set at hand.
    Of(DeviceType),
    /// This one, such as a strategy ([`PolicyTable::by_dtype`]); the device type in it does not
    /// matter.
    Table(PolicyTable),
}

impl AmpSupport {
    /// Regions of these dtypes, the first of them if a region names none; no table and no rules.
    ///
    /// # Panics
    /// Without a dtype.
    pub fn new(dtypes: impl Into<Vec<DType>>) -> Self {
        let dtypes = dtypes.into();
        let default = *dtypes.first().expect("a device with autocast takes at least one dtype");
        AmpSupport { dtypes, default, base: Base::Nothing, rules: Vec::new(), recorder: None }
    }

    /// With this table.
    #[must_use]
    pub fn base(mut self, base: Base) -> Self {
        self.base = base;
        self
    }

    /// With this rule besides.
    #[must_use]
    pub fn rule(mut self, target: Target, policy: Policy) -> Self {
        self.rules.push((target, policy));
        self
    }

    /// With loss scaling recorded by this.
    #[must_use]
    pub fn recorder(mut self, recorder: impl ScalerRecorder + 'static) -> Self {
        self.recorder = Some(Arc::new(recorder));
        self
    }

    /// Adds table and rules for devices of that type.
    pub fn add_to(&self, policies: &mut PolicySet, device_type: DeviceType) {
        let table = match &self.base {
            Base::Nothing => None,
            Base::Of(other) => policies.table(*other).map(|table| table.for_device(device_type)),
            Base::Table(table) => Some(table.for_device(device_type)),
        };
        if let Some(table) = table {
            policies.set_table(table.into());
        }
        for (target, policy) in &self.rules {
            policies.add_rule(target.clone(), Some(device_type), policy.clone());
        }
    }

    /// Checks that the default dtype is one of its dtypes, for the kind of that name.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, name: &str) -> Result<()> {
        if self.dtypes.contains(&self.default) {
            return Ok(());
        }
        let all: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
        Err(Error::Device(format!(
            "`{name}` has {} for regions that name no dtype, expected one that its regions take: {}",
            self.default,
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        )))
    }
}
