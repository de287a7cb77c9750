//! [`Routine`]: which precompiled routine generated code calls, the symbol that stands for it in
//! objects and files, and its address in this process.

use super::kinds::{ElementSize, NarrowFloat, Precision};
use super::{Tiles, gather_within, narrow_float, one};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use tracecast_ir::kernel::Function;

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
    use tracecast_ir::DType;

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
        let narrow = Routine::Narrow(Precision::Double, NarrowFloat::of(DType::BF16).unwrap());
        assert_eq!(narrow.symbol(), "f64_to_bf16");
        assert_eq!("exp_f16".parse::<Routine>(), Err("there is no routine exp_f16".to_owned()));
    }
}
