//! Numbers and tensors drawn for the arguments of one call, those at the ends of every range among
//! them.

use tracecast_ir::{DType, TensorType, Var};

const INTS: [i64; 18] = [
    0,
    1,
    -1,
    2,
    3,
    -2,
    5,
    63,
    65,
    1 << 31,
    i32::MIN as i64 - 1,
    (1 << 53) + 1,
    1 << 61,
    i64::MAX / 2,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN + 1,
    i64::MIN,
];
const FLOATS: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    2.5,
    300.0,
    1e-320,
    1e19,
    -1e300,
    f64::MAX,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];
const SHAPES: [&[usize]; 12] = [
    &[],
    &[0],
    &[1],
    &[6],
    &[3, 3],
    &[0, 4],
    &[2, 3, 4],
    &[1, 4, 6, 6],
    &[1 << 40],
    &[1 << 50, 2],
    &[1 << 45, 0, 1 << 10],
    &[1, 4, 1 << 20, 1 << 20],
];
pub(crate) const DTYPES: [DType; 6] =
    [DType::F32, DType::BF16, DType::F64, DType::I64, DType::U8, DType::Bool];

/// What one call is given.
pub(crate) struct Numbers {
    state: u64,
    operands: usize,
}

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        let mut numbers = Numbers { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), operands: 0 };
        numbers.below(2);
        numbers
    }

    /// Any type, of tensors too large to be run among them.
    pub(crate) fn ty(&mut self) -> TensorType {
        let (shape, dtype) = (self.pick(&SHAPES), self.pick(&DTYPES));
        TensorType::new(dtype, shape)
    }

    /// Another operand: the first one itself as often as one of any type.
    pub(crate) fn other<'t>(&mut self, x: Var<'t>) -> Var<'t> {
        let ty = match self.below(4) {
            0 | 1 => return x,
            2 => x.ty().with_dtype(self.pick(&DTYPES)),
            _ => self.ty(),
        };
        self.operand(x, ty)
    }

    pub(crate) fn maybe_other<'t>(&mut self, x: Var<'t>) -> Option<Var<'t>> {
        self.flag().then(|| self.other(x))
    }

    /// Positions, some of them beyond every axis, or what cannot be some.
    pub(crate) fn places<'t>(&mut self, x: Var<'t>) -> Var<'t> {
        match self.below(3) {
            0 => self.other(x),
            _ => x.tracer().constant(DType::I64, &[2], &[0.0, 1.0]),
        }
    }

    fn operand<'t>(&mut self, x: Var<'t>, ty: TensorType) -> Var<'t> {
        self.operands += 1;
        x.tracer().input(&format!("operand {}", self.operands), ty)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Any number, or a small one as often.
    pub(crate) fn int(&mut self) -> i64 {
        if self.below(2) == 0 { self.pick(&INTS) } else { self.pick(&[1, 2, 3]) }
    }

    /// An axis that may be there, or any number.
    pub(crate) fn dim(&mut self) -> i64 {
        if self.below(4) == 0 { self.pick(&INTS) } else { self.pick(&[0, -1, 1]) }
    }

    pub(crate) fn float(&mut self) -> f64 {
        self.pick(&FLOATS)
    }

    pub(crate) fn maybe(&mut self) -> Option<i64> {
        (self.below(3) > 0).then(|| self.int())
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    pub(crate) fn ints(&mut self) -> Vec<i64> {
        (0..self.below(5)).map(|_| self.int()).collect()
    }

    pub(crate) fn dims(&mut self) -> Vec<i64> {
        (0..self.below(4)).map(|_| self.dim()).collect()
    }

    pub(crate) fn floats(&mut self) -> Vec<f64> {
        (0..self.below(4)).map(|_| self.float()).collect()
    }
}
