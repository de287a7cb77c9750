//! What a convolution is over: its axes, groups and channels, from the types of its operands and
//! PyTorch's arguments.

use crate::ops::infer;
use crate::{Attrs, Must, Shape, Size, TensorType};

/// Numbers beyond this are no strides, paddings or dilations of tensors that there can be.
const FAR: i64 = 1 << 30;
/// The same for strides over axes whose sizes are names: a transposed convolution has a part for
/// each position within a stride.
const FAR_APART: i64 = 1 << 16;

/// A convolution, or a transposed one.
pub(super) struct Geometry {
    /// The examples; none if the operand is a single one without an axis for it.
    pub(super) batch: Option<Size>,
    pub(super) groups: i64,
    /// Channels of a group, of the operand and of the result.
    pub(super) channels: [Size; 2],
    /// The sizes of the axes that windows move over.
    pub(super) from: Vec<Size>,
    /// The same of the result.
    pub(super) to: Vec<Size>,
    /// Positions of a window.
    pub(super) kernel: Vec<i64>,
    pub(super) stride: Vec<i64>,
    pub(super) dilation: Vec<i64>,
    /// Positions before the operand, or before the result of a transposed convolution.
    pub(super) low: Vec<i64>,
    pub(super) transposed: bool,
}

impl Geometry {
    /// Of the operand, the weight and the bias, if there is one, with a number of axes to move
    /// over.
    ///
    /// # Errors
    /// If an argument is out of range, types do not fit, or a window is larger than what it moves
    /// over.
    pub(super) fn of(
        must: &Must<'_>,
        types: [&TensorType; 2],
        bias: Option<&TensorType>,
        attrs: &Attrs,
        transposed: bool,
    ) -> Result<Geometry, String> {
        let [x, weight] = types;
        let axes = weight.shape.rank().saturating_sub(2);
        if !(axes + 1..=axes + 2).contains(&x.shape.rank()) {
            let (one, many) = (axes + 1, axes + 2);
            return Err(format!(
                "takes {one} or {many} axes beside the weight {weight}, found {x}"
            ));
        }
        one_dtype(x, weight, bias)?;
        let is_batched = x.shape.rank() == axes + 2;
        let lead = usize::from(is_batched);
        let kernel = numbers(weight)?;
        let groups = attrs.int("groups").unwrap_or(1);
        let channels = channels(must, (x.shape[lead], x), weight, groups, transposed)?;
        let outputs = channels[1] * Size::from(groups);
        if let Some(bias) = bias.filter(|bias| !must.alike(&bias.shape, &[outputs])) {
            return Err(format!(
                "`bias` is {bias}, expected {}",
                TensorType::new(x.dtype, [outputs])
            ));
        }
        let (stride, dilation) =
            (list(attrs, "stride", axes, 1)?, list(attrs, "dilation", axes, 1)?);
        at_least("stride", &stride, 1)?;
        if x.shape.iter().any(|n| n.has_names()) && stride.iter().any(|n| *n > FAR_APART) {
            return Err(format!("`stride` {stride:?} is out of range where sizes are names"));
        }
        at_least("dilation", &dilation, 1)?;
        let mut geometry = Geometry {
            batch: is_batched.then(|| x.shape[0]),
            groups,
            channels,
            from: x.shape[lead + 1..].to_vec(),
            to: Vec::new(),
            kernel: kernel[2..].to_vec(),
            stride,
            dilation,
            low: Vec::new(),
            transposed,
        };
        geometry.place(must, (x, weight), attrs)?;
        Ok(geometry)
    }

    /// Finds the padding and the sizes of the result.
    fn place(
        &mut self,
        must: &Must<'_>,
        (x, weight): (&TensorType, &TensorType),
        attrs: &Attrs,
    ) -> Result<(), String> {
        let axes = self.kernel.len();
        let span: Vec<i64> = (0..axes).map(|i| self.dilation[i] * (self.kernel[i] - 1)).collect();
        let (low, more): (Vec<i64>, Vec<i64>) = if attrs.bool("same") {
            if !attrs.ints("padding").is_empty() {
                return Err("takes `same` or `padding`, found both".to_owned());
            }
            if self.stride.iter().any(|n| *n != 1) {
                return Err(format!("`same` takes a stride of 1, found {:?}", self.stride));
            }
            (span.iter().map(|n| n / 2).collect(), span.iter().map(|n| n % 2).collect())
        } else {
            (list(attrs, "padding", axes, 0)?, vec![0; axes])
        };
        at_least("padding", &low, 0)?;
        let beyond = list(attrs, "output_padding", axes, 0)?;
        at_least("output_padding", &beyond, 0)?;
        for i in 0..axes {
            let around = Size::from(2 * low[i] + more[i]);
            let (size, stride) = (self.from[i], Size::from(self.stride[i]));
            let to = if self.transposed {
                let most = self.stride[i].max(self.dilation[i]);
                if beyond[i] >= most {
                    return Err(format!(
                        "`output_padding` {} is not smaller than stride or dilation, {most}",
                        beyond[i]
                    ));
                }
                (size - 1) * stride - around + Size::from(span[i] + beyond[i]) + 1
            } else {
                size + around - Size::from(span[i]) - 1
            };
            if !must.hold(to.at_least(0)) || self.transposed && !must.hold(to.at_least(1)) {
                return Err(format!(
                    "windows of {} positions do not fit {size} with {around} around it, of {x} and {weight}",
                    span[i] + 1
                ));
            }
            let to = if self.transposed { to } else { to / stride + 1 };
            if to.is_out_of_range() {
                return Err(format!("axis {i} of the result overflows, of {x} and {weight}"));
            }
            self.to.push(to);
        }
        self.low = low;
        Ok(())
    }

    /// The shape of the result.
    pub(super) fn shape(&self) -> Result<Shape, String> {
        let channels = self.channels[1] * Size::from(self.groups);
        let shape: Shape =
            self.batch.into_iter().chain([channels]).chain(self.to.iter().copied()).collect();
        if shape.numel().is_out_of_range() {
            return Err(format!("the element count of {shape} overflows"));
        }
        Ok(shape)
    }

    /// The operand (0) or the result (1) as batch, group, channel of it, and positions.
    pub(super) fn grouped(&self, which: usize) -> Shape {
        let positions = if which == 0 { &self.from } else { &self.to };
        let lead = [self.batch.unwrap_or(Size::from(1)), Size::from(self.groups)];
        let lead = lead.into_iter().chain([self.channels[which]]);
        lead.chain(positions.iter().copied()).collect()
    }

    /// The weight as group, channel of what windows are taken for, channel of what they see, and
    /// positions in a window.
    pub(super) fn weight(&self) -> Shape {
        let [from, to] = self.channels;
        let channels = if self.transposed { [from, to] } else { [to, from] };
        let kernel = self.kernel.iter().map(|n| Size::from(*n));
        [Size::from(self.groups)].into_iter().chain(channels).chain(kernel).collect()
    }
}

/// The channels of a group, of the operand and of the result.
fn channels(
    must: &Must<'_>,
    (own, x): (Size, &TensorType),
    weight: &TensorType,
    groups: i64,
    transposed: bool,
) -> Result<[Size; 2], String> {
    let wrong = |why: &str| Err(format!("{why}, of {x} and {weight}"));
    if !(1..FAR).contains(&groups) {
        return wrong(&format!("there are 1 or more groups, found {groups}"));
    }
    let group = Size::from(groups);
    let [rows, columns] = [weight.shape[0], weight.shape[1]];
    if !must.hold(rows.multiple_of(group)) {
        return wrong(&format!("{groups} groups do not divide the {rows} channels of the weight"));
    }
    if !transposed && !must.hold(rows.at_least(group)) {
        return wrong(&format!("{groups} groups have no channel each"));
    }
    let of_operand = if transposed { rows } else { columns * group };
    if !must.equal(own, of_operand) {
        return wrong(&format!("the weight takes {of_operand} channels, found {own}"));
    }
    Ok(if transposed { [rows / group, columns] } else { [columns, rows / group] })
}

fn one_dtype(x: &TensorType, weight: &TensorType, bias: Option<&TensorType>) -> Result<(), String> {
    infer::need_number(x)?;
    match [Some(weight), bias].into_iter().flatten().find(|other| other.dtype != x.dtype) {
        Some(other) => Err(format!("operands are {x} and {other}, expected one dtype")),
        None => Ok(()),
    }
}

/// The sizes of a weight, which are numbers, with windows of at least one position.
pub(super) fn numbers(weight: &TensorType) -> Result<Vec<i64>, String> {
    let numbers: Option<Vec<i64>> = weight.shape.iter().map(|n| n.number()).collect();
    let numbers = numbers
        .ok_or_else(|| format!("the weight is {weight} and needs numbers there: pin the sizes"))?;
    match numbers[2..].iter().find(|n| !(1..FAR).contains(*n)) {
        Some(n) => Err(format!("windows of {n} positions, of the weight {weight}")),
        None => Ok(numbers),
    }
}

/// A number for each axis: one for all, or one each.
fn list(attrs: &Attrs, name: &'static str, axes: usize, default: i64) -> Result<Vec<i64>, String> {
    let given = attrs.get(name).map_or(&[][..], |_| attrs.ints(name));
    if given.iter().any(|n| *n > FAR) {
        return Err(format!("`{name}` {given:?} is out of range"));
    }
    match given {
        [] => Ok(vec![default; axes]),
        [one] => Ok(vec![*one; axes]),
        all if all.len() == axes => Ok(all.to_vec()),
        all => Err(format!("`{name}` takes {axes} numbers or one, found {all:?}")),
    }
}

fn at_least(name: &str, numbers: &[i64], least: i64) -> Result<(), String> {
    match numbers.iter().find(|n| **n < least) {
        Some(n) => Err(format!("`{name}` is at least {least}, found {n}")),
        None => Ok(()),
    }
}
