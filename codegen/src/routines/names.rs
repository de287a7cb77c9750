//! [`Routine`]: which precompiled routine generated code calls, the symbol that stands for it in
//! objects and files, and its address in this process.

use super::{Tiles, gather_within, narrow_float, one};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Function, Scalar};

/// A routine that generated code calls.
///
/// A routine over a *tile* takes some elements in a row (its type is [`TileFn`](super::TileFn));
/// the others take one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Routine {
    /// A function of each number of a tile.
    FunctionTile(Function, Precision),
    /// A function of one number.
    Function(Function, Precision),
    /// Narrow floats of a tile to f32.
    WidenTile(NarrowFloat),
    /// f32 of a tile to the nearest narrow floats.
    NarrowTile(NarrowFloat),
    /// f32 of a tile to the nearest values of a narrow float, as f32.
    RoundTile(NarrowFloat),
    /// The bits of one narrow float to f32.
    Widen(NarrowFloat),
    /// One number to the bits of the nearest narrow float.
    Narrow(Precision, NarrowFloat),
    /// One number to the nearest value of a narrow float.
    Round(Precision, NarrowFloat),
    /// The largest integral number not above one number.
    Floor(Precision),
    /// A product and a sum with one rounding.
    MulAdd(Precision),
    /// The random words of some elements in a row.
    RandomTile,
    /// The random word of one element.
    Random,
    /// Strided elements of some rows, copied to contiguous rows.
    GatherRows(ElementSize),
    /// Elements of a row some of which are not there, copied to contiguous ones.
    GatherWithin(ElementSize),
    /// Sums of rows of a table.
    SumRows,
}

/// The precision of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Precision {
    /// f32.
    Single,
    /// f64.
    Double,
}

/// A float that is stored in fewer bits than the f32 that it is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NarrowFloat(DType);

/// The size of an element that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ElementSize {
    /// One byte.
    One,
    /// Two bytes.
    Two,
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

impl Precision {
    const ALL: [Precision; 2] = [Precision::Single, Precision::Double];

    /// That of a float; `None` for other scalars.
    pub(crate) fn of(ty: Scalar) -> Option<Precision> {
        match ty {
            Scalar::F32 => Some(Precision::Single),
            Scalar::F64 => Some(Precision::Double),
            Scalar::I32 | Scalar::I64 | Scalar::Bool => None,
        }
    }

    /// What it adds to the symbol of a routine.
    fn suffix(self) -> &'static str {
        match self {
            Precision::Single => "",
            Precision::Double => "_f64",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Precision::Single => "f32",
            Precision::Double => "f64",
        }
    }
}

impl NarrowFloat {
    /// Every one that kernels exist for.
    fn all() -> impl Iterator<Item = NarrowFloat> {
        DType::COMPUTABLE.into_iter().filter_map(NarrowFloat::of)
    }

    /// That of a dtype; `None` if the dtype is something else.
    pub(crate) fn of(dtype: DType) -> Option<NarrowFloat> {
        (dtype.is_low() && dtype.is_computable()).then_some(NarrowFloat(dtype))
    }

    /// Its dtype.
    pub(super) fn dtype(self) -> DType {
        self.0
    }
}

impl ElementSize {
    /// Every size, in order.
    pub(crate) const ALL: [ElementSize; 4] =
        [ElementSize::One, ElementSize::Two, ElementSize::Four, ElementSize::Eight];

    /// That of elements of `bytes` bytes; `None` if no element has as many.
    pub(crate) fn of(bytes: i64) -> Option<ElementSize> {
        ElementSize::ALL.into_iter().find(|size| size.bytes() == bytes)
    }

    fn bytes(self) -> i64 {
        match self {
            ElementSize::One => 1,
            ElementSize::Two => 2,
            ElementSize::Four => 4,
            ElementSize::Eight => 8,
        }
    }
}

impl Routine {
    /// Every routine.
    pub(crate) fn all() -> impl Iterator<Item = Routine> {
        let functions = Function::ALL.into_iter().flat_map(|f| {
            let of = move |p| [Routine::Function(f, p), Routine::FunctionTile(f, p)];
            Precision::ALL.into_iter().flat_map(of)
        });
        let narrow = NarrowFloat::all().flat_map(|n| {
            let tiles = [Routine::WidenTile(n), Routine::NarrowTile(n), Routine::RoundTile(n)];
            let single = Precision::ALL.map(|p| [Routine::Narrow(p, n), Routine::Round(p, n)]);
            tiles.into_iter().chain([Routine::Widen(n)]).chain(single.into_iter().flatten())
        });
        let arithmetic = Precision::ALL.map(|p| [Routine::Floor(p), Routine::MulAdd(p)]);
        let gathers =
            ElementSize::ALL.map(|size| [Routine::GatherRows(size), Routine::GatherWithin(size)]);
        let gathers = gathers.into_iter().flatten();
        let random = [Routine::Random, Routine::RandomTile, Routine::SumRows];
        functions.chain(narrow).chain(arithmetic.into_iter().flatten()).chain(gathers).chain(random)
    }

    /// The symbol that stands for it: no two routines share one.
    pub(crate) fn symbol(self) -> &'static str {
        let found = SYMBOLS.iter().find(|(routine, _)| *routine == self);
        found.map(|(_, symbol)| symbol.as_str()).expect("the list of routines has every routine")
    }

    /// Where it is in this process, among the routines for one kind of CPU.
    pub(crate) fn address(self, tiles: &Tiles) -> usize {
        use Precision::{Double, Single};
        let pointer = match self {
            Routine::FunctionTile(f, Single) => tiles.function(f).tile as *const (),
            Routine::FunctionTile(f, Double) => tiles.function(f).tile_f64 as *const (),
            Routine::Function(f, Single) => tiles.function(f).one as *const (),
            Routine::Function(f, Double) => tiles.function(f).one_f64 as *const (),
            Routine::WidenTile(narrow) => tiles.widen(narrow) as *const (),
            Routine::NarrowTile(narrow) => tiles.narrow(narrow) as *const (),
            Routine::RoundTile(narrow) => tiles.round(narrow) as *const (),
            Routine::Widen(narrow) => tiles.widen_one(narrow),
            Routine::Narrow(Single, narrow) => tiles.narrow_one(narrow),
            Routine::Narrow(Double, narrow) => narrow_float::narrow_f64(narrow) as *const (),
            Routine::Round(Single, narrow) => tiles.round_one(narrow),
            Routine::Round(Double, narrow) => narrow_float::round_f64(narrow) as *const (),
            Routine::Floor(Single) => one::floor as *const (),
            Routine::Floor(Double) => one::floor_f64 as *const (),
            Routine::MulAdd(Single) => one::mul_add as *const (),
            Routine::MulAdd(Double) => one::mul_add_f64 as *const (),
            Routine::RandomTile => tiles.random as *const (),
            Routine::Random => one::random as *const (),
            Routine::GatherRows(size) => tiles.gather_rows(size) as *const (),
            Routine::SumRows => tiles.sum_rows as *const (),
            Routine::GatherWithin(size) => gather_within::of_size(size) as *const (),
        };
        pointer as usize
    }
}

/// Each routine with its symbol, made once: code that is loaded asks for many.
static SYMBOLS: LazyLock<Vec<(Routine, String)>> =
    LazyLock::new(|| Routine::all().map(|routine| (routine, routine.to_string())).collect());

/// The symbol. `exp_tile` is the function over a tile of f32, `exp` that of one f32, `exp_f64` that
/// of one f64.
impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routine::FunctionTile(function, p) => {
                write!(f, "{}{}_tile", function.name(), p.suffix())
            }
            Routine::Function(function, p) => write!(f, "{}{}", function.name(), p.suffix()),
            Routine::WidenTile(narrow) => write!(f, "{}_to_f32_tile", narrow.dtype()),
            Routine::NarrowTile(narrow) => write!(f, "f32_to_{}_tile", narrow.dtype()),
            Routine::RoundTile(narrow) => write!(f, "round_{}_tile", narrow.dtype()),
            Routine::Widen(narrow) => write!(f, "{}_to_f32", narrow.dtype()),
            Routine::Narrow(p, narrow) => write!(f, "{}_to_{}", p.name(), narrow.dtype()),
            Routine::Round(p, narrow) => write!(f, "round_{}{}", narrow.dtype(), p.suffix()),
            Routine::Floor(p) => write!(f, "floor{}", p.suffix()),
            Routine::MulAdd(p) => write!(f, "mul_add{}", p.suffix()),
            Routine::RandomTile => f.write_str("random_tile"),
            Routine::Random => f.write_str("random"),
            Routine::SumRows => f.write_str("sum_rows"),
            Routine::GatherRows(size) => write!(f, "gather_rows_{}", size.bytes()),
            Routine::GatherWithin(size) => write!(f, "gather_within_{}", size.bytes()),
        }
    }
}

impl FromStr for Routine {
    type Err = String;

    /// # Errors
    /// If it is the symbol of no routine.
    fn from_str(symbol: &str) -> Result<Self, String> {
        let found = SYMBOLS.iter().find(|(_, known)| known == symbol);
        found.map(|(routine, _)| *routine).ok_or_else(|| format!("there is no routine {symbol}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{InstructionSet, Vectors};
    use std::collections::HashSet;

    #[test]
    fn each_routine_has_a_symbol_and_an_address_of_its_own() {
        for vectors in Vectors::ALL {
            let tiles = Tiles::of(InstructionSet::of(vectors));
            let mut symbols = HashSet::new();
            for routine in Routine::all() {
                assert!(symbols.insert(routine.symbol()), "{routine} is the symbol of two");
                assert_eq!(routine.symbol().parse(), Ok(routine));
                assert_ne!(routine.address(tiles), 0, "{routine}");
            }
            assert!(symbols.len() > 3 * Function::ALL.len(), "{symbols:?}");
        }
        assert_eq!(Routine::FunctionTile(Function::Exp, Precision::Single).symbol(), "exp_tile");
        let narrow = Routine::Narrow(Precision::Double, NarrowFloat(DType::BF16));
        assert_eq!(narrow.symbol(), "f64_to_bf16");
        assert_eq!("exp_f16".parse::<Routine>(), Err("there is no routine exp_f16".to_owned()));
    }
}
