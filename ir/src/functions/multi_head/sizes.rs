//! The sizes of attention of several heads, and whether operands and parameters go together.

use super::settings::MultiHead;
use crate::functions::Made;
use crate::{Shape, Size, Var};

/// The sizes of a call.
pub(super) struct Sizes {
    pub(super) batch: Size,
    pub(super) queries: Size,
    /// Without those that belong to the layer.
    pub(super) keys: Size,
    /// Of all heads.
    pub(super) width: usize,
}

/// Whether a tensor has that shape.
pub(super) fn fits(x: Var<'_>, shape: &[Size]) -> bool {
    let sizes = x.shape();
    let equal = |(a, b): (&Size, &Size)| x.tracer().holds(a.equals(*b));
    sizes.rank() == shape.len() && sizes.iter().zip(shape).all(equal)
}

impl Sizes {
    /// Those of query, key and value.
    ///
    /// # Errors
    /// If anything does not go together.
    pub(super) fn of<'t>(of: &MultiHead<'t>, given: [Var<'t>; 3]) -> Made<Sizes> {
        let told = || given.map(|x| x.ty().to_string()).join(", ");
        let [query, key, value] = given;
        let rank = query.rank();
        if !(2..=3).contains(&rank) || key.rank() != rank || value.rank() != rank {
            return Err(format!("takes three tensors of 2 or of 3 axes, found {}", told()));
        }
        let (across, along) = match (rank, of.batch_first) {
            (2, _) => (None, 0),
            (_, true) => (Some(0), 1),
            (_, false) => (Some(1), 0),
        };
        let batch = across.map_or(Size::from(1), |axis| query.size(axis));
        let (queries, keys) = (query.size(along), key.size(along));
        for x in [key, value] {
            let mut shape = x.shape().to_vec();
            shape[along] = keys;
            across.into_iter().for_each(|axis| shape[axis] = batch);
            if !fits(x, &shape) {
                return Err(format!("query, key and value do not go together: {}", told()));
            }
        }
        let width = of.width(given).map_err(|why| format!("{why}, for {}", told()))?;
        Ok(Sizes { batch, queries, keys, width })
    }
}

impl<'t> MultiHead<'t> {
    /// The width of all heads, if the parameters are of that width and fit the operands.
    fn width(&self, given: [Var<'t>; 3]) -> Made<usize> {
        let query = given[0];
        let width = query.size(query.rank() - 1);
        let Some(number) = width.number().and_then(|width| usize::try_from(width).ok()) else {
            return Err(format!("the width is {width}: pin the sizes"));
        };
        if self.heads == 0 || number == 0 || !number.is_multiple_of(self.heads) {
            return Err(format!("{} heads do not divide {number}", self.heads));
        }
        let one = Size::from(1);
        let is = |what: &str, found: Var<'t>, shape: &[Size]| match fits(found, shape) {
            true => Ok(()),
            false => Err(format!("{what} is {}, expected {}", found.ty(), Shape::new(shape))),
        };
        match self.weights[..] {
            [all] => {
                is("the matrix of all", all, &[width * 3, width])?;
                let others = given[1..].iter().zip(["the key", "the value"]);
                for (x, what) in others {
                    let mut shape = x.shape().to_vec();
                    shape[x.rank() - 1] = width;
                    is(what, *x, &shape)?;
                }
            }
            [q, k, v] => {
                let matrices = [(q, "queries"), (k, "keys"), (v, "values")];
                for ((matrix, what), x) in matrices.into_iter().zip(given) {
                    let columns = x.size(x.rank() - 1);
                    is(&format!("the matrix of {what}"), matrix, &[width, columns])?;
                }
            }
            _ => return Err(format!("takes one matrix or three, found {}", self.weights.len())),
        }
        if let Some(bias) = self.bias {
            is("the bias", bias, &[width * 3])?;
        }
        for (more, what) in self.more.into_iter().flatten().zip(["the key", "the value"]) {
            let front = vec![one; more.rank().saturating_sub(1).min(2)];
            let shape: Vec<Size> = front.into_iter().chain([width]).collect();
            is(&format!("{what} behind the others"), more, &shape)?;
        }
        match self.dropout {
            Some((p, ..)) if !(0.0..=1.0).contains(&p) => {
                Err(format!("the probability of dropout is {p}, expected 0 to 1"))
            }
            _ => Ok(number),
        }
    }
}
