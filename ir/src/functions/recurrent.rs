//! [`Recurrent`]: one step of a recurrent layer with its parameters, and its application to steps in order.

use crate::Var;
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;

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
    /// The same in the dtypes of another one.
    #[must_use]
    pub fn in_dtype_of(self, other: Self) -> Self {
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
    /// With the weights `ih: [gates · hidden, inputs]` and `hh: [gates · hidden, hidden]`, their biases, and the projection of the
    /// state `hr`.
    pub fn new(
        cell: Cell,
        [ih, hh]: [Var<'t>; 2],
        biases: [Option<Var<'t>>; 2],
        hr: Option<Var<'t>>,
    ) -> Self {
        // What is added to one sum anyway is added to it once. A GRU multiplies what comes from its state.
        let biases = match (cell, biases) {
            (Cell::Tanh | Cell::Relu | Cell::Lstm, [Some(x), Some(h)]) => [Some(x + h), None],
            (_, biases) => biases,
        };
        Recurrent { cell, ih, hh, biases, hr }
    }

    /// The weight of the state.
    pub fn hh(&self) -> Var<'t> {
        self.hh
    }

    /// What the input of a step contributes to the gates.
    pub fn gates_of(&self, x: Var<'t>) -> Var<'t> {
        x.linear(self.ih, self.biases[0])
    }

    /// The state after a step, from what its input contributes to the gates.
    pub fn next(&self, gates: Var<'t>, state: Carried<'t>) -> Carried<'t> {
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

    /// The results at each step, and the state behind the last one; `backwards` begins with the last step.
    pub fn run(
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

    /// The gates along an axis of their own: what belongs to one of them is rows in gradients, too, and no part of a row.
    fn apart(&self, all: Var<'t>) -> Var<'t> {
        let gates = self.cell.gates();
        let hidden = self.ih.size(0).number().unwrap_or(0) / gates as i64;
        all.unflatten(-1, &[gates as i64, hidden])
    }
}
