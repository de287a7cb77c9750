//! The convolutions of the benches, each with its program; schedules are chosen for them in tests
//! as well.

use tracecast::Graph;
use tracecast::prelude::*;

const LIST: &str = include_str!("convolutions.txt");
pub(crate) const DTYPES: [DType; 2] = [DType::F32, DType::BF16];
pub(crate) const DIRECTIONS: [&str; 3] = ["forward", "input", "weight"];

/// A convolution of the list.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) network: &'static str,
    pub(crate) channels: [usize; 2],
    pub(crate) size: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) groups: usize,
}

/// All of them, for batches of 1 and 16.
pub(crate) fn all() -> impl Iterator<Item = (Shape, usize)> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(Shape::of).flat_map(|shape| [(shape, 1), (shape, 16)])
}

impl Shape {
    fn of(line: &'static str) -> Shape {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse().expect("a number");
        Shape {
            network: words[0],
            channels: [number(1), number(3)],
            size: number(2),
            kernel: number(4),
            stride: number(5),
            padding: number(6),
            groups: number(7),
        }
    }

    pub(crate) fn name(&self, batch: usize) -> String {
        let Shape { network, channels: [from, to], size, kernel, stride, groups, .. } = self;
        format!("{network} {batch}x{from}x{size}x{size}->{to} {kernel}x{kernel}/{stride} g{groups}")
    }

    /// The convolution, or one of its gradients, in one dtype.
    pub(crate) fn graph(&self, batch: usize, direction: &str, dtype: DType) -> Graph {
        let Shape { channels: [from, to], size, kernel, stride, padding, groups, .. } = *self;
        let x_shape = [batch, from, size, size];
        let w_shape = [to, from / groups, kernel, kernel];
        trace("convolution", |t: &Trace| {
            let x = t.input_of("x", TensorType::new(dtype, x_shape));
            let w = t.param_of("w", TensorType::new(dtype, w_shape));
            let (stride, padding) = ([stride as i64], [padding as i64]);
            let y = x.conv2d(w, None, stride, padding, [], Some(groups as i64), false);
            let result = match direction {
                "forward" => y,
                _ => {
                    let dy = t.input_of("dy", y.ty());
                    let of = if direction == "input" { x } else { w };
                    t.grad(y.mul(dy).sum(().dtype(DType::F32)), &[of])[0]
                }
            };
            t.output("result", result);
        })
        .expect("a program")
    }
}
