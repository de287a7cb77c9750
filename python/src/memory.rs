//! The memory of PyTorch's tensors as bytes: borrowed for inputs of a run, lent for its results.
//!
//! A [`Layout`] is what a program takes. A [`Region`] comes from a tensor that has such a layout,
//! as PyTorch says, and holds a reference to it: the memory lives for as long as the region,
//! wherever the run ends.

#![allow(unsafe_code, reason = "this file owns the addresses that PyTorch gives for its tensors")]

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tracecast::TensorType;
use tracecast_aten::dtype;

/// Sizes and strides, in elements.
pub(crate) type Strided<'py> = (Bound<'py, PyTuple>, Bound<'py, PyTuple>);

/// Dtype, sizes and strides of a tensor as Python's objects, which are compared sooner than they
/// are read.
pub(crate) struct Layout {
    dtype: Py<PyAny>,
    sizes: Py<PyTuple>,
    strides: Py<PyTuple>,
    /// What the program makes of the memory: row-major.
    ty: TensorType,
    /// The elements are not dense, so that they are copied.
    pub(crate) is_copied: bool,
}

impl Layout {
    /// That of tensors whose elements are, in the order of their addresses, those of a row-major
    /// tensor of this type. If other elements lie between them, or some lie twice, copies are in
    /// the order of axes.
    ///
    /// # Errors
    /// If the type has another number of elements.
    pub(crate) fn new(
        py: Python<'_>,
        ty: &TensorType,
        (sizes, strides): Strided<'_>,
    ) -> PyResult<Self> {
        let (many, steps): (Vec<usize>, Vec<usize>) = (sizes.extract()?, strides.extract()?);
        let elements = ty.numel().get();
        let is_copied = dense(&many, &steps) != Some(elements);
        if is_copied && many.iter().product::<usize>() != elements {
            let message =
                format!("{ty} has not as many elements as {sizes} with strides {strides}");
            return Err(PyValueError::new_err(message));
        }
        let dtype = py.import("torch")?.getattr(dtype::name(ty.dtype))?.unbind();
        let (sizes, strides) = (sizes.unbind(), strides.unbind());
        Ok(Layout { dtype, sizes, strides, ty: ty.clone(), is_copied })
    }

    /// The memory of a tensor, if it has this layout and lies on the CPU.
    ///
    /// # Errors
    /// If it is no tensor, or has no memory.
    pub(crate) fn region(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Region>> {
        let py = tensor.py();
        let fits = tensor.getattr(intern!(py, "dtype"))?.is(&self.dtype)
            && tensor.getattr(intern!(py, "shape"))?.eq(&self.sizes)?
            && tensor.call_method0(intern!(py, "stride"))?.eq(&self.strides)?
            && tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
            && !tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?;
        if !fits {
            return Ok(None);
        }
        let tensor = match self.is_copied {
            true => tensor.call_method0(intern!(py, "contiguous"))?,
            false => tensor.clone(),
        };
        let address: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let bytes = self.ty.bytes().get();
        if bytes > 0 && address == 0 {
            return Err(PyValueError::new_err("a tensor without memory"));
        }
        Ok(Some(Region { address, bytes, tensor: tensor.unbind() }))
    }

    /// Whether a tensor has these sizes and strides, and begins at an address.
    ///
    /// # Errors
    /// If it is no tensor.
    pub(crate) fn is_at(&self, tensor: &Bound<'_, PyAny>, address: usize) -> PyResult<bool> {
        let py = tensor.py();
        let found: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok(found == address
            && tensor.getattr(intern!(py, "shape"))?.eq(&self.sizes)?
            && tensor.call_method0(intern!(py, "stride"))?.eq(&self.strides)?)
    }

    /// A new tensor of this layout, from `torch.empty_strided`, and its memory.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn empty<'py>(
        &self,
        empty_strided: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Region)> {
        let py = empty_strided.py();
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), &self.dtype)?;
        let tensor = empty_strided.call((&self.sizes, &self.strides), Some(&keywords))?;
        let region = self.region(&tensor)?;
        let region = region.ok_or_else(|| PyValueError::new_err("no memory of this layout"))?;
        Ok((tensor, region))
    }
}

/// How many elements lie in memory under these strides, if none lie between them. An axis of stride
/// 0 repeats its one element.
fn dense(sizes: &[usize], strides: &[usize]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let axes = sizes.iter().zip(strides).filter(|(size, stride)| **size != 1 && **stride != 0);
    let mut axes: Vec<_> = axes.collect();
    axes.sort_unstable_by_key(|(_, stride)| **stride);
    let next = |step: Option<usize>, (size, stride): (&usize, &usize)| match step? == *stride {
        true => stride.checked_mul(*size),
        false => None,
    };
    axes.into_iter().fold(Some(1), next)
}

/// The elements of a dense tensor in place.
///
/// As for every op of PyTorch, nobody may resize the tensor or write to it meanwhile from another
/// thread.
pub(crate) struct Region {
    address: usize,
    bytes: usize,
    #[expect(dead_code, reason = "keeps the memory")]
    tensor: Py<PyAny>,
}

impl Region {
    /// The address of the first byte, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.address, self.bytes)
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: PyTorch keeps as many bytes behind the address of a tensor as its sizes, strides
        // and dtype say, which the layout has compared. The region keeps the tensor.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as above; written are regions of new tensors, before anybody else has seen the
        // tensor, and those of a step's state, as an optimizer of PyTorch writes them.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }
}
