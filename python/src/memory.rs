//! The memory of PyTorch's tensors as bytes: borrowed for inputs of a run, lent for its results.
//!
//! A [`Layout`] is what a program takes. A [`Region`] comes from a tensor that has such a layout,
//! as PyTorch says, and holds a reference to it: the memory lives for as long as the region,
//! wherever the run ends. PyTorch describes a tensor through the C functions of DLPack, which make
//! no objects of Python.
//!
//! Large results are [`Bytes`], which PyTorch's tensors own. Fresh memory costs page faults in
//! every run; these are reused, and on huge pages.

#![allow(unsafe_code, reason = "this file owns the addresses that PyTorch gives for its tensors")]

use crate::error::refused;
use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tracecast::TensorType;
use tracecast_aten::dtype;
use tracecast_ir::eval::Bytes;

/// Sizes and strides, in elements.
pub(crate) type Strided<'py> = (Bound<'py, PyTuple>, Bound<'py, PyTuple>);

/// Dtype, sizes and strides of a tensor.
pub(crate) struct Layout {
    sizes: Vec<i64>,
    strides: Vec<i64>,
    dtype: DataType,
    /// What the program makes of the memory: row-major.
    ty: TensorType,
    /// The elements are not dense, so that they are copied.
    pub(crate) is_copied: bool,
    /// The arguments that `torch.empty_strided` makes such a tensor of.
    arguments: (Py<PyTuple>, Py<PyDict>),
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
        let torch = py.import("torch")?;
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", torch.getattr(dtype::name(ty.dtype))?)?;
        let example = torch.call_method("empty", (0,), Some(&keywords))?;
        Ok(Layout {
            sizes: sizes.extract()?,
            strides: strides.extract()?,
            dtype: Described::of(&example)?.dtype,
            ty: ty.clone(),
            is_copied,
            arguments: ((sizes, strides).into_pyobject(py)?.unbind(), keywords.unbind()),
        })
    }

    /// Where a tensor begins, if it has this layout and lies on the CPU.
    ///
    /// # Errors
    /// If it is no tensor, or has no memory.
    fn start(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let found = Described::of(tensor)?;
        let fits = found.device == CPU
            && found.dtype == self.dtype
            && found.is_laid_out(tensor, &self.sizes, &self.strides);
        Ok(fits.then(|| found.data.expose_provenance() + found.byte_offset as usize))
    }

    /// The memory of a tensor, if it has this layout and lies on the CPU.
    ///
    /// # Errors
    /// If it is no tensor, or has no memory.
    pub(crate) fn region(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Region>> {
        let py = tensor.py();
        let Some(start) = self.start(tensor)? else { return Ok(None) };
        if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Ok(None);
        }
        if !self.is_copied {
            return self.region_at(start, tensor.clone()).map(Some);
        }
        let copy = tensor.call_method0(intern!(py, "contiguous"))?;
        let found = Described::of(&copy)?;
        self.region_at(found.data.expose_provenance(), copy).map(Some)
    }

    fn region_at(&self, address: usize, tensor: Bound<'_, PyAny>) -> PyResult<Region> {
        let bytes = self.ty.bytes().get();
        if bytes > 0 && address == 0 {
            return Err(PyValueError::new_err("a tensor without memory"));
        }
        Ok(Region { address, bytes, tensor: tensor.unbind() })
    }

    /// Whether a tensor has this layout, and begins at an address.
    ///
    /// # Errors
    /// If it is no tensor.
    pub(crate) fn is_at(&self, tensor: &Bound<'_, PyAny>, address: usize) -> PyResult<bool> {
        Ok(self.start(tensor)? == Some(address))
    }

    /// A new tensor of this layout, and its memory: [`Bytes`] if it is large, else from
    /// `torch.empty_strided`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn empty<'py>(
        &self,
        empty_strided: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Region)> {
        let py = empty_strided.py();
        let (arguments, keywords) = &self.arguments;
        let tensor = match self.ty.bytes().get() {
            bytes if bytes < LARGE => {
                empty_strided.call(arguments.bind(py), Some(keywords.bind(py)))?
            }
            bytes => self.owning(py, Bytes::to_write(bytes).map_err(refused)?)?,
        };
        let start = self.start(&tensor)?;
        let start = start.ok_or_else(|| PyValueError::new_err("no memory of this layout"))?;
        let region = self.region_at(start, tensor.clone())?;
        Ok((tensor, region))
    }
}

impl Layout {
    /// A new tensor of this layout that owns its memory.
    ///
    /// # Errors
    /// If PyTorch does not take it.
    fn owning<'py>(&self, py: Python<'py>, bytes: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let mut owned = Box::new(Owned {
            managed: Managed {
                version: (1, 0),
                context: null_mut(),
                delete,
                flags: 0,
                tensor: Described {
                    data: null_mut(),
                    device: CPU,
                    number_of_device: 0,
                    rank: i32::try_from(self.sizes.len()).map_err(refused)?,
                    dtype: self.dtype,
                    sizes: null_mut(),
                    strides: null_mut(),
                    byte_offset: 0,
                },
            },
            sizes: self.sizes.clone(),
            strides: self.strides.clone(),
            bytes,
        });
        owned.managed.tensor.data = owned.bytes.as_mut_ptr().cast();
        owned.managed.tensor.sizes = owned.sizes.as_mut_ptr();
        owned.managed.tensor.strides = owned.strides.as_mut_ptr();
        let take = exchange(py)?.take;
        let mut found = null_mut();
        // SAFETY: the description begins with a `Managed` and holds until `delete`, which PyTorch
        // calls at most once, when nobody needs the memory.
        let code = unsafe { take(Box::into_raw(owned).cast(), &raw mut found) };
        if code != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: PyTorch gives a new reference to a tensor.
        unsafe { Bound::from_owned_ptr_or_err(py, found.cast()) }
    }
}

/// A tensor that comes with its memory: `DLManagedTensorVersioned`.
#[repr(C)]
struct Managed {
    version: (u32, u32),
    context: *mut c_void,
    delete: unsafe extern "C" fn(*mut Managed),
    flags: u64,
    tensor: Described,
}

/// One whose memory is ours.
#[repr(C)]
struct Owned {
    managed: Managed,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    bytes: Bytes,
}

/// Frees what [`Layout::owning`] has made.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: it is the first field of an `Owned` from a `Box`, and nobody has it any more.
    drop(unsafe { Box::from_raw(managed.cast::<Owned>()) });
}

/// A tensor as DLPack describes it: `DLTensor`.
#[repr(C)]
struct Described {
    data: *mut c_void,
    device: c_int,
    number_of_device: i32,
    rank: i32,
    dtype: DataType,
    sizes: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// Results of at least as many bytes are [`Bytes`]: these reuse mappings from there on.
const LARGE: usize = 2 << 20;

/// `kDLCPU`.
const CPU: c_int = 1;

/// A dtype of DLPack: `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// Fills in what a tensor is. It makes no reference to it. Returns 0, or raises an error.
type Describe = unsafe extern "C" fn(*mut c_void, *mut Described) -> c_int;

/// Makes a tensor of one that comes with its memory. Returns 0, or raises an error.
type Take = unsafe extern "C" fn(*mut Managed, *mut *mut c_void) -> c_int;

/// The functions of PyTorch that are used.
#[derive(Clone, Copy)]
struct Functions {
    describe: Describe,
    take: Take,
}

/// The head of [`Exchange`], which all versions have.
#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
    previous: *const c_void,
}

/// The functions that a library with tensors has for others: `DLPackExchangeAPI`.
#[repr(C)]
struct Exchange {
    version: Version,
    allocate: *const c_void,
    lend: *const c_void,
    take: Option<Take>,
    describe: Option<Describe>,
    stream: *const c_void,
}

impl Described {
    /// What PyTorch says of a tensor.
    ///
    /// # Errors
    /// If it is no tensor, or one that has no elements in memory, such as a sparse one.
    fn of(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let describe = exchange(tensor.py())?.describe;
        let mut found = Described {
            data: null_mut(),
            device: 0,
            number_of_device: 0,
            rank: 0,
            dtype: DataType { code: 0, bits: 0, lanes: 0 },
            sizes: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        // SAFETY: PyTorch's function takes any object while the interpreter's lock is held, and
        // raises an error for what is no tensor.
        let code = unsafe { describe(tensor.as_ptr().cast(), &raw mut found) };
        if code == 0 { Ok(found) } else { Err(PyErr::fetch(tensor.py())) }
    }

    /// Whether the tensor, which this was just asked of, has these sizes and strides.
    fn is_laid_out(&self, _tensor: &Bound<'_, PyAny>, sizes: &[i64], strides: &[i64]) -> bool {
        let rank = sizes.len();
        if usize::try_from(self.rank) != Ok(rank) || rank == 0 {
            return self.rank == 0 && rank == 0;
        }
        // SAFETY: behind the pointer are as many sizes as the tensor has axes. They live as long as
        // the tensor, and no other code of Python runs meanwhile.
        let own_sizes = unsafe { std::slice::from_raw_parts(self.sizes, rank) };
        // SAFETY: as above; strides are always there.
        let own_strides = unsafe { std::slice::from_raw_parts(self.strides, rank) };
        own_sizes == sizes && own_strides == strides
    }
}

/// PyTorch's functions that describe tensors and make them.
fn exchange(py: Python<'_>) -> PyResult<Functions> {
    static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();
    let found = FUNCTIONS.get_or_try_init(py, || {
        let tensor = py.import("torch")?.getattr("Tensor")?;
        let old = || PyImportError::new_err("tracecast needs PyTorch 2.10 or newer, with DLPack 1");
        let Some(capsule) = tensor.getattr_opt("__dlpack_c_exchange_api__")? else {
            return Err(old());
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        let table = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: a capsule of this name has such a table behind it, which is never freed.
        let version = unsafe { table.cast::<Version>().as_ref() };
        if version.major != 1 {
            return Err(old());
        }
        // SAFETY: as above; tables of version 1 have these functions.
        let exchange = unsafe { table.cast::<Exchange>().as_ref() };
        let functions = exchange.describe.zip(exchange.take);
        functions.map(|(describe, take)| Functions { describe, take }).ok_or_else(old)
    });
    found.copied()
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
