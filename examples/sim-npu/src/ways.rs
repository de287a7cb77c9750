//! [`Ways`]: chips that do something otherwise on purpose: right in another way, or wrong.

use crate::alu;
use crate::isa::FloatOp;
use tracecast_runtime::ir::kernel::Function;

/// What is wrong with a chip. The conformance kit finds each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// An upload to where one went before brings what that one brought.
    StaleUpload,
    /// A number is reached before the commands that it was recorded behind.
    EarlyEvent,
    /// Two launches change places.
    LostOrder,
    /// The last position of a strip that is not full is left out.
    Tail,
    /// Ties are rounded up to bf16, not to even.
    Tie,
    /// A predicated kernel always runs.
    WhenIgnored,
    /// A check that is raised stops the queue only behind the next number.
    UpdateBeforeCheck,
    /// Memory is lost with each allocation.
    Leak,
    /// The chip stays that of the thread.
    GuardLeft,
    /// Other chips than the first one do not see that a gradient was not finite.
    FoundInfOnFirst,
    /// Other chips than the first one keep the first value of an uploaded scalar.
    ScaleNotCopied,
    /// An i64 becomes an f64 before it becomes an f32.
    CastThroughF64,
    /// The lists of autocast lack `matmul`.
    MissingEntry,
    /// A region that names no dtype is in f16.
    WrongDefault,
    /// Two threads that load kernels may get each other's program.
    Race,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 15] = [
        Defect::StaleUpload,
        Defect::EarlyEvent,
        Defect::LostOrder,
        Defect::Tail,
        Defect::Tie,
        Defect::WhenIgnored,
        Defect::UpdateBeforeCheck,
        Defect::Leak,
        Defect::GuardLeft,
        Defect::FoundInfOnFirst,
        Defect::ScaleNotCopied,
        Defect::CastThroughF64,
        Defect::MissingEntry,
        Defect::WrongDefault,
        Defect::Race,
    ];
}

/// How a chip computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// Products are summed backwards in each block, and exponentials are one unit in the last place
    /// larger: right, with other bits.
    pub is_other: bool,
    /// What is wrong.
    pub defect: Option<Defect>,
}

impl Ways {
    /// What an instruction makes of a word, where it should have made `made`.
    pub(crate) fn made(self, op: FloatOp, from: u64, made: u64) -> u64 {
        let number = alu::float(made);
        let is_number = number.is_finite() && number != 0.0;
        match op {
            FloatOp::Call(Function::Exp) if self.is_other && is_number => {
                alu::of_float(number.next_up())
            }
            FloatOp::Round if self.has(Defect::Tie) && is_number => {
                from.wrapping_add(0x8000) & 0xffff_0000
            }
            _ => made,
        }
    }

    /// True if that is wrong.
    pub fn has(self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}
