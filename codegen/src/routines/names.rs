//! The routines that generated code calls, by name: code from a file finds them where they are in this process.

use super::{Tiles, one};
use tracecast_ir::DType;
use tracecast_ir::kernel::Function;

/// The address of a routine; `None` if there is none of that name.
///
/// `exp_tile` is the function over a tile, `exp` that of one f32, `exp_f64` that of one f64.
pub(crate) fn address_of(tiles: &Tiles, name: &str) -> Option<usize> {
    Some(match name {
        "random_tile" => tiles.random as *const () as usize,
        "bring_1" => tiles.bring[0] as *const () as usize,
        "bring_2" => tiles.bring[1] as *const () as usize,
        "bring_4" => tiles.bring[2] as *const () as usize,
        "bring_8" => tiles.bring[3] as *const () as usize,
        "f16_to_f32_tile" => tiles.widen(DType::F16)? as *const () as usize,
        "bf16_to_f32_tile" => tiles.widen(DType::BF16)? as *const () as usize,
        "f32_to_f16_tile" => tiles.narrow(DType::F16)? as *const () as usize,
        "f32_to_bf16_tile" => tiles.narrow(DType::BF16)? as *const () as usize,
        "round_f16_tile" => tiles.round(DType::F16)? as *const () as usize,
        "round_bf16_tile" => tiles.round(DType::BF16)? as *const () as usize,
        "floor" => one::floor as *const () as usize,
        "floor_f64" => one::floor_f64 as *const () as usize,
        "mul_add" => one::mul_add as *const () as usize,
        "mul_add_f64" => one::mul_add_f64 as *const () as usize,
        "random" => one::random as *const () as usize,
        "f16_to_f32" => one::f16_to_f32 as *const () as usize,
        "f32_to_f16" => one::f32_to_f16 as *const () as usize,
        "f64_to_f16" => one::f64_to_f16 as *const () as usize,
        "f64_to_bf16" => one::f64_to_bf16 as *const () as usize,
        "round_f16" => one::round_f16 as *const () as usize,
        "round_f16_f64" => one::round_f16_f64 as *const () as usize,
        "round_bf16_f64" => one::round_bf16_f64 as *const () as usize,
        _ => {
            let (function, form) = name.split_once('_').unwrap_or((name, ""));
            let routine = tiles.function(match function {
                "exp" => Function::Exp,
                "log" => Function::Log,
                "tanh" => Function::Tanh,
                "erf" => Function::Erf,
                "sin" => Function::Sin,
                "cos" => Function::Cos,
                _ => return None,
            });
            match form {
                "tile" => routine.tile as *const () as usize,
                "" => routine.one as *const () as usize,
                "f64" => routine.one_f64 as *const () as usize,
                _ => return None,
            }
        }
    })
}
