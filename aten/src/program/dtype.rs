//! PyTorch's names of dtypes.

use tracecast_ir::DType;

/// Each dtype and its name in `torch`.
const NAMES: [(DType, &str); 17] = [
    (DType::Bool, "bool"),
    (DType::U8, "uint8"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::I32, "int32"),
    (DType::I64, "int64"),
    (DType::F8E4M3, "float8_e4m3fn"),
    (DType::F8E5M2, "float8_e5m2"),
    (DType::F8E4M3Fnuz, "float8_e4m3fnuz"),
    (DType::F8E5M2Fnuz, "float8_e5m2fnuz"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::C32, "complex32"),
    (DType::C64, "complex64"),
    (DType::C128, "complex128"),
];

/// The name of a dtype in `torch`.
pub fn name(dtype: DType) -> &'static str {
    let found = NAMES.iter().find(|(one, _)| *one == dtype);
    found.map_or("", |(_, name)| name)
}

/// The dtype of that name in `torch`, if it is known.
pub fn named(name: &str) -> Option<DType> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
}
