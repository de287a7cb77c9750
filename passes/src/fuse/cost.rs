//! Prices of fusion: what storing a value costs, and what rematerialising it where it is read
//! costs.
//!
//! [`Cost`] counts bytes and operations of both sides. [`Prices`] weigh operations against bytes.
//! They are constants of a kind of device and are never measured, so that the kernels of a program
//! depend on the program alone. Named sizes count with their traced values.

use std::fmt;
use std::ops::AddAssign;
use tracecast_ir::kernel::KernelLimits;
use tracecast_ir::kernel::build::lowering;
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId};

/// A chain of more ops or sources is not followed: it bounds the search and the operands of a
/// kernel.
pub(super) const LONGEST_CHAIN: usize = 16;
/// A function of memory that takes more operations an element is stored: it bounds the code of a
/// kernel.
pub(super) const MOST_OPERATIONS: usize = 64;
/// So is one that reads more than its bytes times this of what kernels make: the sum of all that
/// the layers of a network have added to what came in would be computed from the beginning in every
/// layer.
pub(super) const MOST_READ: usize = 2;
/// A function of at least this number of ops that is only read at a large stride is stored: made in
/// order it takes vectors.
pub(super) const FEW_APART: usize = 3;
/// The operations that a load of a vector takes, an element each.
pub(super) const LOAD: usize = 1;
/// The operations by which a vector loop puts zeros in the place of computed elements that lie in
/// the padding of windows.
pub(super) const SELECT: usize = 4;
/// A value that is stored only so that another one can be rematerialised has at most the other
/// one's bytes divided by this.
pub(super) const SMALLER: usize = 8;

/// A parameter whose bytes take at least as long as this number of launches is updated by a kernel
/// of its own: the launch is then below 2 % of the update.
const OWN_LAUNCH: usize = 64;

/// What arithmetic and launches of a device cost beside a byte that crosses memory.
///
/// ```
/// use tracecast_passes::fuse::{Cost, Prices};
///
/// let stored = Cost { written: 4096, read: 4096, operations: 1024, launches: 0 };
/// assert_eq!(stored.price(&Prices::CPU), 8192 + 512);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Operations of vector loops, one element each, that take as long as a byte.
    pub operations_per_byte: usize,
    /// Vector operations that take as long as one operation on a single element.
    pub lanes: usize,
    /// Operations that decide whether an element seen through windows lies in the padding, beside
    /// those that compute it.
    pub guard: usize,
    /// Operations that a computed element of a factor takes more than one that is packed from
    /// memory.
    pub pack: usize,
    /// Operations that a conversion takes which rounds.
    pub rounding: usize,
    /// Bytes that cross memory in the time of a launch.
    pub launch: usize,
}

impl Prices {
    /// Those of a CPU with vectors of 512 bits: one such vector operation a cycle at 3 GHz against
    /// memory of 50 GB/s, and a launch of 0.3 µs. `guard` counts the index arithmetic, comparisons
    /// and selections of two window axes.
    pub const CPU: Prices = Prices {
        operations_per_byte: 2,
        lanes: 16,
        guard: 20,
        pack: 4,
        rounding: 4,
        launch: 16_384,
    };
}

/// How fusion decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What operations cost beside bytes.
    pub prices: Prices,
    /// True to store every value, for measuring what fusion leaves out.
    pub store_all: bool,
    /// True to order kernels so that fewer bytes lie between them; false to keep the order of
    /// recording.
    pub plan_memory: bool,
    /// What the kernels of the device are limited to.
    pub limits: KernelLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            prices: Prices::default(),
            store_all: false,
            plan_memory: true,
            limits: KernelLimits::NONE,
        }
    }
}

impl Settings {
    /// The bytes from which on a parameter is updated by a kernel of its own.
    pub(super) fn own_launch(&self) -> usize {
        self.prices.launch.saturating_mul(OWN_LAUNCH)
    }
}

impl Default for Prices {
    fn default() -> Self {
        Prices::CPU
    }
}

/// Bytes and operations of one way to hand a value to its readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes written.
    pub written: usize,
    /// Bytes read, each kernel that reads a value counted once.
    pub read: usize,
    /// Operations of vector loops, one element each.
    pub operations: usize,
    /// Kernels that would not be launched otherwise.
    pub launches: usize,
}

impl Cost {
    /// The bytes that would take as long.
    pub fn price(&self, prices: &Prices) -> usize {
        self.written
            .saturating_add(self.read)
            .saturating_add(self.operations / prices.operations_per_byte)
            .saturating_add(self.launches.saturating_mul(prices.launch))
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.written = self.written.saturating_add(other.written);
        self.read = self.read.saturating_add(other.read);
        self.operations = self.operations.saturating_add(other.operations);
        self.launches = self.launches.saturating_add(other.launches);
    }
}

/// `2.1 MB written, 19 MB read, 38 M operations`
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { written, read, operations, launches } = *self;
        let launched = if launches == 1 { "launch" } else { "launches" };
        let parts = [
            (written, "B", "written"),
            (read, "B", "read"),
            (operations, "", "operations"),
            (launches, "", launched),
        ];
        let mut parts = parts.iter().filter(|(count, ..)| *count > 0).peekable();
        if parts.peek().is_none() {
            return f.write_str("nothing");
        }
        for (i, (count, unit, what)) in parts.enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} {what}", Scaled { count: *count, unit })?;
        }
        Ok(())
    }
}

/// A count with two digits at least, in thousands or millions where it has as many.
struct Scaled<'u> {
    count: usize,
    unit: &'u str,
}

impl fmt::Display for Scaled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scaled { count, unit } = *self;
        let steps = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
        let Some((by, prefix)) = steps.into_iter().find(|(by, _)| count >= *by) else {
            return write!(f, "{count}{}{unit}", if unit.is_empty() { "" } else { " " });
        };
        let scaled = count as f64 / by as f64;
        let digits = usize::from(scaled < 10.0);
        write!(f, "{scaled:.digits$} {prefix}{unit}")
    }
}

/// A value for which both ways were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// The cost of writing it once and reading it.
    pub stored: Cost,
    /// The cost of computing it where it is read.
    pub rematerialised: Cost,
}

/// `stored: 2.1 MB written, 19 MB read; rematerialised: 8.4 MB read, 38 M operations`
impl fmt::Display for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stored: {}; rematerialised: {}", self.stored, self.rematerialised)
    }
}

/// The operations that one element of a node takes; views, widening and constants take none.
pub(super) fn operations(graph: &Graph, n: NodeId, prices: &Prices) -> usize {
    let node = graph.node(n);
    match graph.args(n).first() {
        _ if !matches!(lowering(graph, n), Some(Lower::Map(_))) => 0,
        Some(x) if node.op.is_cast() => {
            let to = node.attrs.dtype("to").unwrap_or(graph.ty(*x).dtype);
            if graph.ty(*x).dtype.fits_in(to) { 0 } else { prices.rounding }
        }
        None => 0,
        Some(_) => 1,
    }
}
