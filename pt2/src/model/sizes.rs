//! Sizes of a recording: what the names of the file are worth in a call, and expressions and
//! statements about them.

use super::Input;
use super::record::{DEPENDS, Run, Values};
use crate::program::{Extent, Graph, Node, Operand};
use tracecast_aten::Argument;
use tracecast_aten::expression;
use tracecast_ir::{Size, Var};

impl<'t> Run<'_, 't> {
    /// Finds what each name of a size is worth, from the inputs; all sizes have to be what the file
    /// says they are.
    pub(super) fn bind_sizes(&self, inputs: &[Var<'t>]) -> Result<(), String> {
        let declared =
            || self.exported.inputs.iter().zip(inputs).filter(|(_, given)| !given.is_poison());
        let pairs = |input: &Input, given: &Var<'t>| -> Vec<(Size, Size)> {
            input.ty.shape.iter().copied().zip(given.shape().iter().copied()).collect()
        };
        for (input, given) in declared() {
            if input.ty.shape.rank() != given.rank() {
                return Err(format!(
                    "takes {} for `{}`, found {}",
                    input.ty,
                    input.name,
                    given.ty()
                ));
            }
            for (size, found) in pairs(input, given) {
                let Some(name) = size.name() else { continue };
                let known = self.sizes.borrow().contains_key(name);
                if !known {
                    self.within_range(name, found)
                        .map_err(|why| format!("`{}`: {why}", input.name))?;
                    self.sizes.borrow_mut().insert(name.to_owned(), found);
                }
            }
        }
        for (input, given) in declared() {
            for (size, found) in pairs(input, given) {
                let known = |name: &str| self.sizes.borrow().get(name).copied();
                let rest = size.substitute(&known);
                let solved = found.number().and_then(|found| rest.solve(found));
                // Nowhere alone: the number that makes this size what it is, or a name of this
                // program.
                if let Some((name, value)) = solved {
                    let value = Size::from(value);
                    self.within_range(name, value)
                        .map_err(|why| format!("`{}`: {why}", input.name))?;
                    self.sizes.borrow_mut().insert(name.to_owned(), value);
                }
                let expected = size.substitute(&known);
                if expected != found && !self.t.holds(expected.equals(found)) {
                    return Err(format!(
                        "takes {} for `{}`, found {}: {size} is {expected}",
                        input.ty,
                        input.name,
                        given.ty()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a size lies within the range that the file states of a name.
    fn within_range(&self, name: &str, found: Size) -> Result<(), String> {
        let (least, most) = self.exported.range(name);
        let fits = self.t.holds(found.at_least(least))
            && most.is_none_or(|most| self.t.holds(Size::from(most).at_least(found)));
        let most = most.map_or(String::new(), |most| format!(" and at most {most}"));
        if fits {
            Ok(())
        } else {
            Err(format!("`{name}` is {found}, expected at least {least}{most}"))
        }
    }

    pub(super) fn sizes(
        &self,
        graph: &Graph,
        node: &Node,
        values: &mut Values,
        target: &str,
    ) -> Result<(), String> {
        if matches!(target, "aten.item.default" | "aten._local_scalar_dense.default") {
            return Err(DEPENDS.to_owned());
        }
        for output in &node.outputs {
            let Operand::Size(name) = output else { continue };
            let extent =
                graph.sizes.get(name).ok_or_else(|| format!("`{name}` has no expression"))?;
            values.insert(name.clone(), self.extent(extent)?);
        }
        Ok(())
    }

    fn extent<T>(&self, extent: &Extent) -> Result<Argument<T>, String> {
        let size = match extent {
            Extent::Number(n) => Size::from(*n),
            Extent::Expression(text, _) => {
                expression::size(text)?.substitute(&|name| self.sizes.borrow().get(name).copied())
            }
        };
        let unknown = size
            .names()
            .into_iter()
            .find(|name| self.t.with_graph(|graph| graph.sizes().get(name).is_none()));
        if unknown.is_some() {
            return Err(DEPENDS.to_owned());
        }
        Ok(size.number().map_or(Argument::Size(size), Argument::Int))
    }

    /// A statement about sizes, which is a guard of the program.
    pub(super) fn states_truth(&self, graph: &Graph, node: &Node) -> Result<(), String> {
        let Some((_, Operand::Truth(name))) = node.inputs.first() else { return Ok(()) };
        let Some(claim) = graph.truths.get(name).and_then(|text| expression::claim(text).ok())
        else {
            self.host.warn(&format!("a statement about sizes at {} is not checked", node.line));
            return Ok(());
        };
        if self.t.holds(claim) {
            Ok(())
        } else {
            Err(format!("states that {claim:?}, which does not hold here"))
        }
    }
}
