//! Numbers for names: the program that a program with named sizes means.

use crate::error::TraceError;
use crate::graph::{Graph, Note, Port};
use crate::size::{Size, Sizes, Values};
use crate::{Shape, TensorType};
use std::cell::RefCell;
use std::sync::Arc;
use thiserror::Error;

/// Why a program with named sizes does not take what it is given.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SizeError {
    /// An input has other sizes than its type allows.
    #[error("input `{input}`: {message}")]
    Input {
        /// The input.
        input: String,
        /// What was expected and what was found.
        message: String,
    },
    /// A size guard fails, or a name has no value.
    #[error("size: {0}")]
    Size(String),
}

impl Graph {
    /// What names are worth when inputs have these types, checked against bounds and guards. A name
    /// has the value of the first axis that it is alone, or the one that is `given` by itself. One
    /// that is nowhere alone has the value that makes an axis such as `2 * n + 1` what it is.
    ///
    /// Inputs that are missing or of another dtype are left to those who run the program.
    ///
    /// # Errors
    /// An input of another rank, a name with two values, an axis that is not what names make of it,
    /// a bound or a guard that is not kept, a name without a value.
    pub fn values<'a>(
        &self,
        ty_of: &dyn Fn(&str) -> Option<&'a TensorType>,
        given: &[(&str, i64)],
    ) -> Result<Values, SizeError> {
        let mut values = Values::default();
        let named = |port: &&Port| port.ty.shape.has_names();
        let ports = || self.ports().iter().filter(named);
        for (name, value) in given {
            let known = self.sizes().get(name).map(|known| known.name);
            let known =
                known.ok_or_else(|| SizeError::Size(format!("no size is called `{name}`")))?;
            let twice =
                |other| SizeError::Size(format!("`{name}` is given as {other} and as {value}"));
            values.set(known, *value).map_err(twice)?;
        }
        for port in ports() {
            let Some(ty) = ty_of(&port.name) else { continue };
            let failed = |message| SizeError::Input { input: port.name.clone(), message };
            if ty.shape.rank() != port.ty.shape.rank() {
                return Err(failed(format!("expected {}, found {ty}", port.ty)));
            }
            for (size, found) in port.ty.shape.iter().zip(ty.shape.iter()) {
                let (Some(name), Some(found)) = (size.name(), found.number()) else { continue };
                self.sizes().check_bounds(name, found).map_err(failed)?;
                values.set(name, found).map_err(|known| {
                    failed(format!("`{name}` is {found} here, and {known} before"))
                })?;
            }
        }
        for port in ports() {
            let Some(found) = ty_of(&port.name) else { continue };
            for (size, found) in port.ty.shape.iter().zip(found.shape.iter()) {
                let rest = size.substitute(&|name| values.get(name).map(Size::from));
                let solved = found.number().and_then(|found| rest.solve(found));
                if let Some((name, value)) = solved {
                    let failed = |message| SizeError::Input { input: port.name.clone(), message };
                    self.sizes().check_bounds(name, value).map_err(failed)?;
                    // It had no value, or it would not be in the rest.
                    let _ = values.set(name, value);
                }
            }
        }
        if let Some(known) = self.sizes().names().iter().find(|n| values.get(n.name).is_none()) {
            let name = known.name;
            return Err(SizeError::Size(format!(
                "`{name}` has no value: no input that is given has it alone as a size"
            )));
        }
        for port in ports() {
            let Some(found) = ty_of(&port.name) else { continue };
            let at = |size: &Size| size.at(&|name| values.get(name));
            let expected = port.ty.shape.iter().map(at).collect::<Result<Shape, String>>();
            if expected.as_ref() != Ok(&found.shape) {
                let message = format!("expected {} with {values}, found {found}", port.ty);
                return Err(SizeError::Input { input: port.name.clone(), message });
            }
        }
        self.sizes().check(&values).map_err(SizeError::Size)?;
        Ok(values)
    }

    /// The program in which names have these values. Nodes keep their numbers, so what was worked
    /// out for one program holds for the other.
    ///
    /// ```
    /// use tracecast_ir::Values;
    ///
    /// let text = "
    /// size batch = 32 in 1..=64
    ///
    /// graph @double(%x: f32[batch, 4]) {
    ///   %0 = add %x, %x : f32[batch, 4]
    ///   return y = %0
    /// }";
    /// let graph = tracecast_ir::text::parse(text).unwrap();
    /// let batch = graph.sizes().names()[0].name;
    /// let at = graph.at(&Values::from_iter([(batch, 7)])).unwrap();
    /// assert_eq!(at.ports()[0].ty.to_string(), "f32[7, 4]");
    /// assert!(graph.at(&Values::from_iter([(batch, 65)])).is_err());
    /// ```
    ///
    /// # Errors
    /// A bound or a size guard that the values do not keep, a size that becomes negative or too
    /// large: with the op and its line.
    pub fn at(&self, values: &Values) -> Result<Graph, TraceError> {
        let failed = |op: &str, message: String, source_line: String, scope: &str| TraceError {
            op: op.to_owned(),
            message,
            source_line,
            scope: scope.to_owned(),
        };
        self.sizes.check(values).map_err(|why| failed("size", why, String::new(), ""))?;
        let mut graph = self.clone();
        graph.sizes = Sizes::default();
        graph.note = Note::default();
        let wrong: RefCell<Option<String>> = RefCell::default();
        let number = |size: Size| match size.at(&|name| values.get(name)) {
            Ok(number) => Size::from(number),
            Err(why) => {
                wrong.borrow_mut().get_or_insert(why);
                Size::OUT_OF_RANGE
            }
        };
        for id in self.nodes() {
            let node = &mut graph.dag[id];
            let mut checked = Ok(());
            for ty in node.results.iter_mut().filter(|ty| ty.shape.has_names()) {
                ty.shape = ty.shape.iter().map(|size| number(*size)).collect();
                checked = checked.and_then(|()| ty.check_size());
            }
            node.attrs.map_sizes(&number);
            if let Some(kernel) = node.attrs.kernel_mut().filter(|kernel| !kernel.names.is_empty())
            {
                match kernel.at(values) {
                    Ok(numbers) => *kernel = Arc::new(numbers),
                    Err(why) => checked = Err(why),
                }
            }
            if let Err(message) = wrong.take().map_or(checked, Err) {
                let (op, line) = (node.op.name(), node.source.to_string());
                let message = format!("{message}, with {values}");
                return Err(failed(op.text(), message, line, &node.scope));
            }
        }
        for port in &mut graph.ports {
            port.ty = graph.dag[port.node].results[0].clone();
        }
        if graph.points.iter().any(|point| point.numel.has_names()) {
            for point in Arc::make_mut(&mut graph.points) {
                point.numel = number(point.numel);
            }
        }
        Ok(graph)
    }
}
