//! Numbers for the names of a kernel, and names that equal kernels of different programs share.

use super::{Body, Kernel, Scalar, ScalarOp};
use crate::size::{NamedSize, Number, Size, Sizes, Values};

impl Kernel {
    /// The kernel in which names have these values: what a kernel with names means.
    ///
    /// ```
    /// use tracecast_ir::kernel::{Kernel, build};
    /// use tracecast_ir::ops::elementwise::Elementwise;
    /// use tracecast_ir::{DType, TensorType, Tracer, Values, sizes};
    ///
    /// let t = Tracer::explicit("g");
    /// let batch = t.size("batch");
    /// let x = t.input("x", TensorType::new(DType::F32, sizes![batch, 4]));
    /// let y = x.neg();
    /// let kernel: Kernel = t.with_graph(|g| build::single(g, y.id().node)).unwrap().kernel;
    /// assert!(kernel.to_string().contains("loop i0 batch, row r 4"));
    /// let values = Values::from_iter([(kernel.names[0].name, 7)]);
    /// assert!(kernel.at(&values).unwrap().to_string().contains("loop i0 7, row r 4"));
    /// ```
    ///
    /// # Errors
    /// If a name has no value, or a size has no number: it is too large, divides by zero, or is the
    /// negative length of an axis.
    pub fn at(&self, values: &Values) -> Result<Kernel, String> {
        let mut kernel = self.clone();
        if self.names.is_empty() {
            return Ok(kernel);
        }
        let mut wrong: Option<String> = None;
        kernel.each_size(&mut |size| match size.at(&|name| values.get(name)) {
            Ok(number) => *size = number.into(),
            Err(why) => {
                wrong.get_or_insert(why);
            }
        });
        let types = kernel.inputs.iter().chain(kernel.outputs.iter().map(|output| &output.ty));
        let checked = types.into_iter().try_for_each(|ty| ty.check_numbers());
        wrong.map_or(checked, Err).map_err(|why| format!("kernel @{}: {why}", self.name))?;
        let arguments = std::mem::take(&mut kernel.arguments);
        kernel.form.as_loops_mut().each_body(&mut |body| *body = constant(body, &arguments));
        kernel.names.clear();
        Ok(kernel)
    }

    /// The same kernel with `a0`, `a1` and so on for its names in order, so that equal kernels are
    /// equal whatever their programs call sizes.
    #[must_use]
    pub fn renumbered(&self) -> Kernel {
        let mut kernel = self.clone();
        let place = |name: &str| self.names.iter().position(|known| known.name == name);
        let new: Vec<Size> = (0..self.names.len()).map(|i| Size::named(&format!("a{i}"))).collect();
        kernel.each_size(&mut |size| {
            if size.has_names() {
                *size = size.substitute(&|name| place(name).map(|at| new[at]));
            }
        });
        for (known, new) in kernel.names.iter_mut().zip(&new) {
            known.name = new.name().expect("a name alone");
        }
        kernel
    }

    /// Values for its names, in their order.
    pub fn values(&self, sizes: &[i64]) -> Values {
        self.names.iter().zip(sizes).map(|(known, size)| (known.name, *size)).collect()
    }

    /// The values that its names were traced with.
    pub fn hints(&self) -> Values {
        self.names.iter().map(|known| (known.name, known.hint)).collect()
    }

    /// Finds the names that it depends on; what is known of them, `sizes` says.
    pub(super) fn find_names(&mut self, sizes: &Sizes) {
        let mut names: Vec<NamedSize> = Vec::new();
        self.each_size(&mut |size| {
            if !size.has_names() {
                return;
            }
            let new = |name: &&str| !names.iter().any(|known| known.name == *name);
            let new: Vec<&str> = size.names().into_iter().filter(new).collect();
            names.extend(new.into_iter().filter_map(|name| sizes.get(name).cloned()));
        });
        self.names = names;
    }

    /// All sizes, in an order that depends on the kernel alone.
    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        let types =
            self.inputs.iter_mut().chain(self.outputs.iter_mut().map(|output| &mut output.ty));
        types.flat_map(|ty| ty.shape.iter_mut()).for_each(&mut *each);
        self.checks
            .iter_mut()
            .flat_map(|check| check.range.iter_mut().flatten())
            .for_each(&mut *each);
        for argument in &mut self.arguments {
            match argument {
                Number::Size(size) | Number::Ratio(_, size) => each(size),
                Number::F64(_) => {}
            }
        }
        self.form.as_loops_mut().each_size(each);
    }
}

/// The body with constants for arguments, which are numbers.
fn constant(body: &Body, arguments: &[Number]) -> Body {
    let mut insts = body.insts.clone();
    for inst in &mut insts {
        let ScalarOp::Argument(number) = inst.op else { continue };
        let value = arguments.get(number as usize).and_then(|value| argument_bits(*value, inst.ty));
        inst.op = ScalarOp::Const(value.unwrap_or(0));
    }
    Body::from(insts)
}

/// The bits that an argument has as a number of a scalar type, unless it depends on names: computed
/// in f64 and rounded to the type; a size that is read as an i64 is exact.
pub fn argument_bits(argument: Number, ty: Scalar) -> Option<u64> {
    match (argument, ty) {
        (Number::Size(size), Scalar::I64) => size.number().map(|number| number as u64),
        _ => argument.value().map(|value| ty.bits_of(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{self, Value};
    use crate::kernel::build;
    use crate::{DType, Graph, NodeId, TensorType};

    /// A program of core ops whose sizes are called like that.
    fn program(rows: &str, columns: &str) -> Graph {
        let text = "
size ROWS = 4
size COLS = 3 in 1..=9

graph @g(%x: f32[ROWS, COLS], %i: i64[ROWS, 2]) {
  %0 = reshape %x {shape = [ROWS*COLS]} : f32[ROWS*COLS]
  %1 = mul %0 {scalar = 1.0/(ROWS*COLS)} : f32[ROWS*COLS]
  %2 = pad %x {high = [0, COLS], low = [1, 0], value = 0.5} : f32[ROWS + 1, 2*COLS]
  %3 = gather %x, %i {dim = 1} : f32[ROWS, 2]
  %4 = reduce_row %x {kind = \"sum\"} : f32[ROWS]
  %5 = reduce_column %x {dim = [0], kind = \"max\"} : f32[COLS]
  %6 = permute %x {dims = [1, 0]} : f32[COLS, ROWS]
  %7 = contract %x, %6 : f32[ROWS, ROWS]
  %8 = slice %x {dim = 1, end = COLS, start = COLS - 1, step = 1} : f32[ROWS, 1]
  %9 = cat [%x, %8] {dim = 1} : f32[ROWS, COLS + 1]
  %10 = scatter_add %x, %i, %3 {dim = 1} : f32[ROWS, COLS]
  return a = %1, b = %2, c = %3, d = %4, e = %5, f = %7, g = %9, h = %10
}";
        crate::text::parse(&text.replace("ROWS", rows).replace("COLS", columns)).unwrap()
    }

    /// The kernels of the nodes that have one, each on its own, with the types that they read.
    fn kernels(graph: &Graph) -> Vec<(NodeId, Kernel)> {
        let ports = graph.ports().len();
        let made = graph.nodes().skip(ports).map(|n| (n, build::single(graph, n).unwrap().kernel));
        made.collect()
    }

    fn filled(ty: &TensorType, index_below: usize) -> Value {
        let element = |i: usize| match ty.dtype {
            DType::I64 => (i % index_below) as f64,
            _ => (i * i % 23) as f64 - 7.5,
        };
        let numbers: Vec<f64> = (0..ty.numel().get()).map(element).collect();
        Value::from_f64s(ty.clone(), &numbers).unwrap()
    }

    #[test]
    fn a_kernel_with_names_means_the_kernel_of_the_program_with_numbers() {
        let graph = program("rows", "columns");
        let [rows, columns] = [0, 1].map(|i| graph.sizes().names()[i].name);
        for (n, m) in [(4, 3), (0, 2), (1, 1), (5, 9)] {
            let values = Values::from_iter([(rows, n), (columns, m)]);
            let numbers = graph.at(&values).unwrap();
            for ((node, named), (_, fixed)) in kernels(&graph).into_iter().zip(kernels(&numbers)) {
                let at = named.at(&values).unwrap();
                assert_eq!((&at.inputs, &at.outputs), (&fixed.inputs, &fixed.outputs));
                let inputs: Vec<Value> =
                    at.inputs.iter().map(|ty| filled(ty, m as usize)).collect();
                let bytes: Vec<&[u8]> = inputs.iter().map(|value| &value.bytes[..]).collect();
                let of = |kernel: &Kernel| {
                    let made = eval::kernel(kernel, &bytes);
                    made.map(|outputs| outputs.iter().map(|b| b.to_vec()).collect::<Vec<_>>())
                };
                let op = graph.node(node).op.name();
                assert_eq!(of(&at), of(&fixed), "{op} at {values}");
            }
        }
        let outside = Values::from_iter([(rows, -1), (columns, 3)]);
        assert!(kernels(&graph)[0].1.at(&outside).is_err());
    }

    #[test]
    fn kernels_that_differ_in_what_sizes_are_called_are_equal_when_renumbered() {
        let (one, other) = (program("rows", "columns"), program("z", "a"));
        for ((_, one), (_, other)) in kernels(&one).into_iter().zip(kernels(&other)) {
            assert_ne!(one, other);
            assert_eq!(one.renumbered(), other.renumbered());
            let names: Vec<&str> = one.renumbered().names.iter().map(|known| known.name).collect();
            assert_eq!(names, ["a0", "a1"][..one.names.len()]);
        }
    }

    #[test]
    fn a_check_says_the_range_of_the_run() {
        let graph = program("rows", "columns");
        let (_, gather) = kernels(&graph).into_iter().find(|(_, k)| !k.checks.is_empty()).unwrap();
        assert_eq!(gather.checks[0].expects(), "index out of range: expected 0..columns");
        let values = gather.names.iter().map(|known| (known.name, 6)).collect();
        let check = &gather.at(&values).unwrap().checks[0];
        assert_eq!(check.says(Some(7)), "index out of range: expected 0..6, found 7");
    }
}
