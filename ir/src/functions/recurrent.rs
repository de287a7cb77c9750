//! [`Recurrent`]: one step of a recurrent layer with its parameters, and its application to steps
//! in order.
//!
//! Autocast decides where PyTorch decides: for a cell, and for a layer that PyTorch's CPU runs as
//! one op, the policies are queried once, under that op's name.

use crate::Var;
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;
use crate::policy::Region;

/// What is computed from the gates of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One gate: the hyperbolic tangent.
    Tanh,
    /// One gate: zero below zero.
    Relu,
    /// Reset, update and new gate of a gated recurrent unit.
    Gru,
    /// Input, forget, cell and output gate of a long short-term memory.
    Lstm,
}

impl Cell {
    /// How many gates a step has, each as wide as the state.
    pub fn gates(self) -> usize {
        match self {
            Cell::Tanh | Cell::Relu => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// The name of a step in PyTorch's autocast tables.
    fn name(self) -> &'static str {
        match self {
            Cell::Tanh => "rnn_tanh_cell",
            Cell::Relu => "rnn_relu_cell",
            Cell::Gru => "gru_cell",
            Cell::Lstm => "lstm_cell",
        }
    }
}

/// What is carried from step to step.
#[derive(Clone, Copy, Debug)]
pub struct Carried<'t> {
    /// The last result, `[N, hidden]` or what it is projected to.
    pub h: Var<'t>,
    /// What a long short-term memory remembers, `[N, hidden]`.
    pub c: Option<Var<'t>>,
}

impl Carried<'_> {
    /// The same in the dtypes of another one. Under autocast it stays as it is: a state of any
    /// float is taken.
    #[must_use]
    pub fn in_dtype_of(self, other: Self) -> Self {
        if !self.h.tracer().region().is_off() {
            return self;
        }
        let h = self.h.to(other.h.dtype());
        let c = self.c.zip(other.c).map(|(c, like)| c.to(like.dtype()));
        Carried { h, c: c.or(self.c) }
    }
}

/// A step with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent<'t> {
    cell: Cell,
    ih: Var<'t>,
    hh: Var<'t>,
    /// Added to what comes from the input and to what comes from the state.
    biases: [Option<Var<'t>>; 2],
    hr: Option<Var<'t>>,
}

impl<'t> Recurrent<'t> {
    /// With the weights `ih: [gates · hidden, inputs]` and `hh: [gates · hidden, hidden]`, their
    /// biases, and the projection of the state `hr`.
    pub fn new(
        cell: Cell,
        [ih, hh]: [Var<'t>; 2],
        biases: [Option<Var<'t>>; 2],
        hr: Option<Var<'t>>,
    ) -> Self {
        Recurrent { cell, ih, hh, biases, hr }
    }

    /// The weight of the state.
    pub fn hh(&self) -> Var<'t> {
        self.hh
    }

    /// The state behind one step of the input `x`: a cell.
    ///
    /// # Errors
    /// Of the trace: a policy that refuses the cell.
    pub fn step(&self, x: Var<'t>, state: Carried<'t>) -> Carried<'t> {
        self.as_one(self.cell.name(), &[x], state, |step, xs, state| {
            step.next(step.gates_of(xs[0]), state)
        })
    }

    /// The results at each of the inputs `xs`, and the state behind the last one; `backwards`
    /// begins with the last input.
    ///
    /// # Errors
    /// Of the trace: a policy that refuses the layer.
    pub fn layer(
        &self,
        xs: &[Var<'t>],
        state: Carried<'t>,
        backwards: bool,
    ) -> (Vec<Var<'t>>, Carried<'t>) {
        let all = |step: &Self, xs: &[Var<'t>], state| {
            let gates: Vec<Var<'t>> = xs.iter().map(|x| step.gates_of(*x)).collect();
            step.run(&gates, state, backwards)
        };
        // PyTorch's CPU has one op for a layer of long short-term memory that is not projected.
        match (self.cell, self.hr) {
            (Cell::Lstm, None) => self.as_one("mkldnn_rnn_layer", xs, state, all),
            _ => all(&self.with_one_bias(), xs, state),
        }
    }

    /// Records what PyTorch's tables list as one op of that name, whose operands are the inputs,
    /// the parameters and the state. Where a policy decides, the operands are cast as it says, and
    /// no policy is queried for the parts.
    fn as_one<R>(
        &self,
        name: &str,
        xs: &[Var<'t>],
        mut state: Carried<'t>,
        record: impl FnOnce(&Self, &[Var<'t>], Carried<'t>) -> R,
    ) -> R {
        let (t, mut step, mut xs) = (state.h.tracer(), *self, xs.to_vec());
        let parameters = [&mut step.ih, &mut step.hh].into_iter();
        let parameters = parameters.chain(step.biases.iter_mut().flatten()).chain(&mut step.hr);
        let states = [&mut state.h].into_iter().chain(&mut state.c);
        let operands: Vec<&mut Var<'t>> = xs.iter_mut().chain(parameters).chain(states).collect();
        let given: Vec<Var<'t>> = operands.iter().map(|operand| **operand).collect();
        match t.casts_as_one(name, &given) {
            Ok(Some(casts)) => {
                for (operand, cast) in operands.into_iter().zip(casts) {
                    *operand = cast.map_or(*operand, |to| operand.to(to));
                }
                t.in_region(&Region::default(), || record(&step.with_one_bias(), &xs, state))
            }
            Ok(None) => record(&step.with_one_bias(), &xs, state),
            Err(why) => {
                state.h = t.fail(name, why);
                record(&step, &xs, state)
            }
        }
    }

    /// Adds both biases up where the gates add them anyway. A GRU multiplies the part of its state,
    /// so it keeps two.
    fn with_one_bias(mut self) -> Self {
        if let (Cell::Tanh | Cell::Relu | Cell::Lstm, [Some(x), Some(h)]) = (self.cell, self.biases)
        {
            self.biases = [Some(x + h), None];
        }
        self
    }

    /// What the input of a step contributes to the gates.
    fn gates_of(&self, x: Var<'t>) -> Var<'t> {
        x.linear(self.ih, self.biases[0])
    }

    /// The state after a step, from what its input contributes to the gates.
    fn next(&self, gates: Var<'t>, state: Carried<'t>) -> Carried<'t> {
        let from_h = state.h.linear(self.hh, self.biases[1]);
        match self.cell {
            Cell::Tanh => Carried { h: (gates + from_h).tanh(), c: None },
            Cell::Relu => Carried { h: (gates + from_h).relu(), c: None },
            Cell::Gru => {
                let [gates, from_h] = [gates, from_h].map(|all| self.apart(all));
                let gate = |of: Var<'t>, i: i64| of.select(-2, i);
                let reset = (gate(gates, 0) + gate(from_h, 0)).sigmoid();
                let keep = (gate(gates, 1) + gate(from_h, 1)).sigmoid();
                let new = (gate(gates, 2) + reset * gate(from_h, 2)).tanh();
                Carried { h: new + keep * (state.h - new), c: None }
            }
            Cell::Lstm => {
                let all = self.apart(gates + from_h);
                let [i, f, o] = [0, 1, 3].map(|at| all.select(-2, at).sigmoid());
                let new = i * all.select(-2, 2).tanh();
                let c = state.c.map_or(new, |c| f * c + new);
                let h = o * c.tanh();
                Carried { h: self.hr.map_or(h, |hr| h.linear(hr, None)), c: Some(c) }
            }
        }
    }

    /// The results at each step, and the state behind the last one, from what inputs contribute to
    /// the gates.
    fn run(
        &self,
        gates: &[Var<'t>],
        state: Carried<'t>,
        backwards: bool,
    ) -> (Vec<Var<'t>>, Carried<'t>) {
        let mut state = state;
        let mut next = |gates: &Var<'t>| {
            state = self.next(*gates, state);
            state.h
        };
        let out = if backwards {
            let mut out: Vec<Var<'t>> = gates.iter().rev().map(&mut next).collect();
            out.reverse();
            out
        } else {
            gates.iter().map(&mut next).collect()
        };
        (out, state)
    }

    /// The gates along an axis of their own: what belongs to one of them is rows in gradients, too,
    /// and no part of a row.
    fn apart(&self, all: Var<'t>) -> Var<'t> {
        let gates = self.cell.gates();
        let hidden = self.ih.size(0).number().unwrap_or(0) / gates as i64;
        all.unflatten(-1, &[gates as i64, hidden])
    }
}
