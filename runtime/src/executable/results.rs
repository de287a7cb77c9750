//! Runs of an [`Executable`] whose results lie in memory that the caller gives.

use super::Executable;
use super::kept::HELD;
use crate::error::{Error, Result};
use crate::outputs::Outputs;
use crate::store::Store;
use crate::tensor::Tensor;

impl Executable {
    /// As [`run`](Executable::run), with results in memory that the caller gives: for each output
    /// of the program, in order, a tensor of its type that nobody else holds, such as one in
    /// [lent](Tensor::lent) memory. A result is that tensor. The program keeps none of it.
    ///
    /// ```
    /// use tracecast_ir::{DType, TensorType};
    /// # use tracecast_ir::{Tracer, ops::prelude::*};
    /// # use tracecast_runtime::{Executable, Store, Tensor};
    /// # fn add(program: &Executable, x: &Tensor) -> tracecast_runtime::Result<()> {
    /// let y = Tensor::zeros(TensorType::new(DType::F32, [8]))?;
    /// let at = y.bytes().as_ptr();
    /// let results = program.run_into(&mut Store::new(), &[("x", x)], vec![y])?;
    /// assert_eq!(results["y"].bytes().as_ptr(), at);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As those of [`run`](Executable::run), or if a tensor for a result is missing, of another
    /// type, or held by somebody else.
    pub fn run_into(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        mut results: Vec<Tensor>,
    ) -> Result<Outputs> {
        let outputs = &self.program.parts.outputs;
        if results.len() != outputs.len() {
            let (expected, found) = (outputs.len(), results.len());
            let message = format!("memory for {expected} results is expected, found {found}");
            return Err(Error::Tensor(message));
        }
        for (output, result) in results.iter_mut().enumerate() {
            let (name, ty) = (&outputs[output].0, self.output_type(output));
            let wrong = match result.ty() == ty {
                true => result.own_bytes().is_none().then(|| HELD.to_owned()),
                false => Some(Error::expected(ty, result.ty())),
            };
            if let Some(wrong) = wrong {
                return Err(Error::Tensor(format!("result `{name}`: {wrong}")));
            }
        }
        let results = results.into_iter().map(Some).collect();
        self.run_with(store, inputs, results, None, &mut || ())
    }
}
