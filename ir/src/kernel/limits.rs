//! [`KernelLimits`]: what a device's kernels may be made of, as data for fusion and for the loader.

use super::{FormKind, Kernel, Scalar, ScalarOp};
use crate::DType;

/// What a device's kernels may be made of. Fusion makes no kernel beyond the limits where it can
/// make several within them; what stays beyond them is not handed to the device.
///
/// ```
/// use tracecast_ir::DType;
/// use tracecast_ir::kernel::KernelLimits;
///
/// const NUMBERS: [DType; 2] = [DType::F32, DType::BF16];
/// let limits = KernelLimits { dtypes: &NUMBERS, most_operands: 6, ..KernelLimits::NONE };
/// assert!(limits.holds(DType::BF16) && !limits.holds(DType::I64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// The forms that there is code for.
    pub forms: &'static [FormKind],
    /// The dtypes that operands in memory may have. Copies are no kernels, and take any.
    pub dtypes: &'static [DType],
    /// The types of registers.
    pub scalars: &'static [Scalar],
    /// The names of [instructions](ScalarOp::name) that there are not, such as `erf`.
    pub without: &'static [&'static str],
    /// How many operands a kernel may have: inputs and outputs, each counted even if an output
    /// replaces an input in place.
    pub most_operands: usize,
    /// How many bytes an operand may have.
    pub most_bytes: usize,
}

/// The types of registers that the language has.
const SCALARS: [Scalar; 5] = [Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64, Scalar::Bool];

impl KernelLimits {
    /// Every kernel is taken.
    pub const NONE: KernelLimits = KernelLimits {
        forms: &FormKind::ALL,
        dtypes: &DType::ALL,
        scalars: &SCALARS,
        without: &[],
        most_operands: usize::MAX,
        most_bytes: usize::MAX,
    };

    /// True if every kernel is taken.
    pub fn are_none(&self) -> bool {
        *self == KernelLimits::NONE
    }

    /// Whether operands in memory may have the dtype.
    pub fn holds(&self, dtype: DType) -> bool {
        self.dtypes.contains(&dtype)
    }

    /// Whether the device computes in the dtype: it has registers for it. For f64 its memory has to
    /// hold f64 as well; without that, f64 is missing or emulated.
    pub fn is_native(&self, dtype: DType) -> bool {
        Scalar::of(dtype).is_none_or(|scalar| self.scalars.contains(&scalar))
            && (dtype != DType::F64 || self.holds(dtype))
    }

    /// Why a kernel is beyond the limits, if it is. Sizes that are names count as nothing.
    pub fn refuse(&self, kernel: &Kernel) -> Option<String> {
        let form = kernel.form.kind();
        if !self.forms.contains(&form) {
            return Some(format!("it has no code for a {}", kernel.form_name()));
        }
        let outputs = kernel.outputs.iter().map(|output| &output.ty);
        for ty in kernel.inputs.iter().chain(outputs) {
            if !self.holds(ty.dtype) {
                let held: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
                let held = held.join(", ");
                return Some(format!("its memory holds {held} only, found {}", ty.dtype));
            }
            let bytes = ty.bytes().number().and_then(|bytes| usize::try_from(bytes).ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes > self.most_bytes) {
                return Some(format!("an operand has {bytes} bytes, at most {}", self.most_bytes));
            }
        }
        let operands = kernel.inputs.len() + kernel.outputs.len();
        if operands > self.most_operands {
            return Some(format!("it has {operands} operands, at most {}", self.most_operands));
        }
        self.refuse_code(kernel)
    }

    /// Why the scalar code of a kernel is beyond the limits.
    fn refuse_code(&self, kernel: &Kernel) -> Option<String> {
        if self.without.is_empty() && self.scalars == SCALARS {
            return None;
        }
        let mut why = None;
        kernel.form.clone().as_loops_mut().each_body(&mut |body| {
            for inst in &body.insts {
                if self.without.contains(&inst.op.name()) {
                    why.get_or_insert_with(|| format!("it has no `{}`", inst.op.name()));
                } else if !self.scalars.contains(&inst.ty) && inst.op != ScalarOp::Acc {
                    why.get_or_insert_with(|| format!("it computes nothing in {}", inst.ty.name()));
                }
            }
        });
        why
    }
}

impl Default for KernelLimits {
    /// [`NONE`](KernelLimits::NONE).
    fn default() -> Self {
        KernelLimits::NONE
    }
}
