//! Activations.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::IntoDims;
use tracecast_ir::ops::prelude::Curves;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let float = |at, name, or: f64| Ok::<f64, String>(a.opt_float(at, name)?.unwrap_or(or));
    let made = || {
        let x = a.x()?;
        let _ = a.flag(usize::MAX, "inplace")?;
        Ok(vec![match name {
            "hardtanh" => x.hardtanh(float(1, "min_val", -1.0)?, float(2, "max_val", 1.0)?),
            "relu6" => x.relu6(),
            "leaky_relu" => x.leaky_relu(float(1, "negative_slope", 0.01)?),
            "threshold" => x.threshold(a.float(1, "threshold")?, a.float(2, "value")?),
            "hardshrink" => x.hardshrink(float(1, "lambd", 0.5)?),
            "softshrink" => x.softshrink(float(1, "lambd", 0.5)?),
            "tanhshrink" => x.tanhshrink(),
            "softsign" => x.softsign(),
            "softmin" => x.softmin([a.int(1, "dim")?].dtype(a.dtype(3, "dtype")?)),
            "_safe_softmax" => x.safe_softmax([a.int(1, "dim")?].dtype(a.dtype(2, "dtype")?)),
            "celu" => x.celu(float(1, "alpha", 1.0)?),
            "selu" => x.selu(),
            "logsigmoid" => x.log_sigmoid(),
            _ => return Err(String::new()),
        }])
    };
    const NAMES: &[&str] = names! {
        "hardtanh" "relu6" "leaky_relu" "threshold" "hardshrink" "softshrink" "tanhshrink"
        "softsign" "softmin" "_safe_softmax" "celu" "selu" "logsigmoid"
    };
    NAMES.contains(&name).then(made)
}
